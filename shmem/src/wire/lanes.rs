//! What the lanes of both endpoints do, for whoever watches them.

use std::sync::Arc;

use symrail_proxy::Driver;
use symrail_transport::endpoint::{Endpoint, Record};

use super::host::Host;
use crate::observe::figures::Lane;

/// Both endpoints, looked at from another thread.
#[derive(Clone)]
pub(crate) struct Lanes {
    host: Arc<Host>,
    driver: Arc<Driver>,
}

impl Lanes {
    pub(super) fn new(host: Arc<Host>, driver: Arc<Driver>) -> Lanes {
        Lanes { host, driver }
    }

    /// The figures of the host endpoint's lanes, then of the proxy endpoint's.
    pub fn figures(&self) -> Vec<Lane> {
        let mut lanes = figures(true, &self.host.lock().endpoint);
        lanes.extend(figures(false, self.driver.engine().endpoint()));
        lanes
    }

    /// Records every work request from now on.
    pub fn record(&self) {
        self.host.lock().endpoint.record();
        self.driver.engine().endpoint().record();
    }

    /// What has been recorded of each endpoint, with its lanes' names.
    pub fn take_records(&self) -> Vec<(Vec<String>, Vec<Record>)> {
        let host = records("host ", &mut self.host.lock().endpoint);
        vec![host, records("", self.driver.engine().endpoint())]
    }
}

fn figures(host: bool, endpoint: &Endpoint) -> Vec<Lane> {
    let lanes = endpoint.caps().iter().zip(endpoint.counters());
    lanes.map(|(caps, counters)| Lane::new(host, &caps.name, counters)).collect()
}

fn records(prefix: &str, endpoint: &mut Endpoint) -> (Vec<String>, Vec<Record>) {
    let names = endpoint.caps().iter().map(|caps| format!("{prefix}{}", caps.name)).collect();
    (names, endpoint.take_records())
}
