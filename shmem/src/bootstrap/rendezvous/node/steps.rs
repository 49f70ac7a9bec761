//! Contributions up, results down.

use std::sync::Arc;
use std::time::Instant;

use super::super::round::Contribution;
use super::super::wire::Kind;
use super::{Link, Node, PARENT};

impl Node {
    /// A child has sent the contributions of some or all of its PEs.
    pub(super) fn contributed(&mut self, link: Link, at: usize, payload: &Arc<[u8]>, now: Instant) {
        let Some(contribution) = Contribution::decode(payload, &self.children[at].pes) else {
            return self.lose(link);
        };
        if self.failure.is_some() {
            return;
        }
        match self.round.add(contribution, now) {
            Ok(true) => self.complete(now),
            Ok(false) => {
                self.check_departed();
                self.no_longer_missing(at, now);
            }
            Err(fault) => self.report(fault),
        }
    }

    /// All of this node's PEs have contributed, so all of them are connected.
    fn complete(&mut self, now: Instant) {
        self.inquiry = None;
        if self.is_root() {
            let payloads = self.round.conclude();
            payloads.iter().for_each(|payload| self.send_to_children(Kind::Result, payload));
        } else {
            self.passed_on = true;
            let payloads = self.round.pass_on(now);
            payloads.iter().for_each(|payload| self.send(PARENT, Kind::Contribute, payload));
        }
    }
}
