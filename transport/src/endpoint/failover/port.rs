//! Ports that are down: when that is a reason to give up the connections over them.
//!
//! A connection survives when its port is up again before the NIC stops trying. To give it up is therefore right only
//! while there is another lane for its work, and no port tells that: the other end's may be down, too. So wherever a
//! port is down here, a keepalive is sent over each other lane, and the connection is given up when one of them has
//! arrived, if the port has been down all the time between.
//!
//! So the last lane that works is kept, whatever the two ends see, and in whichever order. If each gave up what the
//! other keeps, then one did so first, by a sign over the lane that the other gave up later; that port was up when the
//! sign arrived, went down behind it, and from then on the other end could have its sign only over a lane that was
//! given up by then.

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

    /// A keepalive has arrived that was sent because of an outage of another lane.
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

    /// Wherever a port is down, sends keepalives over other lanes. Once a second, and when one goes down.
    pub(in crate::endpoint) fn look_for_other_lanes(&mut self) {
        for lane in 0..self.rails.len() {
            if self.rails[lane].port_down().is_none() {
                continue;
            }
            for at in 0.. {
                let Some(dest) = self.core.addressed_dest(at) else { break };
                let fails_over = self.core.lanes.failover(dest % self.core.profile.n_pes(), lane).is_some();
                if fails_over && lane < self.core.lanes.count_to(dest) && self.rails[lane].is_connected(dest) {
                    self.probe_others(dest, lane);
                }
            }
        }
    }

    fn probe_others(&mut self, dest: Dest, lane: usize) {
        let work = Work::Probe { instead_of: lane as u8, outage: self.core.recovery.outages[lane] };
        for other in (0..self.core.lanes.count_to(dest)).filter(|&other| other != lane) {
            if !self.is_probed(dest, other, lane) && self.may_talk_over(dest, other) {
                self.post_keepalive(work, dest, other);
            }
        }
    }

    /// Whether a keepalive is under way over `lane` on account of this outage of another.
    fn is_probed(&self, dest: Dest, lane: usize, instead_of: usize) -> bool {
        let core = &self.core;
        core.queue.all().any(|(_, request)| {
            let this = |of, outage| usize::from(of) == instead_of && outage == core.recovery.outages[instead_of];
            let probe = matches!(request.work, Work::Probe { instead_of, outage } if this(instead_of, outage));
            probe && request.dest == dest && usize::from(request.lane) == lane
        })
    }
}
