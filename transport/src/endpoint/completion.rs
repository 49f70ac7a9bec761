//! From what a rail reports back to finished operations.

use super::failover::PortNews;
use super::job::{Finished, Issuer, Op, OpHandle};
use super::post::{Work, WorkRequest};
use super::submit::store;
use super::{Core, IssuerState, TargetAgent};
use crate::error::{Error, Fault};
use crate::rail::RailSink;
use crate::wire::{Refusal, Reply, Request, SIGN_OF_LIFE};

/// Takes a rail's reports while it is polled.
pub(super) struct Sink<'a> {
    pub core: &'a mut Core,
    pub lane: usize,
    pub agent: &'a mut dyn TargetAgent,
}

/// The agent of an endpoint that is never a target.
pub struct NoAgent;

impl TargetAgent for NoAgent {
    fn request(&mut self, _lane: usize, request: &Request, _payload: &[u8]) {
        tracing::warn!(pe = request.source, "a request came to a host endpoint; dropped");
    }

    fn count(&mut self, word: u64) {
        tracing::warn!(word, "an arrival to be counted came to a host endpoint; dropped");
    }
}

impl RailSink for Sink<'_> {
    fn done(&mut self, id: u64) {
        let Some(&WorkRequest { work, dest, op, next, len, .. }) = self.core.work.get(id) else { return };
        self.core.retire(id);
        // A message that has left says nothing about the way.
        self.core.reported(dest, self.lane, len, !matches!(work, Work::Send));
        if let Work::Probe { instead_of, outage } = work {
            self.core.port_news.push(PortNews::OtherWay { dest, instead_of, outage });
        }
        self.core.release(op);
        if let Some(next) = next {
            self.done(next);
        }
    }

    fn failed(&mut self, id: u64, mut fault: Fault) {
        let Some(&WorkRequest { work, dest, op, next, len, .. }) = self.core.work.get(id) else { return };
        if let Some(next) = next {
            self.failed(next, fault.clone());
        }
        self.core.reported(dest, self.lane, len, false);
        if !(matches!(work, Work::Amo { .. }) && fault.retryable) {
            return self.refused(id, fault);
        }
        fault.text = format!("{}; whether it was performed is not known", fault.text);
        self.core.counters[self.lane].failed += 1;
        self.core.take_down(dest, self.lane, &fault);
        self.core.end_failed(id, op, self.lane, fault);
    }

    fn message(&mut self, bytes: &[u8]) {
        let Some(bytes) = self.core.token.open(bytes) else { return self.core.count_stranger(self.lane) };
        let complaint = match bytes.first() {
            Some(&Reply::TAG) => self.core.take_reply(bytes),
            _ if *bytes == SIGN_OF_LIFE => Ok(()),
            _ => self.take_requests(bytes),
        };
        if let Err(why) = complaint
            && !std::mem::replace(&mut self.core.complained, true)
        {
            tracing::warn!(
                why,
                bytes = bytes.len(),
                "dropped a malformed message; further ones are dropped in silence"
            );
        }
    }

    fn immediate(&mut self, immediate: u64) {
        match super::counted::word_of(immediate, self.core.token) {
            Some(word) => self.agent.count(word),
            None => self.core.count_stranger(self.lane),
        }
    }

    fn broken(&mut self, fault: Fault) {
        self.core.counters[self.lane].failed += 1;
        if fault.retryable && self.core.fails_over() {
            tracing::debug!(rail = %self.core.caps[self.lane].name, %fault, "a work request without completion failed");
            return self.core.suspect(self.lane, &fault);
        }
        // What was posted without a completion is followed by a flush request, whose acknowledgement will not come.
        tracing::warn!(rail = %self.core.caps[self.lane].name, %fault, "a work request without completion failed");
    }

    fn port_down(&mut self) {
        self.core.outages[self.lane] += 1;
        self.core.port_news.push(PortNews::Down);
    }
}

impl Sink<'_> {
    /// A work request that the rail does not have, or has no more, failed.
    pub(super) fn refused(&mut self, id: u64, fault: Fault) {
        self.core.counters[self.lane].failed += 1;
        let Some(&WorkRequest { dest, op, .. }) = self.core.work.get(id) else { return };
        if fault.retryable && self.core.failover(dest, self.lane).is_some() {
            self.core.take_down(dest, self.lane, &fault);
            return self.core.strand(id);
        }
        self.core.end_failed(id, op, self.lane, fault);
    }

    fn take_requests(&mut self, mut bytes: &[u8]) -> Result<(), &'static str> {
        while !bytes.is_empty() {
            let (request, payload, rest) = Request::decode(bytes)?;
            if request.source >= self.core.n_pes {
                return Err("its source is not a PE of this job");
            }
            if rest.is_empty() {
                self.core.note_use(&request, self.lane);
            }
            if !self.core.take_if_about_connections(&request, self.lane) {
                self.agent.request(self.lane, &request, payload);
            }
            bytes = rest;
        }
        Ok(())
    }
}

impl Core {
    /// Ends a work request that failed, and with it its operation.
    fn end_failed(&mut self, id: u64, op: OpHandle, lane: usize, fault: Fault) {
        self.fail_request(op, lane, fault);
        self.abandon(id);
    }

    /// Takes a completed work request out of the table and gives back what it held.
    #[inline(always)]
    pub(super) fn retire(&mut self, id: u64) {
        let Some(request) = self.work.get(id) else { return };
        if let Some(recorder) = &mut self.recorder {
            recorder.done(id, request, self.n_pes);
        }
        let WorkRequest { work, dest, lane, home, op, ptr, len, slot, via, in_window, .. } = *request;
        self.work.remove(id);
        let lane = usize::from(lane);
        if in_window && let Some(c) = self.connection(dest, lane) {
            c.under_way = c.under_way.saturating_sub(len as u64);
        }
        self.samplers[lane].done(id, &mut self.counters[lane].latency);
        match work {
            Work::Write { .. } | Work::Flag { .. } => {
                if let Some(c) = self.connection(dest, home.into()) {
                    c.writes = c.writes.saturating_sub(1);
                    c.bytes = c.bytes.saturating_sub(len as u64);
                }
            }
            Work::Read { .. } => {
                if let Some(c) = self.connection(dest, home.into()) {
                    c.bytes = c.bytes.saturating_sub(len as u64);
                }
                // The user's memory may be written only while the operation is still the user's business.
                if let Some(via) = via
                    && self.ops.get(op).is_some()
                {
                    let from = self.bounce.ptr(via).as_ptr();
                    // SAFETY: the slot holds `len` bytes that the rail has finished writing; the destination is valid
                    // until the operation is complete, which it is not yet.
                    unsafe { ptr.copy_from_nonoverlapping(from, len) };
                }
            }
            Work::Amo { amo, .. } => {
                if let Some(c) = self.connection(dest, lane) {
                    c.writes = c.writes.saturating_sub(1);
                    c.bytes = c.bytes.saturating_sub(len as u64);
                }
                // SAFETY: the slot has 8 aligned bytes that the rail has finished writing.
                let value = unsafe { ptr.cast::<u64>().read() } & (u64::MAX >> (64 - 8 * amo.ty.size()));
                if let Some(op) = self.ops.get_mut(op) {
                    op.value = value;
                }
            }
            Work::Send | Work::Probe { .. } => {}
        }
        for slot in [slot, via].into_iter().flatten() {
            self.bounce.free(slot);
        }
    }

    /// One thing less for an operation to wait for.
    pub(super) fn release(&mut self, id: OpHandle) {
        let Some(op) = self.ops.get_mut(id) else { return };
        op.remaining = op.remaining.saturating_sub(1);
        if op.remaining > 0 {
            return;
        }
        if op.fault.is_none() {
            if op.followup.is_some() {
                self.followups.push(id);
                return;
            }
            if op.swap_loop.is_some() {
                self.loops.came_back(id);
                return;
            }
        }
        self.finish(id);
    }

    #[inline(always)]
    pub(super) fn finish(&mut self, id: OpHandle) {
        let Some(op) = self.ops.get_mut(id) else { return };
        // Operations are large, and not moved out of their table.
        let Op { pe, issue, value, slot, holds, result, .. } = *op;
        let word = op.swap_loop.map(|swap_loop| swap_loop.word(pe));
        let outcome = op.fault.take().map_or(Ok(value), Err);
        self.ops.remove(id);
        self.let_go(pe, word, holds);
        // Work requests that a rail may still read from it have shares of their own.
        if let Some(slot) = slot {
            self.bounce.free(slot);
        }
        if let (Ok(value), Some((to, size))) = (&outcome, result) {
            // SAFETY: whoever submitted the operation keeps the place valid until it is complete: now.
            unsafe { store(to, size, *value) };
        }
        let state = self.issuer(issue.issuer);
        state.outstanding = state.outstanding.saturating_sub(1);
        match (issue.tag, outcome) {
            (Some(tag), result) => self.finished.push(Finished { issuer: issue.issuer, tag, result }),
            (None, Err(error)) => {
                state.error.get_or_insert(*error);
            }
            (None, Ok(_)) => {}
        }
    }

    /// Marks an operation as failed; it ends when everything it posted has come back.
    pub(super) fn fail_request(&mut self, id: OpHandle, lane: usize, fault: Fault) {
        let rail = self.caps[lane].name.clone();
        let Some(op) = self.ops.get_mut(id) else { return };
        let error = Error::Operation { operation: op.operation, pe: op.pe, rail, bytes: op.bytes, fault };
        op.fault.get_or_insert(Box::new(error));
    }

    /// Ends an operation for which no buffer was left, although there should have been.
    pub(super) fn fail_full(&mut self, id: OpHandle) {
        let Some(op) = self.ops.get_mut(id) else { return };
        op.fault = Some(Box::new(Error::Full { operation: op.operation, pe: op.pe }));
        self.finish(id);
    }

    /// Ends an operation that took too long.
    pub(super) fn expire(&mut self, id: OpHandle) {
        let seconds = self.policy.timeout_s;
        let Some(&Op { operation, pe, bytes, .. }) = self.ops.get(id) else { return };
        let timeout = match self.unreachable(pe) {
            Some((lane, Fault { code, text, retryable })) => {
                let text =
                    format!("no rail has reached it for {seconds} s (SYMRAIL_TIMEOUT_S); is the PE alive? {text}");
                let fault = Fault { code: *code, text, retryable: *retryable };
                Error::Operation { operation, pe, rail: self.caps[lane].name.clone(), bytes, fault }
            }
            None => Error::Timeout { operation, pe, seconds },
        };
        if let Some(op) = self.ops.get_mut(id) {
            op.fault.get_or_insert(Box::new(timeout));
        }
        self.finish(id);
    }

    fn take_reply(&mut self, bytes: &[u8]) -> Result<(), &'static str> {
        let (reply, outcomes) = Reply::decode(bytes)?;
        let (source, lane) = (reply.source, usize::from(reply.lane));
        if source >= self.n_pes || lane >= self.caps.len() {
            return Err("its source is not a lane of a PE of this job");
        }
        let Some(c) = self.connection(source, lane) else { return Ok(()) };
        if reply.after.wrapping_sub(c.applied).cast_signed() > 0 {
            return Ok(()); // one before it was lost, with outcomes that are wanted: those requests will be sent again
        }
        for outcome in outcomes {
            let Some(op) = self.ops.get_mut(outcome.id).filter(|o| o.pe == source) else { continue };
            op.value = outcome.value;
            let awaited = std::mem::take(&mut op.awaits_outcome);
            if outcome.refusal != Refusal::None {
                let text = format!("the target refused it: {:?}", outcome.refusal);
                let fault = Fault { code: outcome.refusal as i32, text, retryable: false };
                self.fail_request(outcome.id, lane, fault);
            }
            if awaited {
                self.release(outcome.id);
            }
        }
        let Some(c) = self.connection(source, lane) else { return Ok(()) };
        let acknowledged = reply.applied.wrapping_sub(c.applied).cast_signed();
        // What is not is an older one, which another lane brought late, or an answer to a move.
        if acknowledged > 0 {
            if acknowledged as usize > c.unacked.len() {
                return Err("it acknowledges what was not sent");
            }
            c.applied = reply.applied;
            c.forget_bytes(acknowledged as usize);
            self.counters[lane].acknowledgements += 1;
            for _ in 0..acknowledged {
                let Some(op) = self.connection(source, lane).and_then(|c| c.unacked.pop_front()) else { break };
                self.release(op);
            }
            self.acknowledged(source, lane);
        }
        self.moved(source, lane, reply.turn);
        Ok(())
    }

    pub(super) fn issuer(&mut self, issuer: Issuer) -> &mut IssuerState {
        let at = usize::from(issuer);
        if at >= self.issuers.len() {
            self.issuers.resize_with(at + 1, IssuerState::default);
        }
        &mut self.issuers[at]
    }
}
