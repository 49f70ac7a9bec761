//! Peers that are given up: no rail has reached them for `TIMEOUT_S`, although something waited to be sent; or they
//! have left the job.
//!
//! The operations that needed such a peer fail, at the latest then. What is left are messages and flags, which would
//! keep their buffers, and the proxy thread awake, for ever. Requests are numbered, so a peer that came back would take
//! none behind one that was dropped. So everything that is for it is dropped at once, and what is asked for from then
//! on is refused.
//!
//! What a peer has sent before it left may still arrive, in buffers that are their owners' again when an operation has
//! failed. So operations to it have [`ON_ITS_WAY`] to end by themselves.
//!
//! A peer with several lanes is tried once in a while. When one of them works again, the peer is told which requests it
//! will not see, and is used again. With one lane, whoever is gone stays so.

use crate::endpoint::queue::WorkRequest;
use crate::endpoint::{Core, Endpoint};
use crate::error::Fault;
use crate::pe::Pe;
use crate::rail::Dest;

/// Polled seconds for which what a peer has sent before it left may be on its way.
const ON_ITS_WAY: u64 = 1;

impl Endpoint {
    /// A PE takes part in nothing more, for this reason: operations to it fail within seconds, and not only after
    /// `TIMEOUT_S`. Nothing happens if that is known.
    pub fn has_left(&mut self, pe: Pe, why: &str) {
        if pe != self.me() && pe < self.n_pes() && !self.core.lanes.is_lost(pe) {
            let now = self.core.clock.now();
            self.core.recovery.left.entry(pe).or_insert_with(|| (now, why.to_owned()));
        }
    }
}

impl Core {
    /// Once a second: gives up who has left, and whom no rail has reached for too long.
    pub(in crate::endpoint) fn give_up_late(&mut self) {
        let limit = self.profile.timeout_s();
        while let Some((pe, why)) = self.next_that_left() {
            self.give_up(pe, why);
        }
        for lane in 0..self.profile.rails() {
            while let Some(dest) = self.queue.find_waiting(lane, |request| self.is_unanswered(lane, request)) {
                if dest >= self.profile.n_pes() {
                    // An endpoint that takes no answers: of a context that has been given up, perhaps.
                } else if self.lanes.failover(dest, lane).is_some() {
                    let text = format!("it has taken nothing for {limit} s (SYMRAIL_TIMEOUT_S)");
                    self.take_down(dest, lane, &Fault { code: libc::ETIMEDOUT, text, retryable: true });
                } else {
                    self.give_up_unreached(dest);
                }
                // What is left are messages that nobody waits for.
                self.drop_backlog(lane, dest);
            }
        }
        for at in 0.. {
            let Some(pe) = self.lanes.addressed(at) else { break };
            if self.is_silent(pe, limit) {
                self.take_down_all(pe, limit);
                self.give_up_unreached(pe);
            } else if self.lanes.peer(pe).unreached_since.is_some_and(|since| self.is_late(since)) {
                self.give_up_unreached(pe);
            }
        }
    }

    /// Whether a work request has waited for too long, and not behind others that move: a peer that takes anything is
    /// there.
    fn is_unanswered(&self, lane: usize, &WorkRequest { dest, since, .. }: &WorkRequest) -> bool {
        self.is_late(since) && self.lanes.get(dest, lane).is_none_or(|c| self.is_late(c.moved))
    }

    fn is_late(&self, since: u32) -> bool {
        self.clock.is_past(since, self.profile.timeout_s())
    }

    /// A PE that has left for long enough.
    fn next_that_left(&mut self) -> Option<(Pe, String)> {
        let long = |(since, _): &(u32, String)| self.clock.is_past(*since, ON_ITS_WAY);
        let pe = self.recovery.left.iter().find_map(|(pe, left)| long(left).then_some(*pe))?;
        self.recovery.left.remove(&pe).map(|(_, why)| (pe, why))
    }

    fn give_up_unreached(&mut self, pe: Pe) {
        if self.lanes.is_lost(pe) {
            return;
        }
        let seconds = self.profile.timeout_s();
        let fault = self.lanes.unreachable(pe).map_or_else(String::new, |(_, fault)| format!(" {}", fault.text));
        let why = format!("no rail has reached it for {seconds} s (SYMRAIL_TIMEOUT_S); is it alive?{fault}");
        tracing::warn!(pe, why, "this PE is given up");
        self.give_up(pe, why);
    }

    fn give_up(&mut self, pe: Pe, why: String) {
        let operations = self.ops.on(pe);
        operations.iter().for_each(|&id| self.ops.fail_unreachable(id, &why));
        self.lanes.give_up(pe, why);
        operations.into_iter().for_each(|id| self.finish(id));
        for lane in 0..self.profile.rails() {
            self.drop_backlog(lane, pe);
            let Some(c) = self.lanes.get_mut(pe, lane) else { continue };
            (c.dirty, c.lazy, c.applied) = (false, false, c.sent);
            c.unacked.clear();
            c.request_bytes = 0;
            let gathered = c.outbox.take().map(|(slot, _)| slot);
            let kept = c.failover.as_deref_mut().map(|f| f.take_kept()).unwrap_or_default();
            gathered.into_iter().chain(kept).for_each(|slot| self.bounce.free(slot));
        }
        let undrained = std::mem::take(&mut self.recovery.undrained);
        for id in undrained {
            if self.queue.get(id).is_some_and(|r| r.dest == pe) {
                self.abandon(id);
            } else {
                self.recovery.undrained.push(id);
            }
        }
    }

    fn drop_backlog(&mut self, lane: usize, dest: Dest) {
        for id in self.queue.take_waiting(lane, dest) {
            self.abandon(id);
        }
    }

    /// Ends a work request that no rail has.
    pub(in crate::endpoint) fn abandon(&mut self, id: u64) {
        let Some(&WorkRequest { op, .. }) = self.queue.get(id) else { return };
        self.retire(id);
        self.release(op);
    }
}
