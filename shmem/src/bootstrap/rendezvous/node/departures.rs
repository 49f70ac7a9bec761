//! PEs that leave, die or abort, and how the other PEs learn of it.
//!
//! A relay reports everything to the node above it, and passes down what comes back from there. So all PEs get the same
//! reports, and the first fault at the root is the fault of the whole job.

use std::sync::Arc;
use std::time::Instant;

use symrail_transport::Pe;

use super::super::fault::{self, Fault};
use super::super::plan::Role;
use super::super::round::Round;
use super::super::wire::{FINISHED, Kind};
use super::{Child, Event, Link, NEWS_EVERY, Node, Output, PARENT, State};

impl Child {
    /// The fault that other PEs get about a PE that takes part in no further step.
    fn fault(&self) -> Option<Fault> {
        let peer = self.pes.start;
        match self.state {
            State::Left(_) => Some(Fault::Left { peer }),
            State::Ended => Some(Fault::Ended { peer }),
            State::Lost => Some(Fault::Lost { peer }),
            State::Absent | State::Here(_) => None,
        }
    }
}

impl Node {
    /// The driver lost a connection. That is a loss of the PE only if it had not announced that it was done.
    pub fn lost(&mut self, link: Link, now: Instant) {
        if link == PARENT {
            self.lose_parent();
        } else {
            self.lose(link);
        }
        self.spread_news(now);
    }

    /// A connection's frames were changed on the way. Its PE gets that fault, and counts as lost for the others.
    pub fn distrusted(&mut self, link: Link, why: &str, now: Instant) {
        let pe = self.links.get(&link).map(|&at| &self.children[at]).filter(|child| child.role == Role::Pe);
        let Some(peer) = pe.map(|child| child.pes.start) else { return self.lost(link, now) };
        let fault = Fault::Untrusted { peer, why: why.to_owned() };
        self.lose_as(link, fault.clone());
        self.refuse(link, &fault);
        self.spread_news(now);
    }

    /// The launcher reports that a PE's process has ended. This matters only for PEs that never joined; the loss of
    /// others shows on their connections.
    pub fn ended(&mut self, pe: Pe, now: Instant) {
        self.ended.push(pe);
        let at = self.child_of(pe).filter(|&at| self.children[at].role == Role::Pe);
        if let Some(at) = at.filter(|&at| self.children[at].state == State::Absent) {
            self.children[at].state = State::Ended;
            self.out.push_back(Output::Tell(Event::Left(pe)));
            if !self.is_root() {
                self.news.push(Fault::Ended { peer: pe });
            }
            self.after_departure();
        }
        self.spread_news(now);
    }

    pub(super) fn leave(&mut self, at: usize, finished: bool) {
        let child = &mut self.children[at];
        let State::Here(link) = child.state else { return };
        child.state = State::Left((child.role == Role::Agent).then_some(link));
        if child.role != Role::Agent {
            self.links.remove(&link);
        }
        if child.role == Role::Pe {
            let pe = child.pes.start;
            self.out.push_back(Output::Tell(Event::Left(pe)));
            if !finished {
                self.report(Fault::Left { peer: pe });
            }
        }
        self.after_departure();
    }

    fn after_departure(&mut self) {
        self.check_departed();
        if !self.children.iter().all(|child| matches!(child.state, State::Left(_) | State::Ended)) {
            return;
        }
        if self.is_root() {
            self.start_over();
        } else {
            self.send(PARENT, Kind::Bye, &Arc::from(FINISHED));
            if self.config.relay.as_ref().is_some_and(|place| place.run_by.is_some()) {
                // PEs that join again will use another relay.
                let early = std::mem::take(&mut self.early).into_values();
                self.out.extend(early.map(|(link, _)| Output::Close(link)));
            }
        }
    }

    /// Breaks the job if a PE that has departed is missing from a round: such a round can never complete.
    pub(super) fn check_departed(&mut self) {
        let departed = || self.children.iter().find_map(Child::fault).or_else(|| self.departed.clone());
        if self.round.waiting()
            && !self.broken()
            && let Some(fault) = departed()
        {
            self.break_by(&fault);
        }
    }

    pub(super) fn lose(&mut self, link: Link) {
        let Some(&at) = self.links.get(&link) else {
            return self.early.retain(|_, (early, _)| *early != link);
        };
        let peer = self.children[at].pes.start;
        self.lose_as(link, Fault::Lost { peer });
        self.out.push_back(Output::Close(link));
    }

    fn lose_as(&mut self, link: Link, fault: Fault) {
        let Some(at) = self.links.remove(&link) else { return };
        let child = &mut self.children[at];
        if child.state == State::Left(Some(link)) {
            child.state = State::Left(None);
            return;
        }
        child.state = State::Lost;
        if child.role == Role::Pe {
            tracing::debug!(pe = child.pes.start, "rendezvous: lost a PE");
        }
        self.report(fault);
    }

    /// The node above is lost, and with it all PEs that are not below this node.
    pub(super) fn lose_parent(&mut self) {
        self.orphaned = true;
        let parent = self.config.relay.as_ref().and_then(|place| place.parent_run_by);
        let fault = parent.map_or(Fault::NoService, |peer| Fault::Lost { peer });
        self.fail(&Arc::from(fault.encode()));
    }

    /// Handles a departure, seen here or reported by a relay.
    pub(super) fn report(&mut self, fault: Fault) {
        if let (Fault::Left { .. } | Fault::Ended { .. }, true) = (&fault, self.departed.is_none()) {
            self.departed = Some(fault.clone());
        }
        let event = self.event(&fault);
        match &fault {
            Fault::Left { .. } => self.news.push(fault),
            Fault::Ended { .. } => {}
            _ if self.broken() => self.news.extend(fault.names_lost_pe().then_some(fault)),
            _ => self.break_by(&fault),
        }
        // Behind `Event::Broken`, which may bear on what the owner makes of it.
        self.out.extend(event.map(Output::Tell));
        self.check_departed();
    }

    /// The event for the owner about a fault.
    fn event(&self, fault: &Fault) -> Option<Event> {
        match fault {
            Fault::Lost { peer } | Fault::Untrusted { peer, .. } => Some(Event::Lost(*peer)),
            Fault::Left { peer } if self.present() > 0 => Some(Event::LeftEarly(*peer)),
            Fault::Aborted { peer, code, why } => Some(Event::Aborted { pe: *peer, code: *code, why: why.clone() }),
            _ => None,
        }
    }

    /// Breaks the job: the root at once, other nodes through the root.
    pub(super) fn break_by(&mut self, fault: &Fault) {
        let payload = Arc::from(fault.encode());
        if self.is_root() {
            self.fail(&payload);
        } else {
            self.reported_up = true;
            self.send(PARENT, Kind::Fault, &payload);
        }
    }

    /// Whether the job is broken, or will be when this node's fault reaches the root.
    pub(super) fn broken(&self) -> bool {
        self.failure.is_some() || self.reported_up
    }

    /// Records that the job is broken, and sends the fault to all children, once.
    pub(super) fn fail(&mut self, fault: &Arc<[u8]>) {
        if self.failure.is_some() {
            return;
        }
        self.out.push_back(Output::Tell(Event::Broken));
        self.send_to_children(Kind::Fault, fault);
        // Newcomers that wait for a place have nothing to wait for now.
        for (link, _) in std::mem::take(&mut self.early).into_values() {
            self.send_last(link, fault);
        }
        self.failure = Some(Arc::clone(fault));
        self.round = Round::first(self.pes.clone());
        (self.passed_on, self.inquiry) = (false, None);
    }

    /// Sends news of lost PEs to the others, several PEs at a time: up to the root, which spreads it; a node without a
    /// parent sends it to its own children.
    pub(super) fn spread_news(&mut self, now: Instant) {
        if self.news.is_empty() || self.news_at.is_some_and(|at| now < at) {
            return;
        }
        let payload = Arc::from(fault::encode_all(&std::mem::take(&mut self.news)));
        self.news_at = Some(now + NEWS_EVERY);
        if self.is_root() || self.orphaned {
            self.send_to_children(Kind::LostPes, &payload);
        } else {
            self.send(PARENT, Kind::LostPes, &payload);
        }
    }
}
