//! The records of an endpoint's peers and of each lane to them: work under way, and lanes in use.
//!
//! A lane is a pair of rails, one of each end ([`pairing`](crate::pairing)). An endpoint numbers lanes by its own rails.
//! Where not every rail is in a pair, the numbers have gaps.
//!
//! `connection` is the record of a peer and a lane. `order` chooses lanes, and decides which operations wait because of
//! a fence; `open_message` is about operations that go where the last one went. `speed` measures lanes. `flush_lists`
//! lists the lanes whose messages are gathered, unacknowledged or to be flushed.

mod connection;
mod flush_lists;
mod open_message;
mod order;
mod speed;

use super::failover::Failover;
use super::profile::{Profile, Role};
use crate::env::RailPolicy;
use crate::error::{Error, Fault, Operation, Result};
use crate::pe::Pe;
use crate::rail::Dest;
use crate::sparse::Slots;
pub(super) use connection::{Connection, Peer};
use connection::{Deferred, Lost};
use open_message::OpenMessage;
pub use speed::LaneSpeed;
use speed::Speed;

/// Polls between two checks of spare rails: over these peers only answer, or may begin to use one.
const HOST_INTERVAL: u32 = 256;
const PROXY_INTERVAL: u32 = 16;
/// Polls without an event after which a rail is polled in turn with the others, since each poll of a rail costs system
/// calls.
const SILENT: u32 = 64;

/// The most rails that can be lanes.
pub(super) const MAX_LANES: usize = u64::BITS as usize;

/// Some of an endpoint's rails, in their order.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct LaneSet(u64);

impl LaneSet {
    /// The first; 0 if there is none.
    #[inline]
    pub fn first(self) -> usize {
        if self.0 == 0 { 0 } else { self.0.trailing_zeros() as usize }
    }

    #[inline]
    pub fn has(self, lane: usize) -> bool {
        self.0.unbounded_shr(lane as u32) & 1 != 0
    }
}

impl Iterator for LaneSet {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        let lane = (self.0 != 0).then(|| self.first());
        self.0 &= self.0.wrapping_sub(1);
        lane
    }
}

/// The table of peers and lanes.
pub(super) struct Lanes {
    /// Polls between two checks of spare lanes, where only the first lane is used while it works.
    spare_interval: Option<u32>,
    n_pes: u32,
    rails: usize,
    /// The rails that are the first lane to any peer.
    first_lanes: LaneSet,
    /// The slots of peers that have a record.
    slots: Slots,
    /// Peers by slot. The entry of an unused slot stands for all other peers.
    peers: Vec<Peer>,
    /// Connections by slot, then rail.
    connections: Vec<Connection>,
    /// PEs that have sent a message and are not connected.
    to_connect: Vec<Pe>,
    /// The number of fences so far.
    epoch: u32,
    /// Peers that have deferred operations.
    blocked: Vec<Pe>,
    /// Connections to flush for a quiet.
    unflushed: Vec<(Pe, usize)>,
    /// Connections with requests in their outbox.
    outboxes: Vec<(Pe, usize)>,
    /// The one to which the next operation may go.
    open: Option<OpenMessage>,
    /// The caller submits more operations at once.
    more: bool,
    /// Connections whose last requests ask for no acknowledgement, because more were to follow.
    ack_not_requested: Vec<(Pe, usize)>,
    /// The lane of the last large operation.
    last_lane: usize,
    /// The speed of each of `connections`, where the policy needs it, and the last completion, in microseconds. The
    /// first ones, of no peer, are those of the rails.
    speeds: Vec<Speed>,
    /// Bytes of incomplete writes and reads on each rail, to all peers.
    loads: Box<[u64]>,
    now: u32,
    /// The number of failed lanes to peers.
    down: u32,
    polls: u32,
    /// For each rail, the last poll that found an event.
    active_at: Box<[u32]>,
}

impl Lanes {
    pub fn new(profile: &Profile) -> Lanes {
        let (n_pes, rails) = (profile.n_pes(), profile.rails());
        let measures = profile.policy().rails == RailPolicy::Adaptive && profile.role() == Role::Proxy && rails > 1;
        Lanes {
            spare_interval: (profile.role() == Role::Host).then_some(HOST_INTERVAL),
            n_pes,
            rails,
            first_lanes: LaneSet::default(),
            slots: Slots::default(),
            peers: vec![Peer::default()],
            connections: (0..rails).map(|_| Connection::default()).collect(),
            to_connect: Vec::new(),
            epoch: 0,
            blocked: Vec::new(),
            unflushed: Vec::new(),
            outboxes: Vec::new(),
            open: None,
            more: false,
            ack_not_requested: Vec::new(),
            last_lane: profile.me() as usize,
            speeds: vec![Speed::default(); if measures { rails } else { 0 }],
            loads: vec![0; rails].into(),
            now: 0,
            down: 0,
            polls: 0,
            active_at: vec![0; rails].into(),
        }
    }

    #[inline(always)]
    pub fn peer(&self, pe: Pe) -> &Peer {
        &self.peers[self.slots.find(pe)]
    }

    #[inline(always)]
    pub fn peer_mut(&mut self, pe: Pe) -> &mut Peer {
        let slot = self.enter(pe);
        &mut self.peers[slot]
    }

    /// The slot of a peer, which gets one if it has none.
    #[inline(always)]
    fn enter(&mut self, pe: Pe) -> usize {
        match self.slots.find(pe) {
            0 => self.enter_new(pe),
            slot => slot,
        }
    }

    #[cold]
    fn enter_new(&mut self, pe: Pe) -> usize {
        let slot = self.slots.enter(pe);
        if slot == self.peers.len() {
            self.peers.push(Peer::default());
            self.connections.extend((0..self.rails).map(|_| Connection::default()));
            if self.measures() {
                self.speeds.extend((0..self.rails).map(|_| Speed::default()));
            }
        }
        slot
    }

    /// The number of records, including free ones.
    pub fn records(&self) -> usize {
        self.slots.count()
    }

    /// The peer that has a record; `None` for a free one.
    pub fn addressed(&self, at: usize) -> Option<Pe> {
        self.slots.number(at)
    }

    /// From now on only peers that are connected have a record, and whatever concerns others is refused.
    pub fn know_only_connected(&mut self, me: Pe) {
        self.enter(me);
        let why = "it was removed from the peers, or never was one".into();
        self.peers[0].lost = Some(Box::new(Lost { why }));
    }

    /// Whether only peers that are connected have a record.
    #[inline]
    pub fn knows_only_connected(&self) -> bool {
        self.peers[0].lost.is_some()
    }

    /// Frees the record of a peer to which nothing is under way.
    pub fn forget(&mut self, pe: Pe) {
        self.close_message();
        self.blocked.retain(|&other| other != pe);
        self.to_connect.retain(|&other| other != pe);
        for list in [&mut self.unflushed, &mut self.outboxes, &mut self.ack_not_requested] {
            list.retain(|&(other, _)| other != pe);
        }
        let slot = self.slots.leave(pe);
        if slot == 0 {
            return;
        }
        self.down -= u32::from(std::mem::take(&mut self.peers[slot]).down);
        let lanes = slot * self.rails..(slot + 1) * self.rails;
        self.connections[lanes.clone()].fill_with(Connection::default);
        if self.measures() {
            self.speeds[lanes].fill_with(Speed::default);
        }
    }

    /// Whether the addresses of a peer's rails are known here.
    #[inline(always)]
    pub fn is_connected(&self, pe: Pe) -> bool {
        self.peer(pe).connected
    }

    /// Notes a PE that has sent a message: the endpoint connects it to be able to answer. Returns whether its messages are
    /// to be read.
    #[inline]
    pub fn remember(&mut self, pe: Pe) -> bool {
        self.is_connected(pe) || self.remember_new(pe)
    }

    #[cold]
    fn remember_new(&mut self, pe: Pe) -> bool {
        if self.knows_only_connected() {
            return false;
        }
        if !self.to_connect.contains(&pe) {
            self.to_connect.push(pe);
        }
        true
    }

    /// Takes a PE that is to be connected.
    #[inline]
    pub fn next_to_connect(&mut self) -> Option<Pe> {
        self.to_connect.pop()
    }

    /// The lane to a peer's proxy endpoint; `None` for its host endpoint, which is never a target.
    #[inline(always)]
    pub fn get(&self, dest: Dest, lane: usize) -> Option<&Connection> {
        if dest >= self.n_pes || lane >= self.rails {
            return None;
        }
        self.connections.get(self.slots.find(dest) * self.rails + lane)
    }

    /// As [`Lanes::get`], mutable; `None` also for a peer that was never connected.
    #[inline(always)]
    pub fn get_mut(&mut self, dest: Dest, lane: usize) -> Option<&mut Connection> {
        let slot = self.slots.find(dest);
        if slot == 0 || lane >= self.rails {
            return None;
        }
        self.connections.get_mut(slot * self.rails + lane)
    }

    /// Counts `len` bytes of a write or read that is posted first on `lane`.
    #[inline]
    pub fn begin_bytes(&mut self, lane: usize, len: u64) {
        self.loads[lane] += len;
    }

    /// Counts the end of such bytes.
    #[inline]
    pub fn end_bytes(&mut self, lane: usize, len: u64) {
        self.loads[lane] = self.loads[lane].saturating_sub(len);
    }

    /// The failover record of a lane, where the peer has others.
    #[inline]
    pub fn failover(&mut self, dest: Dest, lane: usize) -> Option<&mut Failover> {
        if self.rails == 1 {
            return None;
        }
        self.get_mut(dest, lane).and_then(|c| c.failover.as_deref_mut())
    }

    /// The records of all rails for a peer, including those that are no lane to it.
    pub fn of(&self, pe: Pe) -> &[Connection] {
        let first = self.slots.find(pe) * self.rails;
        &self.connections[first..first + self.rails]
    }

    /// Notes the lanes to a peer, as pairs of rails, and the number of its host endpoint's rails.
    pub fn connect(&mut self, pe: Pe, pairs: &[(usize, usize)], host_rails: usize) {
        let first = self.enter(pe) * self.rails;
        self.connections[first..first + self.rails].iter_mut().for_each(|c| c.paired = 0);
        for &(lane, theirs) in pairs {
            self.connections[first + lane].paired = theirs as u8 + 1;
        }
        let first = self.each(pe).first();
        let peer = self.peer_mut(pe);
        (peer.lanes, peer.host_rails, peer.lane) = (pairs.len() as u8, host_rails.min(MAX_LANES) as u8, first as u8);
        peer.connected = true;
        self.first_lanes.0 |= 1 << first;
    }

    /// The lanes to a peer.
    #[inline]
    pub fn each(&self, pe: Pe) -> LaneSet {
        self.each_below(pe, u8::MAX)
    }

    /// The lanes to an endpoint of a peer. `dest` may be its host endpoint.
    pub fn each_to(&self, dest: Dest) -> LaneSet {
        let pe = dest % self.n_pes;
        self.each_below(pe, if dest < self.n_pes { u8::MAX } else { self.peer(pe).host_rails })
    }

    /// The lanes that end at one of the first `rails` rails of a peer.
    fn each_below(&self, pe: Pe, rails: u8) -> LaneSet {
        let is_lane = |set, (lane, c): (usize, &Connection)| set | u64::from((1..=rails).contains(&c.paired)) << lane;
        LaneSet(self.of(pe).iter().take(MAX_LANES).enumerate().fold(0, is_lane))
    }

    /// The lane that follows another one after so many steps, round all lanes to a peer.
    #[inline]
    pub fn after(&self, pe: Pe, lane: usize, steps: usize) -> usize {
        let lanes = self.count(pe);
        if lanes == self.rails {
            return (lane + steps) % lanes;
        }
        let each = self.each(pe);
        let at = each.take_while(|&other| other < lane).count() + steps;
        { each }.nth(at % lanes.max(1)).unwrap_or(0)
    }

    /// The rail at the other end of a lane, by which both ends name the lane in messages to that end.
    #[inline]
    pub fn theirs(&self, dest: Dest, lane: usize) -> usize {
        let at = self.slots.find(dest % self.n_pes) * self.rails + lane;
        self.connections.get(at).map_or(lane, |c| c.theirs(lane))
    }

    /// The lane whose other end is rail `theirs` of a peer's proxy endpoint.
    #[inline]
    pub fn lane_of(&self, pe: Pe, theirs: usize) -> Option<usize> {
        let is = |lane: &usize| self.get(pe, *lane).is_some_and(|c| usize::from(c.paired) == theirs + 1);
        Some(theirs).filter(is).or_else(|| self.each(pe).find(is))
    }

    /// The number of lanes to a peer.
    #[inline]
    pub fn count(&self, pe: Pe) -> usize {
        usize::from(self.peer(pe).lanes)
    }
}

/// Which lanes are in use.
impl Lanes {
    /// The number of failed lanes to peers.
    #[inline]
    pub fn down(&self) -> u32 {
        self.down
    }

    /// Notes that a lane to a peer is out of use from second `now` on.
    pub fn goes_down(&mut self, pe: Pe, now: u32) {
        self.down += 1;
        self.close_message();
        let peer = self.peer_mut(pe);
        peer.down += 1;
        peer.unreached_since = (peer.down >= peer.lanes).then_some(now);
    }

    /// Notes that a lane to a peer is used again.
    pub fn comes_up(&mut self, pe: Pe) {
        self.down -= 1;
        let peer = self.peer_mut(pe);
        (peer.down, peer.unreached_since, peer.lost) = (peer.down - 1, None, None);
    }

    /// Whether new operations may use a lane.
    pub fn is_up(&self, pe: Pe, lane: usize) -> bool {
        self.down == 0 || self.get(pe, lane).and_then(|c| c.failover.as_ref()).is_none_or(|f| f.is_up())
    }

    /// Whether nothing may be posted on a lane.
    #[inline]
    pub fn is_down(&self, dest: Dest, lane: usize) -> bool {
        self.down > 0 && self.get(dest, lane).and_then(|c| c.failover.as_ref()).is_some_and(|f| f.is_down())
    }

    /// Whether lanes can replace each other at all.
    pub fn fail_over(&self) -> bool {
        self.connections.iter().any(|c| c.failover.is_some())
    }

    /// Makes all lanes but the first spare from now on.
    pub fn keep_others_spare(&mut self) {
        self.spare_interval.get_or_insert(PROXY_INTERVAL);
    }

    /// The number of lanes to a peer with as many rails that are used while all work.
    pub fn in_use(&self) -> usize {
        if self.spare_interval.is_some() { 1 } else { self.rails }
    }

    /// Begins a round of polls.
    pub fn next_poll(&mut self) {
        self.polls = self.polls.wrapping_add(1);
        self.close_message();
    }

    /// Whether this round polls a rail: it polls those with recent events, and one of all in turn. Where all are
    /// silent, each is polled as often as if every round polled all.
    pub fn is_due(&self, lane: usize) -> bool {
        match self.spare_interval {
            // A peer's first lane may end at a rail that is spare here.
            Some(interval) => {
                lane == 0
                    || self.first_lanes.has(lane)
                    || self.down > 0
                    || self.polls.is_multiple_of(interval)
                    || self.is_active(lane)
            }
            None => self.is_active(lane) || self.polls as usize % self.active_at.len() == lane,
        }
    }

    fn is_active(&self, lane: usize) -> bool {
        self.polls.wrapping_sub(self.active_at[lane]) < SILENT
    }

    /// Makes the next round poll all rails: the polling thread has slept, and an event of any rail is to be found at
    /// once.
    pub fn expect_on_all(&mut self) {
        self.active_at.fill(self.polls);
    }

    /// Notes that the poll of a rail has found an event.
    pub fn note_activity(&mut self, lane: usize) {
        self.active_at[lane] = self.polls;
    }

    /// Whether all work requests that the lane's rail had when it failed have completed. A lane that is used again was
    /// drained before.
    pub fn is_drained(&self, pe: Pe, lane: usize) -> bool {
        self.get(pe, lane).and_then(|c| c.failover.as_ref()).is_some_and(|f| f.is_drained())
    }

    /// Why no lane reaches a PE, if none does.
    pub fn unreachable(&self, pe: Pe) -> Option<(usize, &Fault)> {
        let peer = self.peer(pe);
        if peer.lanes < 2 || peer.down < peer.lanes {
            return None;
        }
        let faults = self.of(pe).iter().enumerate();
        faults.filter_map(|(lane, c)| Some((lane, c.failover.as_ref()?.fault()?))).next()
    }

    /// Whether an operation may be started to a PE.
    #[inline(always)]
    pub fn accepts(&self, pe: Pe) -> bool {
        pe < self.n_pes && self.peer(pe).lost.is_none()
    }

    /// As [`Lanes::accepts`].
    ///
    /// # Errors
    /// [`Error::NoSuchPe`], [`Error::PeerLost`].
    pub fn accept(&self, operation: Operation, pe: Pe) -> Result<()> {
        if self.accepts(pe) { Ok(()) } else { Err(self.refusal(operation, pe)) }
    }

    /// Why no operation may be started to a PE.
    #[cold]
    pub fn refusal(&self, operation: Operation, pe: Pe) -> Error {
        match &self.peer(pe).lost {
            Some(lost) => Error::PeerLost { operation, pe, why: lost.why.clone() },
            None => Error::NoSuchPe { pe: pe.into(), last: self.n_pes - 1 },
        }
    }

    /// Whether a PE has been given up.
    pub fn is_lost(&self, pe: Pe) -> bool {
        self.peer(pe).lost.is_some()
    }

    /// Gives a PE up, and what was deferred for it.
    pub fn give_up(&mut self, pe: Pe, why: String) {
        self.close_message();
        let peer = self.peer_mut(pe);
        peer.lost = Some(Box::new(Lost { why }));
        peer.deferred.clear();
    }
}
