//! Completions: from the reports of a rail to finished operations.

use super::command::OpHandle;
use super::failover::lack;
use super::operations::{After, Held};
use super::queue::{Work, WorkRequest};
use super::{Core, Role, TargetAgent};
use crate::error::Fault;
use crate::pe::Pe;
use crate::rail::{Dest, RailSink};
use crate::wire::{Keepalive, Reply, Request};

/// Receives a rail's reports while the rail is polled.
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
        let Some(&WorkRequest { work, dest, home, op, next, len, posted, segmented, .. }) = self.core.queue.get(id)
        else {
            return;
        };
        if let Some(priority) = segmented
            && usize::from(home) == self.lane
        {
            self.core.measure_piece(dest, self.lane, (priority, len as u64), posted);
        }
        if self.core.lanes.measures()
            && usize::from(home) == self.lane
            && let Work::Write { .. } | Work::TransmittedWrite { .. } | Work::Read { .. } = work
        {
            let times = (self.core.clock.micros(), posted);
            self.core.lanes.note_speed(dest, self.lane, times, len as u64);
        }
        self.core.retire(id);
        // The completion of a message does not show that the path works.
        self.core.reported(dest, self.lane, len, (true, !matches!(work, Work::Send)));
        if let Work::Probe { instead_of, outage } = work {
            self.core.recovery.keepalive_arrived(dest, instead_of, outage);
        }
        self.core.release(op);
        if let Some(next) = next {
            self.done(next);
        }
    }

    fn failed(&mut self, id: u64, mut fault: Fault) {
        let Some(&WorkRequest { work, dest, op, next, len, .. }) = self.core.queue.get(id) else { return };
        if let Some(next) = next {
            self.failed(next, fault.clone());
        }
        self.core.reported(dest, self.lane, len, (false, false));
        if !(matches!(work, Work::Amo { .. }) && fault.retryable) {
            return self.refused(id, fault);
        }
        fault.text = format!("{}; whether it was performed is not known", fault.text);
        self.core.observer.failed(self.lane);
        self.core.take_down(dest, self.lane, &fault);
        self.core.end_failed(id, op, self.lane, fault);
    }

    fn message(&mut self, bytes: &[u8]) {
        let Some(bytes) = self.core.profile.token().open(bytes) else {
            return self.core.count_unauthenticated(self.lane);
        };
        let complaint = match bytes.first() {
            Some(&Reply::TAG) => self.core.take_reply(bytes),
            Some(&Keepalive::TAG) => self.take_keepalive(bytes),
            _ => self.take_requests(bytes),
        };
        if let Err(why) = complaint
            && self.core.observer.complains()
        {
            tracing::warn!(
                why,
                bytes = bytes.len(),
                "dropped a malformed message; further ones are dropped in silence"
            );
        }
    }

    fn immediate(&mut self, immediate: u64) {
        match super::counted::word_of(immediate, self.core.profile.token()) {
            Some(word) => self.agent.count(word),
            None => self.core.count_unauthenticated(self.lane),
        }
    }

    fn broken(&mut self, fault: Fault) {
        self.core.observer.failed(self.lane);
        if fault.retryable && self.core.lanes.fail_over() {
            tracing::debug!(rail = %self.core.profile.caps(self.lane).name, %fault, "a work request without completion failed");
            return self.core.suspect(self.lane, &fault);
        }
        // A flush request follows work that was posted without a completion. Its acknowledgement will not arrive.
        tracing::warn!(rail = %self.core.profile.caps(self.lane).name, %fault, "a work request without completion failed");
    }

    fn port_down(&mut self) {
        self.core.recovery.port_went_down(self.lane);
    }
}

impl Sink<'_> {
    /// Handles a failed work request that the rail no longer has or never had.
    pub(super) fn refused(&mut self, id: u64, fault: Fault) {
        self.core.observer.failed(self.lane);
        let Some(&WorkRequest { dest, op, .. }) = self.core.queue.get(id) else { return };
        if fault.retryable && self.core.lanes.failover(dest, self.lane).is_some() {
            self.core.take_down(dest, self.lane, &fault);
            return self.core.mark_lost(id);
        }
        self.core.end_failed(id, op, self.lane, fault);
    }

    fn take_keepalive(&mut self, bytes: &[u8]) -> Result<(), &'static str> {
        let Keepalive { origin, source } = Keepalive::decode(bytes)?;
        if source >= self.core.profile.n_pes() {
            return Err("its source is not a PE of this job");
        }
        if !self.core.remember(source) {
            return Ok(());
        }
        self.core.note_keepalive(source, origin, self.lane);
        Ok(())
    }

    fn take_requests(&mut self, mut bytes: &[u8]) -> Result<(), &'static str> {
        while !bytes.is_empty() {
            let (request, payload, rest) = Request::decode(bytes)?;
            if request.source >= self.core.profile.n_pes() {
                return Err("its source is not a PE of this job");
            }
            if !self.core.remember(request.source) {
                return Ok(());
            }
            if rest.is_empty() {
                self.core.note_use(&request, self.lane);
            }
            self.core.note_cut(&request);
            if !self.core.take_if_about_connections(&request, self.lane) {
                self.agent.request(self.lane, &request, payload);
            }
            bytes = rest;
        }
        Ok(())
    }
}

impl Core {
    /// Notes that a PE has sent a message, so that a proxy endpoint can connect it and answer. Returns whether the message
    /// is to be read.
    #[inline]
    fn remember(&mut self, pe: Pe) -> bool {
        self.profile.role() != Role::Proxy || self.lanes.remember(pe)
    }

    /// Counts a message or an immediate that did not have this endpoint's token.
    #[cold]
    fn count_unauthenticated(&mut self, lane: usize) {
        self.observer.count_unauthenticated(lane, &self.profile.caps(lane).name);
    }

    /// Notes that the rail has reported a work request of so many bytes: whether as done, and whether that shows that the
    /// path works.
    #[inline]
    fn reported(&mut self, dest: Dest, lane: usize, len: usize, (done, well): (bool, bool)) {
        let now = self.clock.now();
        let Some(c) = self.lanes.get_mut(dest, lane) else { return };
        if well {
            c.moved = now;
        }
        let Some(f) = &mut c.failover else { return };
        f.came_back(len, done);
        if well {
            self.answered(dest, lane);
        }
    }

    /// Ends a failed work request and its operation.
    fn end_failed(&mut self, id: u64, op: OpHandle, lane: usize, fault: Fault) {
        self.fail_request(op, lane, fault);
        self.abandon(id);
    }

    /// Removes a completed work request from the table and frees what it held.
    #[inline(always)]
    pub(super) fn retire(&mut self, id: u64) {
        let Some(request) = self.queue.get(id) else { return };
        self.observer.done(id, request, self.profile.n_pes());
        let WorkRequest { work, dest, lane, home, op, ptr, len, slot, via, in_window, segmented, .. } = *request;
        self.queue.remove(id);
        if segmented.is_some() {
            self.segmentation.end(dest, home.into(), len as u64);
        }
        let lane = usize::from(lane);
        if in_window && let Some(c) = self.lanes.get_mut(dest, lane) {
            c.under_way = c.under_way.saturating_sub(len as u64);
        }
        match work {
            Work::Write { .. } | Work::TransmittedWrite { .. } => {
                if let Some(c) = self.lanes.get_mut(dest, home.into()) {
                    c.writes = c.writes.saturating_sub(1);
                    c.bytes = c.bytes.saturating_sub(len as u64);
                    self.lanes.end_bytes(home.into(), len as u64);
                }
            }
            Work::Read { .. } => {
                if let Some(c) = self.lanes.get_mut(dest, home.into()) {
                    c.bytes = c.bytes.saturating_sub(len as u64);
                    self.lanes.end_bytes(home.into(), len as u64);
                }
                // The user's memory may be written only until the operation is complete.
                if let Some(via) = via
                    && !self.ops.is_over(op)
                {
                    let from = self.bounce.ptr(via).as_ptr();
                    // SAFETY: the slot holds `len` bytes that the rail has finished writing; the destination is valid
                    // until the operation is complete, which it is not yet.
                    unsafe { ptr.copy_from_nonoverlapping(from, len) };
                }
            }
            Work::Amo { amo, .. } => {
                if let Some(c) = self.lanes.get_mut(dest, lane) {
                    c.writes = c.writes.saturating_sub(1);
                    c.bytes = c.bytes.saturating_sub(len as u64);
                    self.lanes.end_bytes(lane, len as u64);
                }
                // SAFETY: the slot has 8 aligned bytes that the rail has finished writing.
                let value = unsafe { ptr.cast::<u64>().read() } & (u64::MAX >> (64 - 8 * amo.ty.size()));
                self.ops.fetched(op, value);
            }
            Work::Send | Work::Probe { .. } => {}
        }
        for slot in [slot, via].into_iter().flatten() {
            self.bounce.free(slot);
        }
    }

    /// Reduces the number of events that an operation waits for by one.
    pub(super) fn release(&mut self, id: OpHandle) {
        self.release_many(id, 1);
    }

    /// Reduces the number of events that an operation waits for.
    fn release_many(&mut self, id: OpHandle, count: u32) {
        match self.ops.release(id, count) {
            After::Waits => {}
            After::Loop => self.loops.came_back(id),
            After::End => self.finish(id),
        }
    }

    /// Ends an operation and releases what it held.
    #[inline(always)]
    pub(super) fn finish(&mut self, id: OpHandle) {
        let Some(Held { pe, lane, word, slot }) = self.ops.end(id, &mut self.issuers) else { return };
        if let Some(word) = word {
            self.loops.broke_off(word);
        }
        if let Some(lane) = lane {
            self.lanes.let_go(pe, lane);
        }
        if let Some(slot) = slot {
            self.bounce.free(slot);
        }
    }

    /// Marks an operation as failed. It ends when all its work requests have completed.
    pub(super) fn fail_request(&mut self, id: OpHandle, lane: usize, fault: Fault) {
        self.ops.fail(id, &self.profile.caps(lane).name, fault);
    }

    /// Ends an operation that got no buffer although one should have been free.
    pub(super) fn fail_full(&mut self, id: OpHandle) {
        self.ops.fail_full(id);
        self.finish(id);
    }

    /// Fails operations that have taken too long, and ends those of which no rail has work requests on the caller's
    /// memory. Others, on whose connection something moves, end when the rail has returned these, or after another
    /// time-out. Returns those on whose connection nothing has moved, with the PE and the lane.
    pub(super) fn expire(&mut self) -> Vec<(OpHandle, Pe, usize)> {
        let (now, limit) = (self.clock.now(), self.profile.timeout_s());
        let expired = self.ops.older_than(now, limit);
        if expired.is_empty() {
            return Vec::new();
        }
        let given_up = self.ops.older_than(now, 2 * limit);
        self.late.retain(|id| !self.ops.is_over(*id));
        let waiting = self.queue.waiting();
        let mut stuck = Vec::new();
        for id in expired {
            if self.late.contains(&id) {
                if given_up.contains(&id) {
                    self.finish(id);
                }
                continue;
            }
            self.fail_expired(id);
            // Memory of the arena is freed with its work request.
            let of_caller = |(at, r): &(u64, &WorkRequest)| {
                r.op == id && r.slot.is_none() && r.via.is_none() && r.len > 0 && !waiting.contains(at)
            };
            let found = self.queue.all().find(of_caller).map(|(_, r)| (r.dest, usize::from(r.lane)));
            let Some((dest, lane)) = found else {
                self.finish(id);
                continue;
            };
            if self.lanes.get(dest, lane).is_some_and(|c| !self.clock.is_past(c.moved, limit)) {
                self.late.push(id);
            } else {
                stuck.push((id, dest, lane));
            }
        }
        stuck
    }

    fn fail_expired(&mut self, id: OpHandle) {
        let (seconds, Some(pe)) = (self.profile.timeout_s(), self.ops.pe(id)) else { return };
        let rails = self.rails_to(pe) + &lack();
        let unreachable = self.lanes.unreachable(pe).map(|(lane, Fault { code, retryable, .. })| {
            let text = format!("no rail has reached it for {seconds} s (SYMRAIL_TIMEOUT_S); is the PE alive? {rails}");
            (self.profile.caps(lane).name.clone(), Fault { code: *code, text, retryable: *retryable })
        });
        let holding = self.rails_holding(id, pe);
        self.ops.fail_late(id, seconds, unreachable, holding);
    }

    fn take_reply(&mut self, bytes: &[u8]) -> Result<(), &'static str> {
        let (reply, outcomes) = Reply::decode(bytes)?;
        let source = reply.source;
        if source >= self.profile.n_pes() {
            return Err("its source is not a PE of this job");
        }
        let Some(lane) = self.lanes.lane_of(source, reply.lane.into()) else {
            // A late one of a peer that was removed is none of its faults.
            return if self.lanes.is_lost(source) { Ok(()) } else { Err("it is about no lane") };
        };
        let Some(c) = self.lanes.get_mut(source, lane) else { return Ok(()) };
        if reply.after.wrapping_sub(c.applied).cast_signed() > 0 {
            return Ok(()); // an earlier reply with outcomes was lost; its requests will be sent again
        }
        for (outcome, bytes) in outcomes {
            if self.ops.take_outcome(source, &self.profile.caps(lane).name, &outcome, bytes) {
                self.release(outcome.id);
            }
        }
        let Some(c) = self.lanes.get_mut(source, lane) else { return Ok(()) };
        let acknowledged = reply.applied.wrapping_sub(c.applied).cast_signed();
        // A reply without new acknowledgements is an older one that another lane delivered late, or the answer to a
        // move.
        if acknowledged > 0 {
            let mut left = acknowledged.cast_unsigned();
            if !c.acknowledge(left) {
                return Err("it acknowledges what was not sent");
            }
            self.observer.acknowledged(lane);
            while let Some((op, count)) = self.lanes.get_mut(source, lane).and_then(|c| c.next_acknowledged(left)) {
                left -= count;
                self.release_many(op, count);
            }
            self.acknowledged(source, lane);
        }
        self.moved(source, lane, reply.generation);
        Ok(())
    }
}
