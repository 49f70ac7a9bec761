//! The state of a mock fabric: what is under way, and its fate.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use symrail_core::simulation;

use crate::amo::{self, AmoOp, AmoType};
use crate::error::{Fault, Result};
use crate::pairing::InterfaceAddress;
use crate::rail::{OpId, Rail};

use super::config::FabricConfig;
use super::connections::Link;
use super::rail::MockRail;

/// A report that a rail gives when it is polled.
pub(super) enum Report {
    Done(OpId),
    Failed(OpId, Fault),
    Message(Vec<u8>),
    Immediate(u64),
    Broken(Fault),
    PortDown,
}

/// The fate of a flight.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    Delivered,
    /// The flight arrives, but its sender gets an error.
    Unacknowledged,
    Lost,
}

/// The fault of a rail that is down.
pub(super) fn path_fault() -> Fault {
    Fault { code: 104, text: "the mock fabric has taken the rail down".into(), retryable: true }
}

/// The fault of a rail whose port is down.
pub(super) fn port_fault() -> Fault {
    Fault { code: 100, text: "the mock fabric has pulled out the cable".into(), retryable: true }
}

/// The content of a flight.
pub(super) enum Cargo {
    /// Bytes for addresses, and the immediate behind them.
    Write { parts: Vec<(usize, Vec<u8>)>, immediate: Option<u64> },
    /// A read: (remote address, local address, length) of each piece.
    Read(Vec<(usize, usize, usize)>),
    /// An atomic on an address. The old value is stored at `old_to` unless that is 0.
    Amo { at: usize, ty: AmoType, op: AmoOp, operand: u64, compare: u64, old_to: usize },
    /// A message.
    Message(Vec<u8>),
}

/// Kinds of flights that later ones may have to stay behind.
const WRITE: u8 = 1;
const AMO: u8 = 2;
const MESSAGE: u8 = 4;

/// What a step has left under way so far: the kinds, by connection. Without it each flight would be compared with all
/// before it.
#[derive(Default)]
struct Passed(Vec<(usize, usize, u8)>);

impl Passed {
    fn kinds(&self, from: usize, to: usize) -> u8 {
        self.0.iter().find(|of| (of.0, of.1) == (from, to)).map_or(0, |of| of.2)
    }

    fn add(&mut self, from: usize, to: usize, kind: u8) {
        match self.0.iter_mut().find(|of| (of.0, of.1) == (from, to)) {
            Some(of) => of.2 |= kind,
            None => self.0.push((from, to, kind)),
        }
    }
}

impl Cargo {
    fn kind(&self) -> u8 {
        match self {
            Cargo::Write { .. } => WRITE,
            Cargo::Amo { .. } => AMO,
            Cargo::Message(_) => MESSAGE,
            Cargo::Read(_) => 0,
        }
    }

    /// Bytes of data.
    fn bytes(&self) -> u64 {
        let bytes: usize = match self {
            Cargo::Write { parts, .. } => parts.iter().map(|(_, bytes)| bytes.len()).sum(),
            Cargo::Read(parts) => parts.iter().map(|(_, _, len)| len).sum(),
            Cargo::Amo { .. } | Cargo::Message(_) => 0,
        };
        bytes as u64
    }
}

pub(super) struct Flight {
    pub cargo: Cargo,
    pub from: usize,
    pub to: usize,
    pub id: Option<OpId>,
    /// When it has left a rail with a limit.
    pub left: Option<u64>,
}

pub(super) struct State {
    random: u64,
    pub config: FabricConfig,
    /// Reports that wait to be polled, by rail.
    pub reports: Vec<VecDeque<Report>>,
    /// Outstanding work requests, by rail.
    pub outstanding: Vec<usize>,
    /// Flights in the order of posting. A flight's two ends identify its connection.
    pub flights: VecDeque<Flight>,
    /// Registered memory: owner, key, base, length.
    pub memory: Vec<(usize, u64, usize, usize)>,
    /// For each rail, the probability that a step does not move a connection from it: [`FabricConfig::delay`] at first.
    delays: Vec<u8>,
    /// For each rail with a limit, how many bytes it may move now.
    allowed: Vec<Option<u64>>,
    /// For each rail with a limit, the nanoseconds of the simulation between the time when something leaves it and that
    /// when it arrives.
    latencies: Vec<u64>,
    /// Whether each rail is down.
    pub down: Vec<bool>,
    /// Whether each rail's port is down, so that its flights wait.
    pub pulled_out: Vec<bool>,
    /// Rails of which a network drops everything.
    pub muted: Vec<bool>,
    /// Whether no connection from or to each rail can be made, which nothing reports.
    pub unreachable: Vec<bool>,
    /// Connections over which a flight has arrived, as pairs of ends, the smaller first.
    pub connections: BTreeSet<(usize, usize)>,
    /// (end, other end) of connections over which the end has received a message.
    pub greeted: BTreeSet<(usize, usize)>,
    /// (end, other end) of broken connections in which only the first end believes.
    pub half_open: BTreeSet<(usize, usize)>,
    /// The state of each end of connections that were cut at least once, by (end, other end).
    pub links: HashMap<(usize, usize), Link>,
    /// The rail whose next write is refused, as by a queue pair: nothing behind it arrives.
    refuses: Option<usize>,
    /// The rail that performs the atomics on each word.
    atomic_words: HashMap<usize, usize>,
    /// The number of doorbells for writes and reads: one for each chain.
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

    /// The kinds of flights that, under way on the same connection, `later` may not pass.
    fn kept_behind(&self, later: &Cargo) -> u8 {
        let order = self.config.order;
        let of = |is: bool, kinds: u8| if is { kinds } else { 0 };
        match later {
            Cargo::Write { .. } => of(order.write_after_write, WRITE | AMO),
            Cargo::Amo { .. } => of(order.amo_after_write, WRITE | AMO),
            Cargo::Message(_) => of(order.send_after_write, WRITE | AMO) | of(order.send_after_send, MESSAGE),
            // Reads have no guarantee, and a write does not wait for messages.
            Cargo::Read(_) => 0,
        }
    }

    /// Lets flights leave their rails, in order, as far as limits allow.
    fn leave(&mut self) {
        let now = simulation::nanos();
        for rail in 0..self.allowed.len() {
            let Some(allowed) = &mut self.allowed[rail] else { continue };
            for flight in self.flights.iter_mut().filter(|flight| flight.from == rail && flight.left.is_none()) {
                let Some(rest) = allowed.checked_sub(flight.cargo.bytes()) else { break };
                (*allowed, flight.left) = (rest, Some(now));
            }
        }
    }

    /// Delivers a random selection of flights.
    pub fn step(&mut self) {
        self.leave();
        let (mut at, mut passed, now) = (0, Passed::default(), simulation::nanos());
        while at < self.flights.len() {
            let Flight { from, to, ref cargo, left, .. } = self.flights[at];
            let free = passed.kinds(from, to) & self.kept_behind(cargo) == 0;
            let kind = cargo.kind();
            let waits = self.allowed[from].is_some() && left.is_none_or(|left| now < left + self.latencies[from]);
            if !free || waits || self.is_pulled_out(from, to) || self.chance(self.delays[from]) {
                passed.add(from, to, kind);
                at += 1;
                continue;
            }
            let fate = if self.is_joined(from, to) { Fate::Delivered } else { Fate::Lost };
            let rest = self.flights.len() - 1;
            if let Some(flight) = self.flights.remove(at) {
                self.deliver(flight, fate);
            }
            if self.flights.len() < rest {
                // A refused write took others of its rail along.
                passed = Passed::default();
                self.flights.iter().take(at).for_each(|flight| passed.add(flight.from, flight.to, flight.cargo.kind()));
            }
        }
    }

    /// A random prefix of the reports that wait for a rail, often not all.
    pub fn some_reports(&mut self, rail: usize) -> VecDeque<Report> {
        let (random, waiting) = (self.next() as usize, &mut self.reports[rail]);
        let rest = waiting.split_off(if random & 1 == 0 { waiting.len() } else { (random >> 1) % (waiting.len() + 1) });
        std::mem::replace(waiting, rest)
    }

    /// Posts a flight, as far as both ends work. A failed connection stays failed until its owner knows; otherwise a
    /// flight behind a lost write would arrive without it.
    pub fn depart(&mut self, flight: Flight) {
        let unknown = self.reports[flight.from].iter().any(|r| matches!(r, Report::Failed(_, f) if f.retryable));
        let believed = self.half_open.remove(&(flight.from, flight.to));
        let refused = self.down[flight.to] || !self.is_joined(flight.from, flight.to);
        // A sender without an answer keeps trying, so its flight waits.
        if unknown || believed || refused && !self.is_pulled_out(flight.from, flight.to) {
            self.deliver(flight, Fate::Lost);
        } else {
            self.flights.push_back(flight);
        }
    }

    /// Reports that a write has left, whatever its fate.
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

    /// The address of `len` bytes at `address` of `owner`'s registration `key`, if they are inside of it.
    pub fn find(&self, owner: usize, key: u64, address: u64, len: usize) -> Option<usize> {
        let &(_, _, base, size) = self.memory.iter().find(|m| m.0 == owner && m.1 == key)?;
        let offset = usize::try_from(address).ok()?;
        (offset.checked_add(len)? <= size).then_some(base + offset)
    }
}

/// A fabric. Clones share their state.
#[derive(Clone)]
pub struct Fabric(Arc<Mutex<State>>);

impl Fabric {
    /// A fabric that derives all its decisions from `seed`.
    #[must_use]
    pub fn new(seed: u64, config: FabricConfig) -> Self {
        Fabric(Arc::new(Mutex::new(State {
            random: seed,
            config,
            reports: Vec::new(),
            outstanding: Vec::new(),
            flights: VecDeque::new(),
            memory: Vec::new(),
            delays: Vec::new(),
            allowed: Vec::new(),
            latencies: Vec::new(),
            down: Vec::new(),
            pulled_out: Vec::new(),
            muted: Vec::new(),
            unreachable: Vec::new(),
            connections: BTreeSet::new(),
            greeted: BTreeSet::new(),
            half_open: BTreeSet::new(),
            links: HashMap::new(),
            refuses: None,
            atomic_words: HashMap::new(),
            doorbells: 0,
        })))
    }

    /// Opens a new rail.
    ///
    /// # Errors
    /// None; the return type is that of other backends.
    pub fn open(&self, name: &str) -> Result<Box<dyn Rail>> {
        self.open_at(name, None)
    }

    /// Opens a new rail on a network interface with an IPv4 address.
    ///
    /// # Errors
    /// As for [`Fabric::open`].
    pub fn open_at(&self, name: &str, interface: Option<InterfaceAddress>) -> Result<Box<dyn Rail>> {
        let mut state = self.state();
        let id = state.reports.len();
        state.reports.push(VecDeque::new());
        state.outstanding.push(0);
        let delay = state.config.delay;
        state.delays.push(delay);
        state.allowed.push(None);
        state.latencies.push(0);
        state.down.push(false);
        state.pulled_out.push(false);
        state.muted.push(false);
        state.unreachable.push(false);
        let config = state.config;
        drop(state);
        Ok(Box::new(MockRail::new(self.clone(), id, name, config, interface)))
    }

    /// The number of doorbells for writes and reads. A chain of posts, in which each but the last announces more,
    /// counts once.
    #[must_use]
    pub fn doorbells(&self) -> u64 {
        self.state().doorbells
    }

    /// Sets the probability, in parts of 256, that a step does not move a connection from a rail.
    pub fn delay(&self, number: usize, probability: u8) {
        self.state().delays[number] = probability;
    }

    /// Allows a rail to move so many bytes from now on, besides what it was allowed since it had none to move.
    pub fn allow(&self, number: usize, bytes: u64) {
        let mut state = self.state();
        let busy = state.flights.iter().any(|flight| flight.from == number && flight.left.is_none());
        let before = state.allowed[number].filter(|_| busy).unwrap_or(0);
        state.allowed[number] = Some(before + bytes);
    }

    /// Sets the time after which what a rail has moved arrives, in nanoseconds of the simulation. The rail is one that
    /// [`Fabric::allow`] limits.
    pub fn set_latency(&self, number: usize, nanos: u64) {
        self.state().latencies[number] = nanos;
    }

    /// Bytes of writes and reads that were posted to a rail and are under way.
    #[must_use]
    pub fn under_way(&self, number: usize) -> u64 {
        self.state().flights.iter().filter(|flight| flight.from == number).map(|flight| flight.cargo.bytes()).sum()
    }

    /// Takes down the rail that was opened as number `number`, counted from 0.
    pub fn take_down(&self, number: usize) {
        let mut state = self.state();
        state.down[number] = true;
        state.cut(number);
    }

    /// Brings the rail up again.
    pub fn bring_up(&self, number: usize) {
        self.state().down[number] = false;
    }

    /// Takes down the port of a rail: its flights wait, and nothing fails.
    pub fn pull_out(&self, number: usize) {
        let mut state = self.state();
        if !std::mem::replace(&mut state.pulled_out[number], true) {
            state.reports[number].push_back(Report::PortDown);
        }
    }

    /// Stops all traffic of a rail without any report.
    pub fn mute(&self, number: usize) {
        self.state().muted[number] = true;
    }

    /// Makes all connections from and to a rail impossible, as a network does that drops what is sent to it.
    pub fn make_unreachable(&self, number: usize) {
        self.state().unreachable[number] = true;
    }

    /// Brings the port up again.
    pub fn plug_in(&self, number: usize) {
        let mut state = self.state();
        (state.pulled_out[number], state.muted[number]) = (false, false);
    }

    /// Makes the next write over a rail be refused; nothing behind it arrives.
    pub fn refuse_next_write(&self, number: usize) {
        self.state().refuses = Some(number);
    }

    /// Makes rail `end` believe in its connection with `other`, which knows that it is broken.
    pub fn leave_half_open(&self, end: usize, other: usize) {
        self.state().half_open.insert((end, other));
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        symrail_core::lock(&self.0)
    }
}
