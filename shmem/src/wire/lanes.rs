//! What the lanes of all endpoints do, for whoever watches them.

use std::sync::Arc;

use symrail_proxy::Driver;
use symrail_transport::endpoint::{Endpoint, Record};

use super::outlets::Outlets;
use crate::observe::figures::Lane;

/// All endpoints, looked at from another thread.
#[derive(Clone)]
pub(crate) struct Lanes {
    outlets: Arc<Outlets>,
    driver: Arc<Driver>,
}

impl Lanes {
    pub(super) fn new(outlets: Arc<Outlets>, driver: Arc<Driver>) -> Lanes {
        Lanes { outlets, driver }
    }

    /// The figures of the host endpoints' lanes, then of the proxy endpoint's.
    pub fn figures(&self) -> Vec<Lane> {
        let mut lanes: Vec<Lane> = self.outlets.all().flat_map(|host| figures(true, &host.lock().endpoint)).collect();
        lanes.extend(figures(false, self.driver.engine().endpoint()));
        lanes
    }

    /// Records every work request from now on.
    pub fn record(&self) {
        self.outlets.record();
        self.driver.engine().endpoint().record();
    }

    /// What has been recorded of each endpoint, with its lanes' names.
    pub fn take_records(&self) -> Vec<(Vec<String>, Vec<Record>)> {
        let hosts = self.outlets.all().map(|host| records("host ", &mut host.lock().endpoint));
        hosts.chain(std::iter::once_with(|| records("", self.driver.engine().endpoint()))).collect()
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
