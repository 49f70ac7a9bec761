//! Doing without a lane that has failed, and with it again.
//!
//! A fault that tells of the way ([`Fault::retryable`]) takes the lane to that peer down; other peers' are not concerned. What
//! was under way on it waits until the rail has reported all of it, so that nothing of it can arrive later than what replaces it.
//! Then each stream of requests that the lane carried is moved to another: the target is told, and drops what the
//! failed lane still brings of it; it answers how far it has applied the stream. A write behind which an applied request was sent
//! has arrived, where lanes keep messages behind writes, and is complete. Other writes, and reads, are posted again, and then the requests
//! that were not applied. An AMO that a NIC performs has no number: it fails, and says whether it may have been performed.
//!
//! Fences go on to look for moved writes where they were posted first (`home`), and nothing new is posted on a lane that is
//! down; so what a fence orders waits for them. A lane that is down is asked for a sign of life once in a while, and used again when it
//! answers. When all lanes to a peer are down, what waits is tried on one after the other, until it is too old. Where a
//! message was lost and nobody told, acknowledgements fail to come although the peer answers pings, which counts as a fault; a peer that
//! answers none is late, and its lanes stay in use.
//!
//! Where to read: `health` is what is believed of a lane, without a rail; `ping` asks; `lane` takes lanes down, tries them and brings
//! them up; `stream` keeps requests, moves them and sends them again; `again`
//! is for writes and reads; `port` decides when a port that is down is a reason to do so; `reconnect` replaces broken connections; `sign` keeps peers from believing in connections that are broken at this end. Here: what is remembered of a
//! lane, and what others ask about it.

mod again;
mod health;
mod lane;
mod ping;
mod port;
mod reconnect;
mod sign;
mod stream;

use super::{Core, Role};
use crate::error::Fault;
use crate::pe::Pe;
use crate::rail::{Dest, RailCaps};
use health::Health;
pub(super) use port::PortNews;
pub(super) use reconnect::{Renewal, Word};
pub(super) use sign::Use;
use std::collections::VecDeque;
use stream::{Kept, Way};

/// Polls of a host endpoint between two looks at rails that it does not use.
const SPARE_INTERVAL: u32 = 256;

/// What is remembered of a lane to a peer that has others.
pub(super) struct Failover {
    lane: u8,
    health: Health,
    /// Work requests that the rail has and has not reported, and their bytes.
    posted: u32,
    under_way: u64,
    /// The turn and serial of the last message of this lane's stream that has been applied.
    applied: (u32, u64),
    /// The lane that messages of this lane's stream take, how often it has changed, and how far the next change is.
    carrier: u8,
    turn: u32,
    way: Way,
    /// The last request in the outbox.
    pub gathered: u32,
    /// When the oldest request became the oldest.
    pub progress: u32,
    /// Messages with requests that are not acknowledged.
    kept: VecDeque<Kept>,
    /// Something was posted, and the peer has been told.
    used: bool,
    greeted: bool,
}

impl Failover {
    pub fn new(lane: usize) -> Self {
        Failover {
            lane: lane as u8,
            health: Health::new(),
            posted: 0,
            under_way: 0,
            applied: (0, 0),
            carrier: lane as u8,
            turn: 0,
            way: Way::Open,
            gathered: 0,
            progress: 0,
            kept: VecDeque::new(),
            used: false,
            greeted: false,
        }
    }

    pub fn is_straight(&self) -> bool {
        self.is_own_carrier() && self.way == Way::Open
    }

    fn is_own_carrier(&self) -> bool {
        self.carrier == self.lane
    }

    /// The turn of the stream, if its messages stay behind what is written on its lane now.
    pub fn turn(&self) -> Option<u32> {
        self.is_straight().then_some(self.turn)
    }

    /// The rail has taken a work request of so many bytes. Whether it was the first.
    #[inline]
    pub fn post(&mut self, len: usize) -> bool {
        self.posted += 1;
        self.under_way += len as u64;
        !std::mem::replace(&mut self.used, true)
    }

    /// The stream's turn, if the peer is to be told that the lane is used.
    pub fn greeting(&mut self) -> Option<u32> {
        let due = self.used && !self.greeted && self.health.is_up() && self.is_straight();
        self.greeted |= due;
        due.then_some(self.turn)
    }

    /// Whether lanes over these rails can do each other's work: they promise the same.
    pub fn possible(caps: &[RailCaps]) -> bool {
        caps.len() > 1 && caps.iter().all(|c| c.order == caps[0].order && c.max_send == caps[0].max_send)
    }
}

impl Core {
    pub(in crate::endpoint) fn next_serial(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }

    #[inline]
    pub(in crate::endpoint) fn failover(&mut self, dest: Dest, lane: usize) -> Option<&mut Failover> {
        if self.caps.len() == 1 {
            return None;
        }
        self.connection(dest, lane).and_then(|c| c.failover.as_deref_mut())
    }

    fn health(&self, pe: Pe, lane: usize) -> Option<&Health> {
        let c = (pe < self.n_pes).then(|| &self.connections[pe as usize * self.caps.len() + lane])?;
        c.failover.as_ref().map(|f| &f.health)
    }

    /// Whether new operations may use a lane.
    pub(in crate::endpoint) fn is_up(&self, pe: Pe, lane: usize) -> bool {
        self.down == 0 || self.health(pe, lane).is_none_or(Health::is_up)
    }

    /// Whether nothing may be posted on a lane.
    pub(in crate::endpoint) fn is_down(&self, dest: Dest, lane: usize) -> bool {
        self.down > 0 && self.health(dest, lane).is_some_and(Health::is_down)
    }

    /// Whether lanes can do each other's work at all.
    pub(in crate::endpoint) fn fails_over(&self) -> bool {
        self.connections.iter().any(|c| c.failover.is_some())
    }

    pub(super) fn lanes(&self, pe: Pe) -> usize {
        usize::from(self.peers[pe as usize].lanes)
    }

    /// Lanes to an endpoint of a peer, which may be its host endpoint.
    pub(super) fn lanes_to(&self, dest: Dest) -> usize {
        let peer = &self.peers[(dest % self.n_pes) as usize];
        usize::from(if dest < self.n_pes { peer.lanes } else { peer.host_lanes })
    }

    /// Lanes on which something may have happened: a host endpoint uses the first alone while that works.
    pub(in crate::endpoint) fn lanes_to_poll(&self) -> usize {
        let spare = self.role == Role::Host && self.down == 0 && !self.polls.is_multiple_of(SPARE_INTERVAL);
        if spare { 1 } else { self.caps.len() }
    }

    /// The lane that a peer's small puts and flags take, if they take always the same.
    pub(in crate::endpoint) fn only_lane(&self, pe: Pe) -> Option<usize> {
        let peer = self.peers.get(pe as usize)?;
        match (peer.lanes, self.role) {
            (1, _) => Some(0),
            (2.., Role::Host) if peer.down == 0 => Some(0),
            (2.., Role::Host) => (0..self.lanes(pe)).find(|&lane| self.is_up(pe, lane)),
            _ => None,
        }
    }

    /// Nothing is under way to a PE but on this lane.
    pub(in crate::endpoint) fn alone(&self, pe: Pe, lane: usize) -> bool {
        let first = pe as usize * self.caps.len();
        (0..self.lanes(pe)).all(|other| other == lane || self.connections[first + other].idle())
    }

    /// What the lane's rail had when it failed has been reported. A lane that is used again was drained before.
    pub(super) fn is_drained(&self, pe: Pe, lane: usize) -> bool {
        let c = &self.connections[pe as usize * self.caps.len() + lane];
        c.failover.as_ref().is_some_and(|f| !f.health.is_down() || f.posted == 0)
    }

    /// A lane to answer on: the one that the question came over, unless that has failed.
    pub(in crate::endpoint) fn lane_for_reply(&self, dest: Dest, lane: usize) -> usize {
        if dest >= self.n_pes || self.is_up(dest, lane) {
            return lane;
        }
        (0..self.lanes(dest)).find(|&other| self.is_up(dest, other)).unwrap_or(lane)
    }

    /// Why nothing goes to a PE, if that is so.
    pub(in crate::endpoint) fn unreachable(&self, pe: Pe) -> Option<(usize, &Fault)> {
        let peer = &self.peers[pe as usize];
        if peer.lanes < 2 || peer.down < peer.lanes {
            return None;
        }
        let first = pe as usize * self.caps.len();
        let faults = self.connections[first..first + self.lanes(pe)].iter().enumerate();
        faults.filter_map(|(lane, c)| Some((lane, c.failover.as_ref()?.health.fault()?))).next()
    }
}

/// What takes a lane down that has been silent.
fn silent(text: String) -> Fault {
    Fault { code: libc::ETIMEDOUT, text, retryable: true }
}
