//! Work requests that a rail has refused for now, in order for each destination.
//!
//! A rail refuses when its queue is full, or because of one destination: its connection is being made, or made again for
//! ever since the peer is gone. Which of both it is nobody tells. So each look at a backlog tries a few destinations, and begins
//! where the last one stopped: work for a peer that cannot be reached never keeps others waiting.

use std::collections::{HashMap, VecDeque};

use crate::rail::Dest;

/// What waits for a rail.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    /// Destinations for which something waits; the first is the next to be tried.
    turns: VecDeque<Dest>,
    /// Ids of work requests. Kept when empty, for their memory.
    waiting: HashMap<Dest, VecDeque<u64>>,
    /// Destinations for which work waits that no rail has refused: for company.
    held: Vec<Dest>,
}

impl Backlog {
    /// Whether nothing waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    /// For how many destinations something waits.
    pub fn destinations(&self) -> usize {
        self.turns.len()
    }

    /// Whether something waits for `dest`, so that all that follows has to wait, too.
    #[inline]
    pub fn holds(&self, dest: Dest) -> bool {
        !self.turns.is_empty() && self.waiting.get(&dest).is_some_and(|ids| !ids.is_empty())
    }

    /// Adds a work request behind what waits for the same destination.
    pub fn push(&mut self, dest: Dest, id: u64) {
        let ids = self.waiting.entry(dest).or_default();
        if ids.is_empty() {
            self.turns.push_back(dest);
        }
        ids.push_back(id);
    }

    /// Adds a work request that waits for others to the same destination, and tells how many wait there.
    pub fn hold(&mut self, dest: Dest, id: u64) -> usize {
        if !self.is_held(dest) {
            self.held.push(dest);
        }
        self.push(dest, id);
        self.waiting.get(&dest).map_or(0, VecDeque::len)
    }

    /// Whether what waits for `dest` waits for company only.
    #[inline]
    pub fn is_held(&self, dest: Dest) -> bool {
        self.held.contains(&dest)
    }

    /// From now on all that waits is to be posted.
    #[inline]
    pub fn hold_no_longer(&mut self) {
        self.held.clear();
    }

    /// A destination whose oldest work request is such a one.
    pub fn find(&self, such: impl Fn(u64) -> bool) -> Option<Dest> {
        let oldest = |dest: &Dest| self.waiting.get(dest).and_then(|ids| ids.front());
        self.turns.iter().copied().find(|dest| oldest(dest).is_some_and(|&id| such(id)))
    }

    /// The work request to be tried next.
    pub fn first(&self) -> Option<u64> {
        self.waiting.get(self.turns.front()?)?.front().copied()
    }

    /// All that waits for the same destination as [`Backlog::first`], that one included, in order.
    pub fn waiting_first(&self) -> impl Iterator<Item = u64> {
        self.turns.front().and_then(|dest| self.waiting.get(dest)).into_iter().flatten().copied()
    }

    /// Takes the first out. The next of its destination is tried before those of others.
    pub fn take_first(&mut self) {
        let Some(ids) = self.turns.front().and_then(|dest| self.waiting.get_mut(dest)) else { return };
        ids.pop_front();
        if ids.is_empty() {
            self.turns.pop_front();
        }
    }

    /// Takes out all that waits for `dest`, in order.
    pub fn take_all(&mut self, dest: Dest) -> VecDeque<u64> {
        self.turns.retain(|&other| other != dest);
        self.held.retain(|&other| other != dest);
        self.waiting.remove(&dest).unwrap_or_default()
    }

    /// The first was refused: all other destinations come before its own now.
    pub fn pass(&mut self) {
        if let Some(dest) = self.turns.pop_front() {
            self.turns.push_back(dest);
        }
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
