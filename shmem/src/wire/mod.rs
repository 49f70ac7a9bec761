//! Host threads on the wire: their own endpoint, and the engines' rails for large operations.
//!
//! Small operations go over the host endpoint, which no other thread polls (on one rail, while that rail works).
//! Operations of at least [`MANY_RAILS_FROM`] bytes go over the proxy endpoints if there are several rails; with
//! several proxy threads they alternate. To keep a fence between two operations on different endpoints, the first one
//! is drained before the second starts. The first proxy thread's engine answers the requests of host endpoints, and
//! waiting host threads drive it.
//!
//! | file | concept |
//! |---|---|
//! | here | the state that a PE's host threads share |
//! | `context` | operations that are ordered and completed together, and the endpoint of each |
//! | `operations` | starting them, and waiting for their completion |
//! | `contexts` | all contexts |
//! | `awaited` | operations that the peer detects itself, without a quiet |
//! | `host_endpoints` | the host endpoints |
//! | `host` | one of them, behind its lock |
//! | `keys` | the keys that PEs exchange for a segment by which the heap has grown |
//! | `wait` | how a host thread waits; whether waiting threads share their cores with one another |
//! | `lanes` | all endpoints, for the thread that observes them |

mod awaited;
mod context;
mod contexts;
mod host;
mod host_endpoints;
pub(crate) mod keys;
mod lanes;
mod operations;
#[cfg(test)]
mod tests;
mod wait;

use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use symrail_core::clock;
use symrail_proxy::{Driver, Proxy};
use symrail_transport::endpoint::Endpoint;
use symrail_transport::endpoint::{LaneCounters, LaneSpeed};
use symrail_transport::rail::RailCaps;
use symrail_transport::region::Segment;
use symrail_transport::{Error, Pe};

pub(crate) use awaited::Sent;
pub(crate) use context::{ContextState, WireContext};
pub(crate) use contexts::{Contexts, MAX_CONTEXTS};
pub(crate) use host_endpoints::EndpointOpener;
use host_endpoints::HostEndpoints;
pub(crate) use lanes::Lanes;
pub(crate) use operations::Tracked;
use wait::{SharedCores, Wait};

use crate::directory::Directory;
use crate::interrupt::GoOn;

/// From this size on an operation uses more than one rail.
const MANY_RAILS_FROM: u64 = 64 << 10;

/// A PE's endpoints, as its host threads use them.
pub(crate) struct Wire {
    host_endpoints: Arc<HostEndpoints>,
    /// Peers' addresses and keys, read when they are needed.
    directory: Arc<Directory>,
    /// The driver of each proxy thread's endpoint.
    drivers: Arc<[Arc<Driver>]>,
    // Joined when dropped; everything that can fail is over by then.
    proxies: Vec<Proxy>,
    /// In lane order, which alternates between the threads.
    rails: Vec<RailCaps>,
    /// Addresses that the CPU cannot access: the engine stages operations on them.
    staged: Option<Range<usize>>,
    /// NICs write this PE's memory, whether it polls or not.
    by_hardware: bool,
    copy_limit: usize,
    shared_cores: SharedCores,
    started: Instant,
    /// This PE, and the check that may end its waits.
    me: Pe,
    pub interrupt: Arc<OnceLock<GoOn>>,
}

impl Wire {
    /// The wire over a host endpoint and at least one proxy thread.
    pub fn new(host: Endpoint, opener: EndpointOpener, proxies: Vec<Proxy>, staged: Option<Range<usize>>) -> Wire {
        let drivers: Arc<[_]> = proxies.iter().map(|proxy| Arc::clone(proxy.driver())).collect();
        let rails = rails(&drivers);
        let by_hardware = rails.iter().all(|rail| !rail.software);
        let (copy_limit, me, directory) = (host.copy_limit(), opener.me, Arc::clone(&opener.directory));
        let host_endpoints = Arc::new(HostEndpoints::new(host, opener));
        // The idle task sends operations that a provider could not send at once, while the thread that posted them
        // computes.
        let left_behind = Arc::clone(&host_endpoints);
        drivers[0].set_idle_task(move || left_behind.idle_work());
        let started = clock::now();
        let interrupt = Arc::default();
        Wire {
            host_endpoints,
            directory,
            drivers,
            proxies,
            rails,
            staged,
            by_hardware,
            copy_limit,
            shared_cores: SharedCores::default(),
            started,
            me,
            interrupt,
        }
    }

    /// Lets the proxy threads end, soon after it returns. Only waiting threads drive the engines then.
    pub fn stop(&self) {
        self.proxies.iter().for_each(Proxy::stop);
    }

    /// The driver of each proxy thread's endpoint; at least one.
    pub fn drivers(&self) -> &[Arc<Driver>] {
        &self.drivers
    }

    /// The first proxy thread's driver, whose engine answers the requests of host endpoints.
    #[inline]
    pub fn driver(&self) -> &Arc<Driver> {
        &self.drivers[0]
    }

    /// The proxy threads' rails, in lane order.
    pub fn rails(&self) -> &[RailCaps] {
        &self.rails
    }

    /// The NICs by their rails' names, in words; and the reason for the choice.
    pub fn described(&self) -> (Vec<(String, String)>, Vec<String>) {
        self.host_endpoints.described()
    }

    /// The endpoints' lanes, for an observer.
    pub fn lanes(&self) -> Lanes {
        Lanes::new(Arc::clone(&self.host_endpoints), Arc::clone(&self.drivers))
    }

    /// Registers a segment by which the heap has grown with all endpoints; the returned connection info is for all PEs.
    ///
    /// # Safety
    /// The segment stays mapped as long as the wire lives.
    pub unsafe fn register_grown(&self, segment: Segment) -> Result<Vec<u8>, Error> {
        let first = self.directory.first();
        // SAFETY: the caller's promise.
        unsafe {
            self.host_endpoints.register(segment)?;
            let keys = self.drivers.iter().map(|driver| driver.engine().register_grown(segment, first));
            keys.collect::<Result<Vec<_>, _>>().map(|keys| keys::together(&keys))
        }
    }

    /// Stores the connection infos of all PEs for a segment by which the heap has grown.
    pub fn learn(&self, segment: Segment, connection_infos: &[Vec<u8>]) -> Result<(), Error> {
        self.directory.add_segment(segment, connection_infos);
        self.host_endpoints.learn_segment(segment.id())?;
        self.drivers.iter().try_for_each(|driver| driver.engine().endpoint().learn_segment(segment.id()))
    }

    /// The counters of the proxy threads' lanes, one thread after the other, then of the host endpoints'.
    pub fn counters(&self) -> Vec<LaneCounters> {
        let counters = |driver: &Arc<Driver>| driver.engine().endpoint().counters().to_vec();
        self.drivers.iter().flat_map(counters).chain(self.host_counters()).collect()
    }

    /// The measured speed of a rail, as far as a proxy thread knows it.
    pub fn speed(&self, rail: &str) -> Option<LaneSpeed> {
        self.drivers.iter().find_map(|driver| {
            let mut engine = driver.engine();
            let endpoint = engine.endpoint();
            let lane = endpoint.caps().iter().position(|caps| caps.name == rail)?;
            endpoint.speeds().get(lane).copied().flatten()
        })
    }

    /// How many fences the proxy threads' endpoints and the host endpoints were asked for.
    pub fn fences(&self) -> u64 {
        let of_engines = self.drivers.iter().map(|driver| u64::from(driver.engine().endpoint().fences()));
        let of_hosts = self.host_endpoints.all().map(|host| u64::from(host.lock().endpoint.fences()));
        of_engines.chain(of_hosts).sum()
    }

    /// The counters of the host endpoints' lanes.
    pub fn host_counters(&self) -> Vec<LaneCounters> {
        self.host_endpoints.all().flat_map(|host| host.lock().endpoint.counters().to_vec()).collect()
    }

    /// The largest put (or put-signal), in bytes, whose source is certainly copied when the call returns, whatever its
    /// outcome.
    pub fn copied_at_once(&self) -> usize {
        self.copy_limit.min(MANY_RAILS_FROM as usize - 1)
    }

    /// Waits until no operation of host threads is in flight, not even one that no quiet waits for. At most
    /// `time_limit`; the wait is on `context`.
    pub fn drain(&self, context: &ContextState, time_limit: Duration) {
        let mut wait = Wait::for_operations(WireContext::new(self, context));
        let deadline = clock::now() + time_limit;
        // Large operations of contexts are in the engines.
        let is_active = || self.drivers.iter().any(|driver| driver.engine().endpoint().is_active());
        while (self.host_endpoints.poll_if_unused() || is_active()) && clock::now() < deadline && wait.step().is_ok() {}
    }

    /// How often a thread loads an awaited word between two polls.
    pub fn loads_per_poll(&self) -> u32 {
        if self.by_hardware { 8 } else { 1 }
    }

    /// Polls the endpoints of contexts, for a thread that waits for memory, so that its operations there make progress.
    fn poll_contexts(&self) {
        for host in self.host_endpoints.of_contexts() {
            host.poll_if_unused();
        }
    }

    fn seconds(&self) -> u32 {
        clock::since(self.started).as_secs() as u32
    }
}

/// The rails of all proxy threads, without spare ones: rail `r` belongs to thread `r mod T`.
fn rails(drivers: &[Arc<Driver>]) -> Vec<RailCaps> {
    let of_threads: Vec<Vec<RailCaps>> = drivers
        .iter()
        .map(|driver| {
            let mut engine = driver.engine();
            let endpoint = engine.endpoint();
            endpoint.caps()[..endpoint.lanes_in_use()].to_vec()
        })
        .collect();
    (0..).map_while(|rail| of_threads[rail % drivers.len()].get(rail / drivers.len()).cloned()).collect()
}
