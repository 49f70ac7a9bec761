//! The record of one peer, and of one lane to it.

use std::collections::VecDeque;

use crate::bounce::Slot;
use crate::endpoint::command::{Command, OpHandle, Priority};
use crate::endpoint::failover::Failover;
use crate::endpoint::protocol::FirstPost;
use crate::rail::Order;

/// One lane to one peer. The struct is small because there is one for every (peer, rail).
#[derive(Default)]
pub(in crate::endpoint) struct Connection {
    /// Writes that are not complete, including those that were first posted here and have moved to another lane.
    pub writes: u32,
    /// Bytes of writes under way that ask for delivery, where a window limits them.
    pub under_way: u64,
    /// Bytes of incomplete writes and reads, and of unacknowledged requests.
    pub bytes: u64,
    pub request_bytes: u32,
    /// Sequence number of the last request sent.
    pub sent: u32,
    /// Sequence number of the last request that the target applied.
    pub applied: u32,
    /// When a work request on this lane last completed, in seconds.
    pub moved: u32,
    /// When a small put was last posted at once, in microseconds, and the fence before it.
    pub sent_at: u32,
    pub sent_behind: u32,
    /// Operations that will post more on this lane: see [`Lanes::hold`](super::Lanes::hold).
    pub later: u16,
    /// Writes without a completion were posted since the last flush.
    pub dirty: bool,
    /// Requests that the target acknowledges at leisure were sent since the last flush.
    pub lazy: bool,
    /// Requests were sent since the last one that asked for its acknowledgement.
    pub ack_not_requested: bool,
    /// This connection is in the list of connections to flush.
    pub listed: bool,
    /// The rail of the peer's proxy endpoint at the other end, plus one; 0 where there is no lane.
    pub(super) paired: u8,
    /// The peer knows this endpoint, where it has to.
    pub introduced: bool,
    /// The outbox: requests that are gathered for one message. The slot, and its bytes in use.
    pub outbox: Option<(Slot, u32)>,
    /// Operations with unacknowledged requests in sequence, each with the count of its consecutive requests.
    pub unacked: VecDeque<(OpHandle, u32)>,
    /// The failover record of this lane; `None` where the peer has no other lane.
    pub failover: Option<Box<Failover>>,
}

impl Connection {
    /// The rail of the peer's proxy endpoint at the other end of this endpoint's rail `lane`. Requests and answers name
    /// a lane by it.
    #[inline]
    pub fn theirs(&self, lane: usize) -> usize {
        usize::from(self.paired).checked_sub(1).unwrap_or(lane)
    }

    /// Counts a new request; returns its sequence number.
    #[inline(always)]
    pub fn number(&mut self, op: OpHandle, bytes: usize) -> u32 {
        self.sent = self.sent.wrapping_add(1);
        match self.unacked.back_mut() {
            Some((last, count)) if *last == op => *count += 1,
            _ => self.unacked.push_back((op, 1)),
        }
        self.request_bytes = self.request_bytes.saturating_add(bytes as u32);
        self.sent
    }

    /// Marks the oldest `count` requests as acknowledged. Returns `false`, and changes nothing, when fewer were sent.
    /// Their sizes are not kept: each request counts the average of the bytes.
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

    /// Takes up to `most` of the oldest acknowledged requests that belong to one operation: the operation and their
    /// count.
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

    /// Whether nothing but so many writes is under way. More writes may be.
    #[inline]
    pub fn empty_but_for(&self, writes: u32) -> bool {
        self.writes == writes && !self.dirty && self.unacked.is_empty()
    }

    /// Whether messages of this lane's stream travel over this lane, behind its writes.
    #[inline]
    pub fn is_straight(&self) -> bool {
        self.failover.as_ref().is_none_or(|f| f.is_straight())
    }

    /// Whether an operation that is posted here now cannot overtake the operations that a fence ordered before it.
    ///
    /// `fenced` is the sequence number of the last request before the fence.
    pub fn keeps_behind(&self, order: Order, fenced: u32, first: FirstPost) -> bool {
        let (as_message, writes) = (first == FirstPost::Message, first == FirstPost::Write);
        // A write that another lane may have to repeat must not overwrite a later one.
        let after_writes = (self.writes == 0 && !self.dirty)
            || (as_message && order.send_after_write && self.is_straight())
            || (writes && order.write_after_write && self.failover.is_none());
        // The target applies requests in sequence, but a write does not wait for the agent.
        let applied = self.applied.wrapping_sub(fenced).cast_signed() >= 0;
        self.later == 0 && after_writes && (applied || (as_message && order.send_after_send))
    }
}

/// The record of a peer, over all lanes.
#[derive(Default)]
pub(in crate::endpoint) struct Peer {
    /// The addresses of its rails are known here.
    pub connected: bool,
    /// The number of lanes to it; 0 until connected.
    pub lanes: u8,
    /// The number of its host endpoint's rails, which are the first ones of its proxy endpoint's.
    pub(super) host_rails: u8,
    /// The lane for small operations.
    pub(super) lane: u8,
    /// The number of its failed lanes, and since which second all have failed.
    pub(super) down: u8,
    pub unreached_since: Option<u32>,
    /// The reason, if the peer has been given up.
    pub(super) lost: Option<Box<Lost>>,
    /// The only lane for its operations until that is idle, because of a fence.
    pub pinned: Option<u8>,
    /// The fence before its last operation.
    pub(super) epoch: u32,
    /// The last request on the pinned lane before that fence.
    pub fenced: u32,
    /// Operations that wait for earlier ones, in order.
    pub(super) deferred: VecDeque<Deferred>,
}

/// An operation that waits for earlier ones.
pub(super) struct Deferred {
    pub op: OpHandle,
    pub command: Command,
    pub priority: Priority,
    /// The fence before it.
    pub epoch: u32,
}

/// A peer that has been given up.
pub(super) struct Lost {
    /// Why it was given up.
    pub why: String,
}

impl Peer {
    /// Whether an operation waits for earlier ones. All later operations have to wait behind it.
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
