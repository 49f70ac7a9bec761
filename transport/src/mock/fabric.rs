//! What is under way, and what becomes of it.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use crate::amo::{self, AmoOp, AmoType};
use crate::error::{Fault, Result};
use crate::rail::{OpId, Rail};

use super::config::FabricConfig;
use super::connections::Link;
use super::rail::MockRail;

/// What a rail has to be told when it is polled.
pub(super) enum Report {
    Done(OpId),
    Failed(OpId, Fault),
    Message(Vec<u8>),
    Immediate(u64),
    Broken(Fault),
    PortDown,
}

/// What becomes of something that travels.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    Delivered,
    /// It arrives, but who sent it is told that it failed.
    Unacknowledged,
    Lost,
}

/// What is said of a rail that is down.
pub(super) fn path_fault() -> Fault {
    Fault { code: 104, text: "the mock fabric has taken the rail down".into(), retryable: true }
}

/// What is said of a rail whose cable is out.
pub(super) fn port_fault() -> Fault {
    Fault { code: 100, text: "the mock fabric has pulled out the cable".into(), retryable: true }
}

/// One thing that travels.
pub(super) enum Cargo {
    /// Bytes for addresses, and the immediate that follows them.
    Write { parts: Vec<(usize, Vec<u8>)>, immediate: Option<u64> },
    /// A read: from addresses there to others here, so many bytes each.
    Read(Vec<(usize, usize, usize)>),
    /// An atomic on an address, whose old value goes to one here unless that is 0.
    Amo { at: usize, ty: AmoType, op: AmoOp, operand: u64, compare: u64, old_to: usize },
    /// A message.
    Message(Vec<u8>),
}

pub(super) struct Flight {
    pub cargo: Cargo,
    pub from: usize,
    pub to: usize,
    pub id: Option<OpId>,
}

pub(super) struct State {
    random: u64,
    pub config: FabricConfig,
    /// Per rail: what it has to be told.
    pub reports: Vec<VecDeque<Report>>,
    /// Per rail: work requests outstanding.
    pub outstanding: Vec<usize>,
    /// In the order of posting; connections are told apart by their ends.
    pub flights: VecDeque<Flight>,
    /// Registered memory: owner, key, base, length.
    pub memory: Vec<(usize, u64, usize, usize)>,
    /// Rails that do not work.
    pub down: Vec<bool>,
    /// Rails through whose ports nothing passes, so that what travels waits.
    pub pulled_out: Vec<bool>,
    /// Connections over which something has arrived, by their ends, the smaller first.
    pub connections: BTreeSet<(usize, usize)>,
    /// Ends that have had a message over a connection, and the other ends.
    pub greeted: BTreeSet<(usize, usize)>,
    /// Ends of connections that believe in them, and the other ends, which do not.
    pub half_open: BTreeSet<(usize, usize)>,
    /// Ends of connections that have been cut at least once, with the other ends.
    pub links: HashMap<(usize, usize), Link>,
    /// The rail whose next write is refused, as a queue pair does it: nothing behind it arrives.
    refuses: Option<usize>,
    /// The rail over which each word's atomics come.
    atomic_words: HashMap<usize, usize>,
    /// How often writes and reads were posted, those together that wait for one another.
    pub doorbells: u64,
}

impl State {
    /// The next number of the seeded sequence (SplitMix64).
    pub fn next(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn chance(&mut self, of_256: u8) -> bool {
        (self.next() & 0xff) < u64::from(of_256)
    }

    /// Whether `later` may be delivered while `earlier`, of the same connection, is still under way.
    fn may_pass(&self, later: &Cargo, earlier: &Cargo) -> bool {
        let order = self.config.order;
        match (later, earlier) {
            (Cargo::Write { .. }, Cargo::Write { .. }) => !order.write_after_write,
            (Cargo::Write { .. }, Cargo::Amo { .. }) => !order.write_after_write,
            (Cargo::Amo { .. }, Cargo::Write { .. } | Cargo::Amo { .. }) => !order.amo_after_write,
            (Cargo::Message(_), Cargo::Write { .. } | Cargo::Amo { .. }) => !order.send_after_write,
            (Cargo::Message(_), Cargo::Message(_)) => !order.send_after_send,
            // Nothing is promised about reads, and a write does not wait for messages.
            _ => true,
        }
    }

    /// Moves what it pleases to move.
    pub fn step(&mut self) {
        let mut at = 0;
        while at < self.flights.len() {
            let passes = |earlier: &Flight, flight: &Flight| {
                (earlier.from, earlier.to) != (flight.from, flight.to) || self.may_pass(&flight.cargo, &earlier.cargo)
            };
            let free = self.flights.range(..at).all(|earlier| passes(earlier, &self.flights[at]));
            let Flight { from, to, .. } = self.flights[at];
            if !free || self.is_pulled_out(from, to) || self.chance(self.config.delay) {
                at += 1;
                continue;
            }
            let fate = if self.is_joined(from, to) { Fate::Delivered } else { Fate::Lost };
            if let Some(flight) = self.flights.remove(at) {
                self.deliver(flight, fate);
            }
        }
    }

    /// What a poll of a rail finds: often not all that there is.
    pub fn some_reports(&mut self, rail: usize) -> VecDeque<Report> {
        let (random, waiting) = (self.next() as usize, &mut self.reports[rail]);
        let rest = waiting.split_off(if random & 1 == 0 { waiting.len() } else { (random >> 1) % (waiting.len() + 1) });
        std::mem::replace(waiting, rest)
    }

    /// Posts something that travels, as far as both ends work. A connection that has failed stays so until its owner
    /// knows: else what is posted behind a lost write would arrive without it.
    pub fn depart(&mut self, flight: Flight) {
        let unknown = self.reports[flight.from].iter().any(|r| matches!(r, Report::Failed(_, f) if f.retryable));
        let believed = self.half_open.remove(&(flight.from, flight.to));
        let refused = self.down[flight.to] || !self.is_joined(flight.from, flight.to);
        // Who gets no answer goes on trying.
        if unknown || believed || refused && !self.is_pulled_out(flight.from, flight.to) {
            self.deliver(flight, Fate::Lost);
        } else {
            self.flights.push_back(flight);
        }
    }

    /// Reports a write that has left, whatever becomes of it.
    pub fn report_left(&mut self, rail: usize, id: OpId) {
        self.reports[rail].push_back(Report::Done(id));
    }

    pub fn deliver(&mut self, mut flight: Flight, fate: Fate) {
        if flight.id.is_some() || !matches!(flight.cargo, Cargo::Message(_)) {
            self.outstanding[flight.from] = self.outstanding[flight.from].saturating_sub(1);
        }
        if fate != Fate::Delivered {
            match flight.id.take() {
                Some(id) => self.reports[flight.from].push_back(Report::Failed(id, path_fault())),
                None if self.chance(64) => self.reports[flight.from].push_back(Report::Broken(path_fault())),
                None => {}
            }
            if fate == Fate::Lost {
                return;
            }
        }
        self.connections.insert((flight.from.min(flight.to), flight.from.max(flight.to)));
        if let Some(id) = flight.id
            && self.chance(self.config.fail)
        {
            let fault = Fault { code: 5, text: "the mock fabric failed it on purpose".into(), retryable: false };
            self.reports[flight.from].push_back(Report::Failed(id, fault));
            return;
        }
        if self.refuses == Some(flight.from)
            && let (Cargo::Write { .. }, Some(id)) = (&flight.cargo, flight.id)
        {
            self.refuses = None;
            let fault = Fault { code: 13, text: "the mock fabric refuses it".into(), retryable: false };
            self.reports[flight.from].push_back(Report::Failed(id, fault));
            let flights = std::mem::take(&mut self.flights);
            let (behind, rest): (VecDeque<_>, _) = flights.into_iter().partition(|f| f.from == flight.from);
            self.flights = rest;
            return behind.into_iter().for_each(|flight| self.deliver(flight, Fate::Lost));
        }
        match flight.cargo {
            Cargo::Write { parts, immediate } => {
                for (to, bytes) in parts {
                    // SAFETY: the address was checked against registered memory when the write was posted.
                    unsafe { std::ptr::with_exposed_provenance_mut::<u8>(to).copy_from(bytes.as_ptr(), bytes.len()) };
                }
                if let Some(immediate) = immediate {
                    self.reports[flight.to].push_back(Report::Immediate(immediate));
                }
            }
            Cargo::Read(parts) => {
                for (from, to, len) in parts {
                    let (from, to) =
                        (std::ptr::with_exposed_provenance(from), std::ptr::with_exposed_provenance_mut::<u8>(to));
                    // SAFETY: the source was checked as above; the poster vouches for the destination until the
                    // completion.
                    unsafe { to.copy_from(from, len) };
                }
            }
            Cargo::Amo { at, ty, op, operand, compare, old_to } => {
                if *self.atomic_words.entry(at).or_insert(flight.to) != flight.to {
                    let text = "atomics of two rails on one word".into();
                    let report = flight.id.map(|id| Report::Failed(id, Fault { code: 1, text, retryable: false }));
                    return self.reports[flight.from].extend(report);
                }
                let word = std::ptr::with_exposed_provenance_mut::<u8>(at);
                // SAFETY: the address was checked as above, alignment included.
                let old = unsafe { amo::apply(word, ty, op, operand, compare) };
                if old_to != 0 {
                    // SAFETY: the poster vouches for the place until the completion.
                    unsafe { std::ptr::with_exposed_provenance_mut::<u64>(old_to).write_unaligned(old) };
                }
            }
            Cargo::Message(bytes) => {
                self.greeted.insert((flight.to, flight.from));
                self.reports[flight.to].push_back(Report::Message(bytes));
            }
        }
        if let Some(id) = flight.id {
            self.reports[flight.from].push_back(Report::Done(id));
            if self.chance(self.config.repeat) {
                self.reports[flight.from].push_back(Report::Done(id));
            }
        }
    }

    /// The address that `len` bytes at `address` of `owner`'s registration `key` have, if they are inside of it.
    pub fn find(&self, owner: usize, key: u64, address: u64, len: usize) -> Option<usize> {
        let &(_, _, base, size) = self.memory.iter().find(|m| m.0 == owner && m.1 == key)?;
        let offset = usize::try_from(address).ok()?;
        (offset.checked_add(len)? <= size).then_some(base + offset)
    }
}

/// A fabric. Clones are the same one.
#[derive(Clone)]
pub struct Fabric(Arc<Mutex<State>>);

impl Fabric {
    /// A fabric whose every decision follows from `seed`.
    #[must_use]
    pub fn new(seed: u64, config: FabricConfig) -> Self {
        Fabric(Arc::new(Mutex::new(State {
            random: seed,
            config,
            reports: Vec::new(),
            outstanding: Vec::new(),
            flights: VecDeque::new(),
            memory: Vec::new(),
            down: Vec::new(),
            pulled_out: Vec::new(),
            connections: BTreeSet::new(),
            greeted: BTreeSet::new(),
            half_open: BTreeSet::new(),
            links: HashMap::new(),
            refuses: None,
            atomic_words: HashMap::new(),
            doorbells: 0,
        })))
    }

    /// A new rail on it.
    ///
    /// # Errors
    /// None; the type is that of other backends.
    pub fn open(&self, name: &str) -> Result<Box<dyn Rail>> {
        let mut state = self.state();
        let id = state.reports.len();
        state.reports.push(VecDeque::new());
        state.outstanding.push(0);
        state.down.push(false);
        state.pulled_out.push(false);
        let config = state.config;
        drop(state);
        Ok(Box::new(MockRail::new(self.clone(), id, name, config)))
    }

    /// How often writes and reads have been posted, those counting once that say that more follow and what follows
    /// them.
    #[must_use]
    pub fn doorbells(&self) -> u64 {
        self.state().doorbells
    }

    /// A rail fails: the `number`th that was opened, from 0.
    pub fn take_down(&self, number: usize) {
        let mut state = self.state();
        state.down[number] = true;
        state.cut(number);
    }

    /// It works again.
    pub fn bring_up(&self, number: usize) {
        self.state().down[number] = false;
    }

    /// The port of a rail goes down: what comes and goes there waits, and nothing fails.
    pub fn pull_out(&self, number: usize) {
        let mut state = self.state();
        if !std::mem::replace(&mut state.pulled_out[number], true) {
            state.reports[number].push_back(Report::PortDown);
        }
    }

    /// Nothing passes through a rail any more, and nobody is told.
    pub fn mute(&self, number: usize) {
        self.state().pulled_out[number] = true;
    }

    /// The port is up again.
    pub fn plug_in(&self, number: usize) {
        self.state().pulled_out[number] = false;
    }

    /// The next write over a rail is refused, and what is behind it does not arrive.
    pub fn refuse_next_write(&self, number: usize) {
        self.state().refuses = Some(number);
    }

    /// Rail `end` goes on believing in a connection with `other`, which knows that it is broken.
    pub fn leave_half_open(&self, end: usize, other: usize) {
        self.state().half_open.insert((end, other));
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        symrail_core::lock(&self.0)
    }
}
