//! Newcomers: admitted, redirected, made to run a relay, or kept waiting.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use symrail_transport::Pe;

use super::super::super::MAX_PES;
use super::super::fault::Fault;
use super::super::plan::{Role, Shape};
use super::super::round::Round;
use super::super::socket::Address;
use super::super::wire::Kind;
use super::{Event, Link, Node, Output, State};

/// A peer that has proven that it knows the job's secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Newcomer {
    /// The PE, or for a relay the first of its PEs.
    pub pe: Pe,
    /// The job's size, as the newcomer claims it.
    pub n_pes: u32,
    /// The address where a relay listens.
    pub relay: Option<Address>,
}

impl Node {
    /// A connection has passed authentication.
    pub fn joined(&mut self, link: Link, newcomer: Newcomer, now: Instant) {
        self.join(link, newcomer);
        self.spread_news(now);
    }

    fn join(&mut self, link: Link, newcomer: Newcomer) {
        let Newcomer { pe, n_pes, .. } = newcomer;
        if self.n_pes == 0 && n_pes <= MAX_PES {
            self.resize(n_pes);
            self.sized_by = Some(pe);
        }
        if n_pes != self.n_pes {
            // The job can never be complete, so all PEs get this fault, not only the one that differs.
            let fault = Fault::Size { peer: pe, n_pes, other: self.sized_by, other_n_pes: self.n_pes };
            self.refuse(link, &fault);
            return self.report(fault);
        }
        if let Some(fault) = self.failure.clone() {
            return self.send_last(link, &fault);
        }
        self.find_place(link, newcomer);
    }

    fn find_place(&mut self, link: Link, newcomer: Newcomer) {
        let Newcomer { pe, n_pes, relay } = newcomer;
        let Some(at) = self.child_of(pe) else {
            if pe >= n_pes {
                return self.refuse(link, &Fault::NoSuchPe { peer: pe, n_pes });
            }
            // The newcomer has reached a relay of an earlier job. It tries again from the root.
            return self.out.push_back(Output::Close(link));
        };
        let child = &self.children[at];
        let is_child = pe == child.pes.start && relay.is_some() == (child.role != Role::Pe);
        match (child.state, child.role) {
            (State::Absent, _) if is_child => self.admit(link, at, relay),
            (State::Here(_), Role::Relay | Role::Agent) if !is_child => self.send_on(link, at),
            (State::Absent, Role::Relay) if pe == child.pes.start && relay.is_none() => self.make_relay(link, at),
            (State::Absent, Role::Relay | Role::Agent) => {
                let awaited = Fault::timed_out(0, &[child.pes.start]).encode();
                if self.wait(link, newcomer) {
                    self.send(link, Kind::Late, &Arc::from(awaited));
                }
            }
            // All PEs will soon learn of a relay that is lost.
            (State::Left(_), _) | (State::Lost, Role::Relay | Role::Agent) => drop(self.wait(link, newcomer)),
            _ => self.refuse(link, &Fault::Duplicate { peer: pe }),
        }
    }

    fn admit(&mut self, link: Link, at: usize, address: Option<Address>) {
        let child = &mut self.children[at];
        (child.state, child.address) = (State::Here(link), address);
        self.links.insert(link, at);
        if child.role == Role::Pe {
            let pe = child.pes.start;
            self.out.push_back(Output::Tell(Event::Joined(pe)));
        }
        let run_by = self.config.relay.as_ref().and_then(|place| place.run_by);
        self.send(link, Kind::Welcome, &run_by.map_or_else(|| Arc::from([]), |pe| Arc::from(pe.to_le_bytes())));
        if address.is_some() {
            self.find_places(&self.children[at].pes.clone());
        }
    }

    /// Redirects the PE to the relay that serves it.
    fn send_on(&mut self, link: Link, at: usize) {
        if let Some(address) = self.children[at].address {
            self.send(link, Kind::Redirect, &Arc::from(Address::encode(Some(address))));
        }
        self.out.push_back(Output::Close(link));
    }

    /// Makes this PE run the relay whose first PE it is.
    fn make_relay(&mut self, link: Link, at: usize) {
        let Shape::FanOut(fan_out) = self.config.shape else { return };
        let pes = &self.children[at].pes;
        let words = [pes.start, pes.end, fan_out].map(u32::to_le_bytes).concat();
        self.send(link, Kind::Serve, &Arc::from(words));
        self.out.push_back(Output::Close(link));
    }

    /// Keeps a newcomer until there is a place for it. Refuses it if another one with its number waits already.
    fn wait(&mut self, link: Link, newcomer: Newcomer) -> bool {
        let key = (newcomer.pe, newcomer.relay.is_some());
        let free = !self.early.contains_key(&key);
        if free {
            self.early.insert(key, (link, newcomer));
        } else {
            self.refuse(link, &Fault::Duplicate { peer: newcomer.pe });
        }
        free
    }

    /// Finds places for waiting newcomers among these PEs.
    fn find_places(&mut self, pes: &Range<Pe>) {
        let mut early = self.early.split_off(&(pes.start, false));
        self.early.append(&mut early.split_off(&(pes.end, false)));
        for (link, newcomer) in early.into_values() {
            self.find_place(link, newcomer);
        }
    }

    pub(super) fn refuse(&mut self, link: Link, fault: &Fault) {
        self.send_last(link, &Arc::from(fault.encode()));
    }

    /// All PEs have finalized. The same processes may initialize again, as the same PEs.
    pub(super) fn start_over(&mut self) {
        self.round = Round::first(self.pes.clone());
        (self.passed_on, self.inquiry, self.departed) = (false, None, None);
        self.news.clear();
        let mut again = Vec::new();
        for child in &mut self.children {
            child.state = match child.state {
                _ if child.role == Role::Pe && self.ended.contains(&child.pes.start) => {
                    self.news.extend(self.config.relay.is_some().then_some(Fault::Ended { peer: child.pes.start }));
                    State::Ended
                }
                State::Left(Some(link)) => {
                    again.push(link);
                    State::Here(link)
                }
                _ => State::Absent,
            };
        }
        again.into_iter().for_each(|link| self.send(link, Kind::Welcome, &Arc::from([])));
        self.find_places(&self.pes.clone());
    }
}
