//! Ports that are down: when an endpoint gives up the connections over them.
//!
//! A connection survives if its port is up again before the NIC stops trying. Giving it up is therefore right only
//! while another lane can do its work. The state of the local ports does not show that, because the other end's port
//! may be down, too. So when a port is down here, the endpoint sends a keepalive over each other lane. It gives the
//! connection up when one of the keepalives has arrived and the port has been down all the time since it was sent.
//!
//! Two ends never give up their last working lane, in whatever order they observe the outages. Proof for two ends A and
//! B and two lanes 1 and 2:
//!
//! 1. Suppose that A gives up lane 1 and B gives up lane 2, and that A does so first.
//! 2. A does so because its keepalive arrived over lane 2. So B's port of lane 2 was up when the keepalive arrived, and
//!    went down afterwards.
//! 3. A's port of lane 1 is down until A gives the lane up. So no later keepalive of B arrives over lane 1, and B does
//!    not give up lane 2.

use super::{PortNews, Recovery};
use crate::endpoint::Endpoint;
use crate::endpoint::queue::Work;
use crate::rail::Dest;

impl Recovery {
    /// A rail's port has gone down.
    pub fn port_went_down(&mut self, lane: usize) {
        self.outages[lane] += 1;
        self.port_news.push(PortNews::Down);
    }

    /// Notes that a keepalive has arrived which was sent because of an outage of another lane.
    pub fn keepalive_arrived(&mut self, dest: Dest, instead_of: u8, outage: u32) {
        self.port_news.push(PortNews::OtherLane { dest, instead_of, outage });
    }
}

impl Endpoint {
    #[cold]
    pub(in crate::endpoint) fn handle_port_events(&mut self) {
        for news in std::mem::take(&mut self.core.recovery.port_news) {
            match news {
                PortNews::Down => self.look_for_other_lanes(),
                PortNews::OtherLane { dest, instead_of, outage } => {
                    let lane = usize::from(instead_of);
                    if self.core.recovery.outages[lane] == outage
                        && let Some(fault) = self.rails[lane].port_down()
                    {
                        self.give_up_lane(dest, lane, &fault);
                    }
                }
            }
        }
    }

    /// Sends keepalives over the other lanes wherever a port is down. The endpoint calls it once a second, and when a
    /// port goes down.
    pub(in crate::endpoint) fn look_for_other_lanes(&mut self) {
        for lane in 0..self.rails.len() {
            if self.rails[lane].port_down().is_none() {
                continue;
            }
            for at in 0..self.core.addressed_dests() {
                let Some(dest) = self.core.addressed_dest(at) else { continue };
                let fails_over = self.core.lanes.failover(dest % self.core.profile.n_pes(), lane).is_some();
                if fails_over && self.core.lanes.each_to(dest).has(lane) && self.rails[lane].is_connected(dest) {
                    self.probe_others(dest, lane);
                }
            }
        }
    }

    fn probe_others(&mut self, dest: Dest, lane: usize) {
        let work = Work::Probe { instead_of: lane as u8, outage: self.core.recovery.outages[lane] };
        for other in self.core.lanes.each_to(dest).filter(|&other| other != lane) {
            if !self.is_probed(dest, other, lane) && self.may_talk_over(dest, other) {
                self.post_keepalive(work, dest, other);
            }
        }
    }

    /// Whether a keepalive for this outage of another lane is under way over `lane`.
    fn is_probed(&self, dest: Dest, lane: usize, instead_of: usize) -> bool {
        let core = &self.core;
        core.queue.all().any(|(_, request)| {
            let this = |of, outage| usize::from(of) == instead_of && outage == core.recovery.outages[instead_of];
            let probe = matches!(request.work, Work::Probe { instead_of, outage } if this(instead_of, outage));
            probe && request.dest == dest && usize::from(request.lane) == lane
        })
    }
}
