//! Dead peers. An endpoint gives a peer up when no rail has reached it for `TIMEOUT_S` although something waited to be
//! sent, or when the peer has left the job.
//!
//! Operations on a dead peer fail at that moment at the latest. Messages and flags remain: they would hold their
//! buffers and keep the proxy thread awake for ever. Requests are numbered, so a peer that came back would reject every
//! request behind a dropped one. The endpoint therefore drops everything that waits for the peer at once, and refuses
//! new operations on it.
//!
//! A message that a peer sent before it left may still arrive. It may be meant for a buffer that returns to its owner
//! when the operation fails. So operations on such a peer get [`ON_ITS_WAY`] to end by themselves.
//!
//! The endpoint retries a dead peer that has several lanes from time to time. When one of them works again, the
//! endpoint tells the peer which requests will not arrive, and uses the peer again. A dead peer with one lane stays
//! dead.

use crate::descriptors;
use crate::endpoint::command::OpHandle;
use crate::endpoint::queue::WorkRequest;
use crate::endpoint::{Core, Endpoint};
use crate::error::{Error, Fault, Operation, Result};
use crate::pe::Pe;
use crate::rail::Dest;

/// Polled seconds for which a message that a peer sent before it left may be on its way.
const ON_ITS_WAY: u64 = 1;

impl Endpoint {
    /// Notes that `pe` has left the job, for the reason `why`: operations on it fail within seconds instead of after
    /// `TIMEOUT_S`. A PE that is already known to have left is ignored.
    pub fn has_left(&mut self, pe: Pe, why: &str) {
        if pe != self.me() && pe < self.n_pes() && !self.core.lanes.is_lost(pe) {
            let now = self.core.clock.now();
            self.core.recovery.left.entry(pe).or_insert_with(|| (now, why.to_owned()));
        }
    }

    /// Whether operations may be started to a PE.
    ///
    /// # Errors
    /// [`Error::NoSuchPe`], [`Error::PeerLost`].
    pub fn accepts(&self, operation: Operation, pe: Pe) -> Result<()> {
        match self.core.recovery.left.get(&pe) {
            Some((_, why)) => Err(Error::PeerLost { operation, pe, why: why.clone() }),
            None => self.core.lanes.accept(operation, pe),
        }
    }
}

/// A lack of descriptors as the end of a message about a PE that was not reached; empty if there is none.
pub(in crate::endpoint) fn lack() -> String {
    descriptors::shortage().map_or_else(String::new, |shortage| format!("; {shortage}"))
}

impl Core {
    /// Gives up PEs that have left the job and PEs that no rail has reached for too long. The endpoint calls it once a
    /// second.
    pub(in crate::endpoint) fn give_up_late(&mut self) {
        descriptors::check();
        let limit = self.profile.timeout_s();
        while let Some((pe, why)) = self.next_that_left() {
            self.give_up(pe, why);
        }
        for lane in 0..self.profile.rails() {
            while let Some(dest) = self.queue.find_waiting(lane, |request| self.is_unanswered(lane, request)) {
                if dest >= self.profile.n_pes() {
                    // An endpoint that reads no answers, perhaps that of a context that was given up.
                } else if self.lanes.failover(dest, lane).is_some() {
                    let text = format!("it has taken nothing for {limit} s (SYMRAIL_TIMEOUT_S)");
                    self.take_down(dest, lane, &Fault { code: libc::ETIMEDOUT, text, retryable: true });
                } else {
                    self.give_up_unreached(dest);
                }
                // The messages that remain have no operation that waits for them.
                self.drop_backlog(lane, dest);
            }
        }
        for at in 0..self.lanes.records() {
            let Some(pe) = self.lanes.addressed(at) else { continue };
            if self.is_silent(pe, limit) {
                self.take_down_all(pe, limit);
                self.give_up_unreached(pe);
            } else if self.lanes.peer(pe).unreached_since.is_some_and(|since| self.is_late(since)) {
                self.give_up_unreached(pe);
            }
        }
    }

    /// Whether a work request has waited for too long while nothing else moved on its connection. A peer that accepts
    /// anything is alive.
    fn is_unanswered(&self, lane: usize, &WorkRequest { dest, since, .. }: &WorkRequest) -> bool {
        self.is_late(since) && self.lanes.get(dest, lane).is_none_or(|c| self.is_late(c.moved))
    }

    fn is_late(&self, since: u32) -> bool {
        self.clock.is_past(since, self.profile.timeout_s())
    }

    /// Takes a PE that left at least [`ON_ITS_WAY`] ago.
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
        let rails = self.rails_to(pe) + &lack();
        let why = format!("no rail has reached it for {seconds} s (SYMRAIL_TIMEOUT_S); is it alive? {rails}");
        tracing::warn!(pe, why, "this PE is given up");
        self.give_up(pe, why);
    }

    /// The rails to a PE, with their addresses and faults, for an error.
    pub(in crate::endpoint) fn rails_to(&self, pe: Pe) -> String {
        self.rails_of(pe, self.lanes.each(pe))
    }

    /// The rails that have work requests of an operation, as in [`Core::rails_to`]. Empty where no other rail leads to
    /// the PE.
    pub(in crate::endpoint) fn rails_holding(&self, id: OpHandle, pe: Pe) -> String {
        let has =
            |lane: usize| self.queue.all().any(|(_, r)| r.op == id && usize::from(r.lane) == lane && r.dest == pe);
        if self.lanes.count(pe) < 2 {
            return String::new();
        }
        self.rails_of(pe, self.lanes.each(pe).filter(|&lane| has(lane)))
    }

    fn rails_of(&self, pe: Pe, lanes: impl Iterator<Item = usize>) -> String {
        let rail = |lane: usize| {
            let path = self.paths.of(pe, lane, self.lanes.theirs(pe, lane));
            let path = if path.is_empty() { path } else { format!(" ({path})") };
            let fault = self.lanes.get(pe, lane).and_then(|c| c.failover.as_ref()?.fault());
            let fault = fault.map_or_else(String::new, |fault| format!(": {}", fault.text));
            format!("rail {}{path}{fault}", self.profile.caps(lane).name)
        };
        lanes.map(rail).collect::<Vec<_>>().join("; ")
    }

    fn give_up(&mut self, pe: Pe, why: String) {
        let operations = self.ops.on(pe);
        operations.iter().for_each(|&id| self.ops.fail_unreachable(id, &why));
        self.lanes.give_up(pe, why);
        self.recovery.given_up.push(pe);
        operations.into_iter().for_each(|id| self.finish(id));
        self.drop_messages(pe);
    }

    /// Drops everything that waits for a PE or for its acknowledgement.
    pub(in crate::endpoint) fn drop_messages(&mut self, pe: Pe) {
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
