//! Peers that are given up: no rail has reached them for `TIMEOUT_S`, although something waited to be sent.
//!
//! The operations that needed such a peer have failed by then. What is left are messages and flags, which would keep their buffers, and
//! the proxy thread awake, for ever. Requests are numbered, so a peer that came back would take none behind one that was
//! dropped. So everything that is for it is dropped at once, and what is asked for from then on is refused.
//!
//! A peer with several lanes is tried once in a while. When one of them works again, the peer is told which requests it will not see,
//! and is used again. With one lane, whoever is gone stays so.

use super::post::WorkRequest;
use super::{Core, OpHandle};
use crate::error::{Error, Fault, Operation, Result};
use crate::pe::Pe;
use crate::rail::Dest;

impl Core {
    /// Whether an operation may be started to a PE.
    ///
    /// # Errors
    /// [`Error::NoSuchPe`], [`Error::Gone`].
    #[inline]
    pub(super) fn accepts(&self, operation: Operation, pe: Pe) -> Result<()> {
        match self.peers.get(pe as usize) {
            None => Err(Error::NoSuchPe { pe: pe.into(), last: self.n_pes - 1 }),
            Some(peer) if peer.gone => Err(Error::Gone { operation, pe, seconds: self.policy.timeout_s }),
            Some(_) => Ok(()),
        }
    }

    /// Whether a PE has been given up.
    pub(super) fn is_gone(&self, pe: Pe) -> bool {
        self.peers.get(pe as usize).is_some_and(|peer| peer.gone)
    }

    /// Once a second: gives up whom no rail has reached for too long.
    pub(super) fn give_up_late(&mut self) {
        let limit = self.policy.timeout_s;
        for lane in 0..self.caps.len() {
            while let Some(dest) = self.backlog[lane].find(|id| self.waits_in_vain(lane, id)) {
                if dest >= self.n_pes {
                    // An endpoint that takes no answers: of a context that has been given up, perhaps.
                } else if self.failover(dest, lane).is_some() {
                    let text = format!("it has taken nothing for {limit} s (SYMRAIL_TIMEOUT_S)");
                    self.take_down(dest, lane, &Fault { code: libc::ETIMEDOUT, text, retryable: true });
                } else {
                    self.give_up(dest);
                }
                // What is left are messages that nobody waits for.
                self.drop_backlog(lane, dest);
            }
        }
        for pe in 0..self.n_pes {
            if self.is_silent(pe, limit) {
                self.take_down_all(pe, limit);
                self.give_up(pe);
            } else if self.peers[pe as usize].unreached_since.is_some_and(|since| self.is_late(since)) {
                self.give_up(pe);
            }
        }
    }

    /// Whether a work request has waited for too long, and not behind others that move: a peer that takes anything is there.
    fn waits_in_vain(&self, lane: usize, id: u64) -> bool {
        let Some(&WorkRequest { dest, since, .. }) = self.work.get(id) else { return false };
        let way = self.connections.get(dest as usize * self.caps.len() + lane).filter(|_| dest < self.n_pes);
        self.is_late(since) && way.is_none_or(|c| self.is_late(c.moved))
    }

    fn is_late(&self, since: u32) -> bool {
        u64::from(self.now.wrapping_sub(since)) > self.policy.timeout_s
    }

    fn give_up(&mut self, pe: Pe) {
        if std::mem::replace(&mut self.peers[pe as usize].gone, true) {
            return;
        }
        let seconds = self.policy.timeout_s;
        tracing::warn!(pe, seconds, "no rail reaches this PE any more (SYMRAIL_TIMEOUT_S): it is given up");
        let theirs: Vec<OpHandle> =
            self.ops.ids().filter(|&id| self.ops.get(id).is_some_and(|op| op.pe == pe)).collect();
        theirs.into_iter().for_each(|id| self.expire(id));
        self.peers[pe as usize].deferred.clear();
        for lane in 0..self.caps.len() {
            self.drop_backlog(lane, pe);
            let Some(c) = self.connection(pe, lane) else { continue };
            (c.dirty, c.lazy, c.applied) = (false, false, c.sent);
            c.unacked.clear();
            c.request_bytes = 0;
            let gathered = c.outbox.take().map(|(slot, _)| slot);
            let kept = c.failover.as_deref_mut().map(|f| f.take_kept()).unwrap_or_default();
            gathered.into_iter().chain(kept).for_each(|slot| self.bounce.free(slot));
        }
        let stranded = std::mem::take(&mut self.stranded);
        for id in stranded {
            if self.work.get(id).is_some_and(|r| r.dest == pe) {
                self.abandon(id);
            } else {
                self.stranded.push(id);
            }
        }
    }

    fn drop_backlog(&mut self, lane: usize, dest: Dest) {
        for id in self.backlog[lane].take_all(dest) {
            self.abandon(id);
        }
    }

    /// Ends a work request that no rail has.
    pub(super) fn abandon(&mut self, id: u64) {
        let Some(&WorkRequest { op, .. }) = self.work.get(id) else { return };
        self.retire(id);
        self.release(op);
    }
}
