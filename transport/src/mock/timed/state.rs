//! The state of a timed fabric: what is under way, and which PE runs next.

use std::collections::{HashMap, VecDeque};

use super::{Calendar, Costs, Link, Nics, Traffic};
use crate::error::Fault;
use crate::pe::Pe;
use crate::rail::OpId;

/// The fault of work for a dead PE.
fn dead_fault() -> Fault {
    Fault { code: 104, text: "the PE has died".into(), retryable: true }
}

/// Bytes of a write for an address, or only their number.
pub(super) struct Part {
    pub to: usize,
    pub len: usize,
    pub bytes: Option<Box<[u8]>>,
}

/// The content of a transfer from a rail to another.
pub(super) enum Cargo {
    Write {
        parts: Vec<Part>,
        immediate: Option<u64>,
        acknowledged: Option<OpId>,
    },
    /// A read: (remote address, local address, length) of each piece.
    Read(Vec<(usize, usize, usize)>, OpId),
    /// The bytes of a read, and the work request that they complete.
    Answer(Vec<Part>, OpId),
    Message(Box<[u8]>),
    Acknowledged(OpId),
    /// The failure of a work request because the other end is dead.
    Failed(OpId, Fault),
}

impl Cargo {
    pub fn bytes(&self) -> u64 {
        let of_parts = |parts: &[Part]| parts.iter().map(|part| part.len as u64).sum();
        match self {
            Cargo::Write { parts, .. } | Cargo::Answer(parts, _) => of_parts(parts),
            Cargo::Message(bytes) => bytes.len() as u64,
            Cargo::Read(..) | Cargo::Acknowledged(_) | Cargo::Failed(..) => 0,
        }
    }

    /// The work request that fails if this does not arrive.
    fn id(&self) -> Option<OpId> {
        match self {
            Cargo::Write { acknowledged, .. } => *acknowledged,
            Cargo::Read(_, id) => Some(*id),
            Cargo::Message(_) | Cargo::Answer(..) | Cargo::Acknowledged(_) | Cargo::Failed(..) => None,
        }
    }
}

/// An event that a rail finds when it is polled.
pub(super) enum Arrival {
    /// A cargo from this rail.
    Cargo(u32, Cargo),
    /// A work request that completes when its bytes have left.
    Left(OpId),
}

struct Flight {
    from: u32,
    to: u32,
    cargo: Cargo,
}

enum Event {
    Departs(Flight),
    Arrives(Flight),
    Left(u32, OpId),
    Runs(Pe),
    Dies(Pe),
    PatienceEnds(Pe),
}

/// Polls without an event before a PE lets other PEs run: enough to run all of its code once.
const EMPTY_POLLS: u32 = 140;
/// `LOOK_POLLS` replaces it after a long time without a full look, whatever has arrived meanwhile: enough that the PE
/// reads its clock, which it does rarely. `TICK_POLLS` replaces it in each new second: enough that the PE checks its
/// time-outs, which it does even more rarely.
const LOOK_POLLS: u32 = 2_200;
const TICK_POLLS: u32 = 12_000;
/// Nanoseconds per second.
const SECOND: u64 = 1_000_000_000;
/// The shortest and the longest time that a PE waits for an arrival before it polls again, in nanoseconds.
const SHORTEST: u64 = 50_000;
const LONGEST: u64 = 250_000_000;

#[derive(Default)]
struct RailState {
    pe: Pe,
    arrivals: VecDeque<Arrival>,
    /// Registered memory: key, base, length.
    memory: Vec<(u64, usize, usize)>,
}

#[derive(Default)]
struct PeState {
    host: u32,
    /// The time until which it is busy.
    busy_until: u64,
    /// Whether it runs, or an event for its next run exists.
    runs: bool,
    deadline: u64,
    /// The time that it waits before it polls again; an event for its deadline exists.
    patience: u64,
    timed: bool,
    dead: bool,
    /// Arrivals that its rails have not handled.
    waiting: usize,
    empty_polls: u32,
    /// The last time at which it polled often enough to read its clock.
    looked: u64,
    traffic: Traffic,
}

/// The time from which a connection is there, and the last arrival times at the end with the lower number and at the
/// other.
struct Connection {
    ready: u64,
    last: [u64; 2],
}

pub(super) struct State {
    costs: Costs,
    pub carried: usize,
    random: u64,
    now: u64,
    events: Calendar<Event>,
    rails: Vec<RailState>,
    /// The rails of each host, by port.
    ports: Vec<Vec<u32>>,
    pes: Vec<PeState>,
    nics: Nics,
    connections: HashMap<(u32, u32), Connection>,
}

impl State {
    pub fn new(costs: Costs, hosts: &[u32], carried: usize, seed: u64) -> State {
        let pe = |&host: &u32| PeState { host, patience: SHORTEST, ..PeState::default() };
        let count = hosts.iter().max().map_or(0, |most| *most as usize + 1);
        State {
            costs,
            carried,
            random: seed,
            now: 0,
            events: Calendar::default(),
            rails: Vec::new(),
            ports: vec![Vec::new(); count],
            pes: hosts.iter().map(pe).collect(),
            nics: Nics::new(count, costs.gap),
            connections: HashMap::new(),
        }
    }

    /// The costs of a message between two rails.
    pub fn link(&self, a: u32, b: u32) -> Link {
        let host = |rail: u32| self.pes[self.rails[rail as usize].pe as usize].host;
        if host(a) == host(b) { self.costs.on_host } else { self.costs.between_hosts }
    }

    pub fn events(&self) -> u64 {
        self.events.planned()
    }

    pub fn traffic(&self, pe: Pe) -> Traffic {
        self.pes[pe as usize].traffic
    }

    /// Opens a rail. Its address is as long as that of a TCP socket, with the host's number and a port.
    pub fn open(&mut self, pe: Pe) -> (u32, Vec<u8>) {
        let id = self.rails.len() as u32;
        self.rails.push(RailState { pe, ..RailState::default() });
        let host = self.pes[pe as usize].host;
        let ports = &mut self.ports[host as usize];
        let port = (ports.len() as u16).to_be_bytes();
        ports.push(id);
        let [_, a, b, c] = host.to_be_bytes();
        (id, [2, 0, port[0], port[1], 10, a, b, c, 0, 0, 0, 0, 0, 0, 0, 0].to_vec())
    }

    /// The rail with this address.
    pub fn rail_at(&self, address: &[u8]) -> Option<u32> {
        let [2, 0, p, q, 10, a, b, c, ..] = *address else { return None };
        let ports = self.ports.get(u32::from_be_bytes([0, a, b, c]) as usize)?;
        ports.get(usize::from(u16::from_be_bytes([p, q]))).copied()
    }

    pub fn register(&mut self, rail: u32, key: u64, base: usize, len: usize) {
        self.rails[rail as usize].memory.push((key, base, len));
    }

    pub fn deregister(&mut self, rail: u32, key: u64) {
        self.rails[rail as usize].memory.retain(|memory| memory.0 != key);
    }

    /// The address of `len` bytes at `offset` of a rail's registration, if they are inside of it.
    pub fn find(&self, rail: u32, key: u64, offset: u64, len: usize) -> Option<usize> {
        let &(_, base, size) = self.rails[rail as usize].memory.iter().find(|memory| memory.0 == key)?;
        let offset = usize::try_from(offset).ok()?;
        (offset.checked_add(len)? <= size).then_some(base + offset)
    }

    pub fn run_at(&mut self, pe: Pe, time: u64) {
        let state = &mut self.pes[pe as usize];
        if !state.runs && !state.dead {
            state.runs = true;
            let time = time.max(state.busy_until);
            self.events.at(time, Event::Runs(pe));
        }
    }

    pub fn waits(&mut self, pe: Pe, now: u64) {
        let state = &mut self.pes[pe as usize];
        (state.runs, state.busy_until, state.empty_polls) = (false, now, 0);
        if state.waiting > 0 {
            return self.run_at(pe, now);
        }
        state.deadline = now + state.patience;
        let deadline = state.deadline;
        if !std::mem::replace(&mut state.timed, true) {
            self.events.at(deadline, Event::PatienceEnds(pe));
        }
    }

    pub fn kill_at(&mut self, pe: Pe, time: u64) {
        self.events.at(time, Event::Dies(pe));
    }

    /// A latency with its random part.
    fn varied(&mut self, latency: u64) -> u64 {
        self.random = self.random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        latency + (self.random >> 33) % (latency / 16 + 1)
    }

    pub fn next(&mut self) -> Option<(u64, Pe)> {
        loop {
            let (time, event) = self.events.take()?;
            self.now = time;
            match event {
                Event::Departs(flight) => self.depart(flight),
                Event::Arrives(flight) => self.arrive(flight),
                Event::Left(rail, id) => self.hand_over(rail, Arrival::Left(id)),
                Event::Dies(pe) => self.pes[pe as usize].dead = true,
                Event::Runs(pe) if self.pes[pe as usize].dead => {}
                Event::Runs(pe) => return Some((time, pe)),
                Event::PatienceEnds(pe) => {
                    let state = &mut self.pes[pe as usize];
                    state.timed = false;
                    if state.dead || state.runs {
                        continue;
                    }
                    if state.deadline > time {
                        state.timed = true;
                        let deadline = state.deadline;
                        self.events.at(deadline, Event::PatienceEnds(pe));
                        continue;
                    }
                    state.runs = true;
                    state.patience = (state.patience * 4).min(LONGEST);
                    return Some((time, pe));
                }
            }
        }
    }

    /// Takes the arrivals of a rail. If there are none, the error is whether its PE should let other PEs run.
    pub fn take(&mut self, rail: u32) -> Result<VecDeque<Arrival>, bool> {
        let RailState { pe, arrivals, .. } = &mut self.rails[rail as usize];
        let state = &mut self.pes[*pe as usize];
        if arrivals.is_empty() {
            if state.waiting > 0 {
                return Err(false);
            }
            state.empty_polls += 1;
            let needed = match self.now - state.looked {
                _ if self.now / SECOND > state.looked / SECOND => TICK_POLLS,
                LONGEST.. => LOOK_POLLS,
                _ => EMPTY_POLLS,
            };
            let enough = state.empty_polls >= needed;
            if enough && needed > EMPTY_POLLS {
                state.looked = self.now;
            }
            return Err(enough);
        }
        let taken = std::mem::take(arrivals);
        state.waiting -= taken.len();
        (state.empty_polls, state.patience) = (0, SHORTEST);
        Ok(taken)
    }

    /// Sends a cargo at a time of the sender. `left`: the work request that completes then.
    pub fn post(&mut self, time: u64, (from, to): (u32, u32), cargo: Cargo, left: Option<OpId>) {
        let state = &mut self.pes[self.rails[from as usize].pe as usize];
        state.empty_polls = 0;
        if !matches!(cargo, Cargo::Acknowledged(_)) {
            let bytes = cargo.bytes();
            state.traffic.sent += 1;
            state.traffic.sent_bytes += bytes;
            state.traffic.largest = state.traffic.largest.max(bytes);
        }
        if let Some(id) = left {
            let time = time + cargo.bytes() * self.link(from, to).byte_ps / 1000;
            self.events.at(time, Event::Left(from, id));
        }
        self.events.at(time, Event::Departs(Flight { from, to, cargo }));
    }

    fn pe_of(&mut self, rail: u32) -> &mut PeState {
        &mut self.pes[self.rails[rail as usize].pe as usize]
    }

    fn depart(&mut self, flight: Flight) {
        let Flight { from, to, .. } = flight;
        let (costs, now, bytes) = (self.costs, self.now, flight.cargo.bytes());
        let (here, there) = (self.pe_of(from).host as usize, self.pe_of(to).host as usize);
        let ends = (from.min(to), from.max(to));
        if !self.connections.contains_key(&ends) {
            self.pe_of(from).traffic.connections += 1;
            self.pe_of(to).traffic.connections += 1;
        }
        let connect = costs.connect;
        let fresh = || Connection { ready: now + connect, last: [0; 2] };
        let begins = now.max(self.connections.entry(ends).or_insert_with(fresh).ready);
        let link = if here == there { costs.on_host } else { costs.between_hosts };
        let latency = self.varied(link.latency);
        let mut arrives = self.nics.carry(begins, (here, there), &link, latency, bytes);
        if let Some(connection) = self.connections.get_mut(&ends) {
            let last = &mut connection.last[usize::from(from > to)];
            arrives = arrives.max(*last);
            *last = arrives;
        }
        self.events.at(arrives, Event::Arrives(flight));
    }

    fn arrive(&mut self, Flight { from, to, cargo }: Flight) {
        if !self.pe_of(to).dead {
            return self.hand_over(to, Arrival::Cargo(from, cargo));
        }
        if let Some(id) = cargo.id() {
            let time = self.now + self.link(from, to).latency;
            self.events.at(time, Event::Arrives(Flight { from: to, to: from, cargo: Cargo::Failed(id, dead_fault()) }));
        }
    }

    fn hand_over(&mut self, rail: u32, arrival: Arrival) {
        let now = self.now;
        let RailState { pe, arrivals, .. } = &mut self.rails[rail as usize];
        let pe = *pe;
        if self.pes[pe as usize].dead {
            return;
        }
        arrivals.push_back(arrival);
        self.pes[pe as usize].waiting += 1;
        self.run_at(pe, now);
    }

    /// Counts a message that a rail's PE has received.
    pub fn count_received(&mut self, rail: u32) {
        self.pe_of(rail).traffic.received += 1;
    }
}
