//! A PE's own end of joining: which node admits it, what it contributes, and when it gives up.

use std::time::Duration;

use symrail::Pe;
use symrail::bootstrap::Step;
use symrail::bootstrap::rendezvous::node::{Config, Link, Node, PARENT, Place};
use symrail::bootstrap::rendezvous::{Address, Contribution, Kind, Shape, fault_in_words};

use super::{Message, Relay, World, receives};
use crate::random::Random;

/// Bytes of a PE's contribution to each step, and how many of them differ from all other PEs', as with one rail over
/// TCP and a host for each PE; the last step is a barrier.
const STEPS: [(usize, usize); 4] = [(83, 4), (145, 36), (1, 0), (0, 0)];

impl World<'_> {
    /// A relay listens once it is admitted; then its PE continues.
    pub(super) fn relay_receives(&mut self, pe: Pe, message: &Message) {
        if self.nodes.contains_key(&pe) {
            return self.of_node(pe, |node, now| receives(node, PARENT, message, now));
        }
        match message {
            Message::Frame(Kind::Welcome, payload) => {
                let parent_run_by = payload.first_chunk().map(|bytes| Pe::from_le_bytes(*bytes));
                let Some(Relay { pes, fan_out, .. }) = self.processes[pe as usize].relay.clone() else { return };
                let place = Place { pes, run_by: Some(pe), parent_run_by };
                let (n_pes, shape) = (Some(self.options.pes), Shape::FanOut(fan_out));
                self.nodes.insert(pe, Node::new(Config { n_pes, relay: Some(place), shape, watched: false }));
                self.report.relays += 1;
                for (connection, newcomer) in self.early.remove(&pe).unwrap_or_default() {
                    self.of_node(pe, |node, now| node.joined(connection as Link + 1, newcomer, now));
                }
                self.dial(pe, pe, None);
            }
            Message::Frame(Kind::Fault, payload) => self.give_up(pe, fault_in_words(pe, payload)),
            Message::Closed => self.give_up(pe, None),
            _ => {}
        }
    }

    pub(super) fn pe_receives(&mut self, pe: Pe, message: Message) {
        if self.processes[pe as usize].ended.is_some() {
            return;
        }
        match message {
            Message::Frame(Kind::Welcome, _) => {
                self.processes[pe as usize].welcome = true;
                self.contribute(pe);
            }
            Message::Frame(Kind::Late, payload) => self.processes[pe as usize].awaited = fault_in_words(pe, &payload),
            Message::Frame(Kind::Redirect, address) => {
                let of_relay = match Address::decode(&address) {
                    Some(Address::Unix(pe)) => Pe::try_from(pe).ok(),
                    _ => None,
                };
                self.dial(of_relay.unwrap_or(self.root()), pe, None);
            }
            Message::Frame(Kind::Serve, payload) => {
                let word =
                    |at: usize| payload.get(at..at + 4).and_then(|it| it.try_into().ok()).map(u32::from_le_bytes);
                let (Some(start), Some(end), Some(fan_out)) = (word(0), word(4), word(8)) else { return };
                let at_node = self.processes[pe as usize].own.map_or(self.root(), |own| self.connections[own].node);
                self.processes[pe as usize].own = None;
                self.processes[pe as usize].relay =
                    Some(Relay { parent: self.connections.len(), pes: start..end, fan_out });
                self.dial(at_node, pe, Some(Address::Unix(pe.into())));
            }
            Message::Frame(Kind::Result, _) => {
                self.processes[pe as usize].results += 1;
                if self.processes[pe as usize].results < STEPS.len() {
                    return self.contribute(pe);
                }
                let at = self.processes[pe as usize].busy_until;
                self.processes[pe as usize].ended = Some((at, None));
            }
            Message::Frame(Kind::Fault, payload) => self.give_up(pe, fault_in_words(pe, &payload)),
            Message::Closed => self.give_up(pe, None),
            Message::Frame(..) | Message::Hello(_) => {}
        }
    }

    /// A PE that has not been admitted by now gives up. The nodes of admitted PEs watch the time themselves.
    pub(super) fn time_is_up(&mut self, pe: Pe) {
        let now = self.now;
        let process = &mut self.processes[pe as usize];
        process.busy_until = now.max(process.busy_until);
        if !process.dead && !process.welcome {
            let awaited = process.awaited.take();
            self.give_up(pe, awaited);
        }
    }

    /// A PE that is cut off names the PE that ran its node.
    fn give_up(&mut self, pe: Pe, why: Option<String>) {
        let node = self.processes[pe as usize].own.map(|own| self.connections[own].node);
        let cut_off = || node.map_or_else(|| "cut off".into(), |node| format!("PE {pe}: PE {node} was lost"));
        let at = self.processes[pe as usize].busy_until;
        self.processes[pe as usize].ended.get_or_insert_with(|| (at, Some(why.unwrap_or_else(cut_off))));
    }

    fn contribute(&mut self, pe: Pe) {
        let number = self.processes[pe as usize].results;
        let (bytes, own) = STEPS[number];
        let mut random = Random::new((u64::from(pe) << 8) + number as u64);
        let mut row = vec![7; bytes];
        row[..own].iter_mut().for_each(|byte| *byte = random.below(256) as u8);
        let at = number as u64 + 1;
        let step = if bytes == 0 { Step::Barrier(at) } else { Step::Allgather(at) };
        let timeout = Duration::from_secs(self.options.timeout_s);
        let contribution = Contribution { step, timeout, left: timeout, extendable: false, first: pe, rows: vec![row] };
        let Some(own) = self.processes[pe as usize].own else { return };
        for payload in contribution.encode() {
            self.send(own, true, Message::Frame(Kind::Contribute, payload), 1);
        }
    }
}
