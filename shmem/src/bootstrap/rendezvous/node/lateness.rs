//! Time-outs of rounds. Each node knows which of its own PEs are missing, and asks its relays about theirs.
//!
//! The node whose deadline passes first begins, and reports to the node above it. So the root learns of all missing PEs
//! and decides: the job has failed, or the missing PEs are alive and the round's deadline is extended.

use std::sync::Arc;
use std::time::{Duration, Instant};

use symrail_transport::Pe;

use super::super::fault::{Fault, NAMED};
use super::super::plan::Role;
use super::super::wire::Kind;
use super::{Node, Output, PARENT, State};

/// How long a relay has to report its missing PEs, for each level of relays below it.
const ANSWER: Duration = Duration::from_millis(500);

/// A search for the missing PEs.
pub(super) struct Inquiry {
    /// When the search ends, even if answers are missing.
    pub until: Instant,
    /// The children that were asked and have not answered.
    asked: Vec<usize>,
    /// The answers of children.
    answers: Vec<(usize, Missing)>,
}

/// PEs that are missing. On the wire: whether all PEs that wait for them would wait longer · a fault.
#[derive(Debug, Clone, Default)]
struct Missing {
    extendable: bool,
    seconds: u64,
    /// Some of them.
    named: Vec<Pe>,
    count: u32,
}

impl Missing {
    fn add(&mut self, named: impl IntoIterator<Item = Pe>, count: usize) {
        let room = NAMED - self.named.len().min(NAMED);
        self.named.extend(named.into_iter().take(room));
        self.count = self.count.saturating_add(count as u32);
    }

    fn fault(&self) -> Fault {
        Fault::TimedOut { seconds: self.seconds, missing: self.named.clone(), count: self.count }
    }

    fn decode(payload: &[u8]) -> Option<Missing> {
        let (extendable, fault) = payload.split_first()?;
        match Fault::decode(fault)? {
            Fault::TimedOut { seconds, missing, count } => {
                Some(Missing { extendable: *extendable != 0, seconds, named: missing, count })
            }
            _ => None,
        }
    }
}

impl Node {
    pub(super) fn check_time(&mut self, now: Instant) {
        if let Some(inquiry) = &self.inquiry {
            if inquiry.until <= now {
                self.conclude(now);
            }
        } else if self.round.deadline().is_some_and(|due| due <= now) {
            self.inquire(now, None);
        }
    }

    /// Asks the relays whose PEs have not all contributed, except one that has reported by itself.
    fn inquire(&mut self, now: Instant, first: Option<(usize, Missing)>) {
        let mut asked = Vec::new();
        for (at, child) in self.children.iter().enumerate() {
            let knows = first.as_ref().is_some_and(|(known, _)| *known == at);
            if let (State::Here(link), false, false) = (child.state, child.role == Role::Pe, knows)
                && !self.round.has(&child.pes)
            {
                asked.push(at);
                self.out.push_back(Output::Send(link, Kind::Ask, Arc::from([])));
            }
        }
        let until = now + ANSWER * self.height;
        self.inquiry = Some(Inquiry { until, asked, answers: first.into_iter().collect() });
        self.conclude_if_answered(now);
    }

    /// The node above asks which PEs are missing here.
    pub(super) fn asked(&mut self, now: Instant) {
        // If none is missing, the contributions are on their way already.
        if self.inquiry.is_none() && !self.passed_on && self.failure.is_none() {
            self.inquire(now, None);
        }
    }

    /// A relay has reported which of its PEs are missing.
    pub(super) fn add_missing(&mut self, at: usize, payload: &[u8], now: Instant) {
        let Some(missing) = Missing::decode(payload) else { return };
        if self.failure.is_some() || self.round.has(&self.children[at].pes) {
            return;
        }
        match &mut self.inquiry {
            Some(inquiry) => {
                inquiry.asked.retain(|asked| *asked != at);
                inquiry.answers.retain(|(child, _)| *child != at);
                inquiry.answers.push((at, missing));
                self.conclude_if_answered(now);
            }
            None => self.inquire(now, Some((at, missing))),
        }
    }

    /// A child has contributed. If that completes its PEs, the search no longer waits for its answer.
    pub(super) fn no_longer_missing(&mut self, at: usize, now: Instant) {
        let complete = self.round.has(&self.children[at].pes);
        if let Some(inquiry) = self.inquiry.as_mut().filter(|_| complete) {
            inquiry.asked.retain(|asked| *asked != at);
            self.conclude_if_answered(now);
        }
    }

    fn conclude_if_answered(&mut self, now: Instant) {
        if self.inquiry.as_ref().is_some_and(|inquiry| inquiry.asked.is_empty()) {
            self.conclude(now);
        }
    }

    fn conclude(&mut self, now: Instant) {
        let Some(inquiry) = self.inquiry.take() else { return };
        let missing = self.missing(&inquiry);
        self.round.extend(now);
        if !self.is_root() {
            let payload = [&[u8::from(missing.extendable)][..], &missing.fault().encode()].concat();
            return self.send(PARENT, Kind::Missing, &Arc::from(payload));
        }
        let payload = Arc::from(missing.fault().encode());
        if self.config.watched && missing.extendable { self.send_late(&payload) } else { self.fail(&payload) }
    }

    fn missing(&self, inquiry: &Inquiry) -> Missing {
        let (extendable, seconds) = (self.round.is_extendable(), self.round.seconds());
        let mut all = Missing { extendable, seconds, ..Missing::default() };
        for (at, child) in self.children.iter().enumerate().filter(|(_, child)| !self.round.has(&child.pes)) {
            let answer = inquiry.answers.iter().find(|(of, _)| *of == at);
            match (answer, child.state) {
                (Some((_, missing)), _) => {
                    all.add(missing.named.iter().copied(), missing.count as usize);
                    all.extendable &= missing.extendable;
                    all.seconds = all.seconds.max(missing.seconds);
                }
                // Only this is known: the relay does not answer.
                (None, State::Here(_)) => all.add([child.pes.start], 1),
                (None, _) => {
                    let absent = || child.pes.clone().filter(|pe| !self.early.contains_key(&(*pe, false)));
                    all.add(absent(), absent().count());
                }
            }
        }
        all
    }

    /// Sends the children that wait the list of late PEs. All of these are alive: a fault would have reported a PE that
    /// had ended or left.
    fn send_late(&mut self, late: &Arc<[u8]>) {
        for child in &self.children {
            // A relay knows which of its PEs wait.
            let waits = self.passed_on || child.role != Role::Pe || self.round.has(&child.pes);
            if let State::Here(link) = child.state
                && waits
            {
                self.out.push_back(Output::Send(link, Kind::Late, Arc::clone(late)));
            }
        }
    }

    /// The root has decided to extend the wait.
    pub(super) fn report_late(&mut self, late: &Arc<[u8]>, now: Instant) {
        self.round.extend(now);
        self.send_late(late);
    }
}
