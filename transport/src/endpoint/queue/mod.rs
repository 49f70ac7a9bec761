//! The send queue: work requests from their creation until a rail has completed them.
//!
//! `post` hands them to rails, several in one post where [`software`](super::software) coalesces. A work request that a
//! rail refuses for now waits in a backlog, in order for each destination. A rail refuses when its queue is full, or
//! because of one destination, whose connection is being made (for ever if the peer is dead). The rail does not report
//! which. So each pass over a backlog tries a few destinations, and begins where the last pass stopped: work for an
//! unreachable peer never blocks work for other peers.

mod post;

use std::collections::{HashMap, HashSet, VecDeque};

use slotmap::{DefaultKey, SlotMap};

use super::command::{OpHandle, Priority};
use super::operations::{handle, key};
use super::software::Held;
use super::swap_loop::WordAmo;
use crate::bounce::Slot;
use crate::rail::Dest;

/// The number of work requests in flight at which [`SendQueue::has_room`] returns `false`.
const MOST: usize = 4096;

/// The kind of a work request.
#[derive(Debug, Clone, Copy)]
pub(super) enum Work {
    /// Writes to a symmetric offset; complete when visible at the target.
    Write { offset: u64 },
    /// Writes to a symmetric offset; complete when it has left (`FI_TRANSMIT_COMPLETE`) or, where it may have to be
    /// repeated, when it is visible. The immediate is delivered to the target.
    TransmittedWrite { offset: u64, immediate: Option<u64> },
    /// Reads from a symmetric offset.
    Read { offset: u64 },
    /// Sends a message.
    Send,
    /// Sends a keepalive. Its delivery shows that another lane works than `instead_of`, whose port went down for the
    /// `outage`th time.
    Probe { instead_of: u8, outage: u32 },
    /// Lets the provider perform an AMO.
    Amo { amo: WordAmo, fetching: bool },
}

/// A work request.
#[derive(Debug, Clone, Copy)]
pub(super) struct WorkRequest {
    pub work: Work,
    pub dest: Dest,
    pub lane: u8,
    /// The lane on which it was first posted, where fences look for it.
    pub home: u8,
    /// Its position among everything that was posted.
    pub serial: u64,
    /// The generation of the home lane's stream whose messages stay behind this work request.
    pub generation: Option<u32>,
    /// When it was first to be posted, in seconds.
    pub since: u32,
    /// When it was to be posted on its lane, in microseconds, where that is measured.
    pub posted: u32,
    /// More work requests follow at once on this lane.
    pub more: bool,
    /// It may wait to be coalesced.
    pub coalesce: bool,
    /// It is a piece of a segmented operation of this priority.
    pub segmented: Option<Priority>,
    /// Its bytes count towards the window.
    pub in_window: bool,
    /// The next of the work requests that were posted together with it.
    pub next: Option<u64>,
    /// The operation it belongs to; 0 for replies.
    pub op: OpHandle,
    pub ptr: *mut u8,
    pub len: usize,
    /// The bounce slot that `ptr` points into, freed with the work request.
    pub slot: Option<Slot>,
    /// `ptr` is user memory that a rail must not touch: its bytes travel through this slot.
    pub via: Option<Slot>,
}

impl WorkRequest {
    /// A work request of `len` bytes at `ptr`, which point into `slot` if they are not user memory.
    pub fn new(
        work: Work,
        dest: Dest,
        lane: usize,
        op: OpHandle,
        (ptr, len): (*mut u8, usize),
        slot: Option<Slot>,
    ) -> Self {
        WorkRequest {
            work,
            dest,
            lane: lane as u8,
            home: lane as u8,
            serial: 0,
            generation: None,
            since: 0,
            posted: 0,
            more: false,
            coalesce: false,
            segmented: None,
            in_window: false,
            next: None,
            op,
            ptr,
            len,
            slot,
            via: None,
        }
    }
}

/// The work requests that wait for a rail.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    /// Destinations with waiting work requests; the first is the next to be tried.
    turns: VecDeque<Dest>,
    /// Ids of work requests. An empty queue is kept for its memory.
    waiting: HashMap<Dest, VecDeque<u64>>,
    /// Destinations whose work requests wait to be coalesced, and have not been refused by the rail.
    pub(super) held: Vec<Held>,
}

impl Backlog {
    /// Whether nothing waits.
    #[inline]
    fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    /// The number of destinations with waiting work requests.
    fn destinations(&self) -> usize {
        self.turns.len()
    }

    /// Whether any work request waits for `dest`, so that all later ones have to wait, too.
    #[inline]
    pub(super) fn holds(&self, dest: Dest) -> bool {
        !self.turns.is_empty() && self.waiting.get(&dest).is_some_and(|ids| !ids.is_empty())
    }

    /// Adds a work request behind those for the same destination.
    pub(super) fn push(&mut self, dest: Dest, id: u64) {
        let ids = self.waiting.entry(dest).or_default();
        if ids.is_empty() {
            self.turns.push_back(dest);
        }
        ids.push_back(id);
    }

    /// Whether the work requests for `dest` wait only to be coalesced.
    #[inline]
    pub(super) fn is_held(&self, dest: Dest) -> bool {
        self.held.iter().any(|held| held.dest == dest)
    }

    /// Ends coalescing: all waiting work requests are to be posted now.
    #[inline]
    fn hold_no_longer(&mut self) {
        self.held.clear();
    }

    /// A destination whose oldest waiting work request matches.
    fn find(&self, such: impl Fn(u64) -> bool) -> Option<Dest> {
        let oldest = |dest: &Dest| self.waiting.get(dest).and_then(|ids| ids.front());
        self.turns.iter().copied().find(|dest| oldest(dest).is_some_and(|&id| such(id)))
    }

    /// The work request to try next.
    fn first(&self) -> Option<u64> {
        self.waiting.get(self.turns.front()?)?.front().copied()
    }

    /// All work requests for the destination of [`Backlog::first`], in order, including the first.
    pub(super) fn waiting_first(&self) -> impl Iterator<Item = u64> {
        self.turns.front().and_then(|dest| self.waiting.get(dest)).into_iter().flatten().copied()
    }

    /// Removes the first work request. The next one for its destination is tried before those of others.
    fn take_first(&mut self) {
        let Some(ids) = self.turns.front().and_then(|dest| self.waiting.get_mut(dest)) else { return };
        ids.pop_front();
        if ids.is_empty() {
            self.turns.pop_front();
        }
    }

    /// Removes all work requests for `dest`, in order.
    fn take_all(&mut self, dest: Dest) -> VecDeque<u64> {
        self.turns.retain(|&other| other != dest);
        self.held.retain(|held| held.dest != dest);
        self.waiting.remove(&dest).unwrap_or_default()
    }

    /// Moves the destination of the first work request, which was refused, behind all others.
    fn pass(&mut self) {
        if let Some(dest) = self.turns.pop_front() {
            self.turns.push_back(dest);
        }
    }
}

/// The work requests of an endpoint.
pub(super) struct SendQueue {
    pub(super) table: SlotMap<DefaultKey, WorkRequest>,
    /// The backlog of each rail.
    pub(super) backlog: Vec<Backlog>,
    /// The number of the last work request or message.
    serial: u64,
}

impl SendQueue {
    pub fn new(rails: usize) -> SendQueue {
        let backlog = (0..rails).map(|_| Backlog::default()).collect();
        SendQueue { table: SlotMap::with_capacity(MOST), backlog, serial: 0 }
    }

    /// Whether there is room for another.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.table.len() < MOST
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// The next serial number, for a new work request or message.
    #[inline]
    pub fn next_serial(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }

    /// Enters a work request behind all others.
    #[inline(always)]
    pub fn enter(&mut self, request: &mut WorkRequest) -> u64 {
        request.serial = self.next_serial();
        handle(self.table.insert(*request))
    }

    #[inline]
    pub fn get(&self, id: u64) -> Option<&WorkRequest> {
        self.table.get(key(id))
    }

    #[inline]
    pub fn remove(&mut self, id: u64) -> Option<WorkRequest> {
        self.table.remove(key(id))
    }

    pub fn all(&self) -> impl Iterator<Item = (u64, &WorkRequest)> {
        self.table.iter().map(|(key, request)| (handle(key), request))
    }

    /// Whether any work request waits for a lane's rail.
    #[inline]
    pub fn waits_for(&self, lane: usize) -> bool {
        !self.backlog[lane].is_empty()
    }

    /// Whether no work request waits for any rail.
    pub fn is_clear(&self) -> bool {
        self.backlog.iter().all(Backlog::is_empty)
    }

    /// Whether any work request waits for `dest` on a lane, so that all later ones have to wait, too.
    #[inline]
    pub fn holds(&self, lane: usize, dest: Dest) -> bool {
        self.backlog[lane].holds(dest)
    }

    /// A destination whose oldest waiting work request on a lane matches.
    pub fn find_waiting(&self, lane: usize, such: impl Fn(&WorkRequest) -> bool) -> Option<Dest> {
        self.backlog[lane].find(|id| self.table.get(key(id)).is_some_and(&such))
    }

    /// Since when the oldest work request for `dest` waits for a lane's rail.
    pub fn waiting_since(&self, lane: usize, dest: Dest) -> Option<u32> {
        let id = self.backlog[lane].waiting.get(&dest)?.front()?;
        self.get(*id).map(|request| request.since)
    }

    /// All work requests that wait for a rail.
    pub fn waiting(&self) -> HashSet<u64> {
        self.backlog.iter().flat_map(|backlog| backlog.waiting.values().flatten().copied()).collect()
    }

    /// Whether there is a work request for `dest`.
    pub fn has_any(&self, dest: Dest) -> bool {
        self.table.values().any(|request| request.dest == dest)
    }

    /// Removes all work requests for `dest` from a lane's backlog, in order.
    pub fn take_waiting(&mut self, lane: usize, dest: Dest) -> VecDeque<u64> {
        self.backlog[lane].take_all(dest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn destinations_take_turns_and_keep_their_order() {
        let mut backlog = Backlog::default();
        for (dest, id) in [(5, 1), (7, 2), (5, 3), (7, 4)] {
            backlog.push(dest, id);
        }
        let mut taken = Vec::new();
        backlog.pass(); // 5 is refused
        while let Some(id) = backlog.first() {
            taken.push(id);
            backlog.take_first();
            if id == 4 {
                assert!(backlog.holds(5) && !backlog.holds(7) && backlog.destinations() == 1);
            }
        }
        assert_eq!(taken, [2, 4, 1, 3]);
        assert!(backlog.is_empty() && !backlog.holds(5));
    }
}
