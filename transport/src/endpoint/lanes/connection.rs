//! What is remembered of one peer, and of one lane to it.

use std::collections::VecDeque;

use crate::bounce::Slot;
use crate::endpoint::command::{Command, OpHandle};
use crate::endpoint::failover::Failover;
use crate::rail::Order;

/// One lane to one peer. Kept small: there is one for every (peer, rail).
#[derive(Default)]
pub(in crate::endpoint) struct Connection {
    /// Writes with a completion still to come; also those that were posted here first and have moved to another lane.
    pub writes: u32,
    /// Bytes of writes under way that ask for delivery, where there is a window for them.
    pub under_way: u64,
    /// Bytes of writes and reads that are not complete, and of requests that are not acknowledged.
    pub bytes: u64,
    pub request_bytes: u32,
    /// Sequence number of the last request sent.
    pub sent: u32,
    /// Sequence number of the last request that the target applied.
    pub applied: u32,
    /// When anything was last reported to have gone over it, in seconds.
    pub moved: u32,
    /// When a small put last went at once, in microseconds, and behind which fence.
    pub sent_at: u32,
    pub sent_behind: u32,
    /// Operations that will post more here than they have: see [`Lanes::hold`](super::Lanes::hold).
    pub later: u16,
    /// Writes without a completion were posted since the last flush.
    pub dirty: bool,
    /// Requests that are acknowledged when it suits the target were sent since the last flush.
    pub lazy: bool,
    /// Requests were sent since the last one that asked for its acknowledgement.
    pub(super) unasked: bool,
    /// It is in the list of connections to flush.
    pub(super) listed: bool,
    /// The peer has been told of this endpoint, where it has to be.
    pub introduced: bool,
    /// Requests that are gathered for one message: the slot, and the bytes used of it.
    pub outbox: Option<(Slot, u32)>,
    /// Operations whose requests are not yet acknowledged, in sequence, each with the number of its neighbouring ones.
    pub unacked: VecDeque<(OpHandle, u32)>,
    /// What is needed to do without this lane; `None` where the peer has no other.
    pub failover: Option<Box<Failover>>,
}

impl Connection {
    /// Takes a new request into account; returns its sequence number.
    pub fn number(&mut self, op: OpHandle, bytes: usize) -> u32 {
        self.sent = self.sent.wrapping_add(1);
        match self.unacked.back_mut() {
            Some((last, count)) if *last == op => *count += 1,
            _ => self.unacked.push_back((op, 1)),
        }
        self.request_bytes = self.request_bytes.saturating_add(bytes as u32);
        self.sent
    }

    /// The oldest `count` requests are acknowledged. `false`, and nothing changes, when fewer were sent. Their sizes
    /// are not kept: each counts as much as the others.
    pub fn acknowledge(&mut self, count: u32) -> bool {
        let all = self.sent.wrapping_sub(self.applied);
        if count > all {
            return false;
        }
        let each = self.request_bytes / all.max(1);
        self.request_bytes -= if count == all { self.request_bytes } else { each * count };
        self.applied = self.applied.wrapping_add(count);
        true
    }

    /// Takes the oldest of at most `most` requests that are acknowledged: their operation, and how many of them are
    /// its.
    pub fn next_acknowledged(&mut self, most: u32) -> Option<(OpHandle, u32)> {
        let &mut (op, ref mut count) = self.unacked.front_mut().filter(|_| most > 0)?;
        let taken = most.min(*count);
        *count -= taken;
        if *count == 0 {
            self.unacked.pop_front();
        }
        Some((op, taken))
    }

    /// Whether everything posted here has been delivered.
    #[inline]
    pub fn idle(&self) -> bool {
        self.later == 0 && self.empty_but_for(0)
    }

    /// Whether nothing is under way but so many writes. More may be to come.
    #[inline]
    pub fn empty_but_for(&self, writes: u32) -> bool {
        self.writes == writes && !self.dirty && self.unacked.is_empty()
    }

    /// Whether messages of this lane's stream go over this lane, behind its writes.
    #[inline]
    pub fn is_straight(&self) -> bool {
        self.failover.as_ref().is_none_or(|f| f.is_straight())
    }

    /// Whether an operation posted here now cannot overtake what a fence ordered before it.
    ///
    /// `fenced` is the sequence number of the last request before the fence. `as_message`: the operation is a request;
    /// `writes`: it writes by itself.
    pub fn keeps_behind(&self, order: Order, fenced: u32, as_message: bool, writes: bool) -> bool {
        // A write that another lane may have to repeat must not come to lie over a later one.
        let after_writes = (self.writes == 0 && !self.dirty)
            || (as_message && order.send_after_write && self.is_straight())
            || (writes && order.write_after_write && self.failover.is_none());
        // The target applies requests in sequence; but a write does not wait for the agent.
        let applied = self.applied.wrapping_sub(fenced).cast_signed() >= 0;
        self.later == 0 && after_writes && (applied || (as_message && order.send_after_send))
    }
}

/// What an endpoint remembers about a peer, over all lanes.
#[derive(Default)]
pub(in crate::endpoint) struct Peer {
    /// Its rails are known here.
    pub connected: bool,
    /// Lanes to it, and to its host endpoint; 0 until connected.
    pub lanes: u8,
    pub host_lanes: u8,
    /// The lane that small operations take.
    pub(super) lane: u8,
    /// How many of them are not used because they failed, and since when (in seconds) that is all of them.
    pub(super) down: u8,
    pub unreached_since: Option<u32>,
    /// It has been given up.
    pub(super) lost: Option<Box<Lost>>,
    /// Everything goes over this lane until it is idle, because a fence ordered it so.
    pub pinned: Option<u8>,
    /// The fence that its last operation came after.
    pub(super) epoch: u32,
    /// Last request on the pinned lane before that fence.
    pub fenced: u32,
    /// Operations that wait for earlier ones, in order, with the fence that they come after.
    pub(super) deferred: VecDeque<(OpHandle, Command, u32)>,
}

/// A peer that has been given up.
pub(super) struct Lost {
    /// What became of it.
    pub why: String,
}

impl Peer {
    /// Whether something waits for earlier operations, behind which all later ones have to wait.
    #[inline]
    pub fn defers(&self) -> bool {
        !self.deferred.is_empty()
    }

    /// Whether all its lanes are in use.
    #[inline]
    pub fn is_whole(&self) -> bool {
        self.down == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acknowledgements_tell_how_many_requests_of_each_operation_they_are_for() {
        let mut c = Connection::default();
        for op in [7, 7, 7, 0, 7, 9] {
            c.number(op, 10);
        }
        let acknowledge = |c: &mut Connection, count| {
            let (mut left, mut acknowledged) = (count, Vec::new());
            assert!(c.acknowledge(count));
            while let Some((op, taken)) = c.next_acknowledged(left) {
                left -= taken;
                acknowledged.push((op, taken));
            }
            acknowledged
        };
        assert_eq!(acknowledge(&mut c, 1), [(7, 1)]);
        assert_eq!((c.applied, c.request_bytes), (1, 50));
        assert_eq!(acknowledge(&mut c, 4), [(7, 2), (0, 1), (7, 1)]);
        assert!(!c.acknowledge(2), "so many were not sent");
        assert_eq!(acknowledge(&mut c, 1), [(9, 1)]);
        assert_eq!((c.applied, c.request_bytes, c.unacked.len()), (6, 0, 0));
    }

    #[test]
    fn connection_state_is_small() {
        assert!(size_of::<Connection>() <= 104, "{}", size_of::<Connection>());
        assert!(size_of::<Peer>() <= 64, "{}", size_of::<Peer>());
    }
}
