//! All endpoints, for the thread that observes them: their lanes' activity, and PEs that have left.

use std::sync::Arc;

use symrail_proxy::Driver;
use symrail_transport::Pe;
use symrail_transport::endpoint::{Endpoint, LaneCounters, Record};
use symrail_transport::rail::RailCaps;

use super::host_endpoints::HostEndpoints;
use crate::observe::figures::Lane;

/// All endpoints, read by another thread.
#[derive(Clone)]
pub(crate) struct Lanes {
    host_endpoints: Arc<HostEndpoints>,
    drivers: Arc<[Arc<Driver>]>,
}

impl Lanes {
    pub(super) fn new(host_endpoints: Arc<HostEndpoints>, drivers: Arc<[Arc<Driver>]>) -> Lanes {
        Lanes { host_endpoints, drivers }
    }

    /// The figures of the host endpoints' lanes, then of the proxy threads'.
    pub fn figures(&self) -> Vec<Lane> {
        let mut lanes: Vec<Lane> =
            self.host_endpoints.all().flat_map(|host| figures("host", &host.lock().endpoint)).collect();
        for (name, driver) in self.names().zip(self.drivers.iter()) {
            lanes.extend(figures(&name, driver.engine().endpoint()));
        }
        lanes
    }

    /// Reports to all endpoints that a PE takes part in nothing more, and why.
    pub fn has_left(&self, pe: Pe, why: &str) {
        self.host_endpoints.all().for_each(|host| host.lock().endpoint.has_left(pe, why));
        self.drivers.iter().for_each(|driver| driver.engine().endpoint().has_left(pe, why));
    }

    /// The names of the proxy threads.
    fn names(&self) -> impl Iterator<Item = String> {
        let several = self.drivers.len() > 1;
        (0..).map(move |thread| if several { format!("proxy {thread}") } else { "proxy".into() })
    }

    /// Records every work request from now on.
    pub fn record(&self) {
        self.host_endpoints.record();
        self.drivers.iter().for_each(|driver| driver.engine().endpoint().record());
    }

    /// The records of each endpoint, with its lanes' names.
    pub fn take_records(&self) -> Vec<(Vec<String>, Vec<Record>)> {
        let hosts = self.host_endpoints.all().map(|host| records("host", &mut host.lock().endpoint));
        let proxies = self.names().zip(self.drivers.iter());
        hosts.chain(proxies.map(|(name, driver)| records(&name, driver.engine().endpoint()))).collect()
    }
}

fn figures(owner: &str, endpoint: &Endpoint) -> Vec<Lane> {
    let lanes = endpoint.caps().iter().zip(endpoint.counters()).zip(endpoint.speeds());
    let lane = |((caps, &counters), speed): ((&RailCaps, &LaneCounters), _)| Lane {
        owner: owner.into(),
        rail: caps.name.clone(),
        counters,
        speed,
    };
    lanes.map(lane).collect()
}

fn records(owner: &str, endpoint: &mut Endpoint) -> (Vec<String>, Vec<Record>) {
    let name = |rail: &str| if owner == "proxy" { rail.to_owned() } else { format!("{owner} {rail}") };
    let names = endpoint.caps().iter().map(|caps| name(&caps.name)).collect();
    (names, endpoint.take_records())
}
