//! Streams of requests: messages are kept until they are acknowledged, moved to another lane, and sent again there.

use std::ptr;

use super::{Failover, Kept, StreamState};
use crate::amo::{AmoOp, AmoType};
use crate::bounce::Slot;
use crate::endpoint::message::{begin, fill};
use crate::endpoint::queue::{Work, WorkRequest};
use crate::endpoint::{Core, Endpoint};
use crate::pe::Pe;
use crate::rail::PostError;
use crate::wire::{Request, RequestKind};

impl Failover {
    /// Takes the slots of all kept messages, which will not be sent again.
    pub(in crate::endpoint) fn take_kept(&mut self) -> Vec<Slot> {
        self.state = StreamState::Lost;
        self.kept.drain(..).map(|kept| kept.slot).collect()
    }
}

impl Core {
    /// Whether the answer to the next request is urgent. A message that is kept until its acknowledgement should not
    /// wait until the target has time to answer.
    pub(in crate::endpoint) fn will_wait(&mut self, pe: Pe, lane: usize) -> bool {
        let (short, now) = (!self.bounce.ample(), self.clock.now());
        let Some(c) = self.lanes.get_mut(pe, lane) else { return false };
        let first = c.unacked.is_empty();
        let Some(f) = &mut c.failover else { return false };
        if first {
            f.progress = now;
        }
        short
    }

    /// Notes that the target has acknowledged requests of `lane`'s stream.
    pub(in crate::endpoint) fn acknowledged(&mut self, pe: Pe, lane: usize) {
        let now = self.clock.now();
        let Some(c) = self.lanes.get_mut(pe, lane) else { return };
        let applied = c.applied;
        let Some(f) = c.failover.as_deref_mut() else { return };
        f.progress = now;
        let carrier = f.carrier;
        while let Some(kept) = self
            .lanes
            .failover(pe, lane)
            .and_then(|f| f.kept.pop_front_if(|kept| applied.wrapping_sub(kept.last).cast_signed() >= 0))
        {
            self.bounce.free(kept.slot);
            if let Some(f) = self.lanes.failover(pe, lane) {
                f.applied = (kept.generation, kept.serial);
            }
        }
        self.answered(pe, carrier.into());
    }

    /// Notes an answer of the target that knew of this move of `lane`'s stream.
    pub(in crate::endpoint) fn moved(&mut self, pe: Pe, lane: usize, generation: u32) {
        let Some(f) =
            self.lanes.failover(pe, lane).filter(|f| f.state == StreamState::Asked && f.generation == generation)
        else {
            return;
        };
        f.state = StreamState::Answered;
        let (carrier, confirmed) = (f.carrier, f.confirms.take());
        if let Some(f) = confirmed.and_then(|lane| self.lanes.failover(pe, lane.into())) {
            f.cut = None;
        }
        self.needs_recovery(pe);
        self.answered(pe, carrier.into());
    }

    pub(super) fn stream_state(&mut self, pe: Pe, stream: usize) -> StreamState {
        self.lanes.failover(pe, stream).map_or(StreamState::Open, |f| f.state)
    }
}

impl Endpoint {
    /// Sends a message over the lane that carries its stream now, and keeps it until all its requests are acknowledged.
    pub(in crate::endpoint) fn keep_and_send(&mut self, pe: Pe, stream: usize, slot: Slot, len: u32, last: u32) {
        let serial = self.core.queue.next_serial();
        let Some(f) = self.core.lanes.failover(pe, stream) else { return };
        let kept = Kept { serial, generation: f.generation, last, slot, len };
        let carrier = f.carrier.into();
        f.used = true;
        f.kept.push_back(kept);
        if f.state == StreamState::Open {
            self.send_copy(pe, carrier, kept);
        }
    }

    /// Sends the requests of a moved stream again that the target has not applied.
    pub(super) fn send_again(&mut self, pe: Pe, stream: usize) {
        let now = self.core.clock.now();
        let Core { lanes, queue, .. } = &mut self.core;
        let Some(f) = lanes.failover(pe, stream) else { return };
        (f.state, f.progress) = (StreamState::Open, now);
        for kept in &mut f.kept {
            (kept.serial, kept.generation) = (queue.next_serial(), f.generation);
        }
        let carrier = f.carrier.into();
        for kept in f.kept.clone() {
            let message = self.core.bounce.ptr(kept.slot).as_ptr();
            // SAFETY: the slot holds a message of this size. Only rails read it, and they have completed their work
            // requests on it.
            unsafe { self.core.void_failed(message, kept.len as usize) };
            // No message may overtake one that could not be sent.
            if self.core.stream_state(pe, stream) == StreamState::Open {
                self.send_copy(pe, carrier, kept);
            }
        }
    }

    /// Tells the target that lane `to` carries a stream from now on, and asks what it has applied of the stream. It is
    /// repeated later if there is no buffer.
    pub(super) fn ask(&mut self, pe: Pe, stream: usize, to: usize) {
        let now = self.core.clock.now();
        let Some(applied) = self.core.lanes.get_mut(pe, stream).map(|c| c.applied) else { return };
        // Over the lane itself a new connection has brought the move, and must stay.
        let cut = self.core.unconfirmed(pe, Some(to));
        let Some(slot) = self.core.bounce.alloc(Request::alone(0)) else { return };
        let Some(f) = self.core.lanes.failover(pe, stream) else { return };
        f.generation = f.generation.wrapping_add(1);
        (f.carrier, f.state, f.progress) = (to as u8, StreamState::Asked, now);
        f.confirms = cut.map(|(lane, _)| lane as u8);
        let words = (0, f.generation.into(), cut.map_or(0, |(_, cut)| cut.encode()));
        let request = self.core.profile.request(RequestKind::Move, AmoOp::Fetch, AmoType::U64, words, 0);
        let theirs = self.core.lanes.theirs(pe, stream) as u8;
        let request = Request { lane: theirs, sequence: applied, urgent: true, ..request };
        self.send_small(pe, to, request, slot);
    }

    /// Sends a request without a number from a slot for it.
    pub(in crate::endpoint) fn send_small(&mut self, pe: Pe, lane: usize, mut request: Request, slot: Slot) {
        request.source = self.core.profile.source_at(pe);
        let ptr = self.core.bounce.ptr(slot).as_ptr();
        // SAFETY: the slot has room for a message of one request.
        unsafe { fill(begin(ptr, self.core.profile.token_of(pe)), &request, ptr::null(), 0) };
        self.post(WorkRequest::new(Work::Send, pe, lane, 0, (ptr, Request::alone(0)), Some(slot)));
    }

    /// Asks a peer about the streams of which it has acknowledged everything. It sends outcomes again of which the answers
    /// may have been lost at its end, where no acknowledgement is missing.
    pub(super) fn ask_about_outcomes(&mut self, pe: Pe) {
        for stream in self.core.lanes.each(pe) {
            let Some(c) = self.core.lanes.get_mut(pe, stream).filter(|c| c.unacked.is_empty()) else { continue };
            let Some(f) = c.failover.as_deref().filter(|f| f.used && f.state == StreamState::Open) else { continue };
            let carrier = usize::from(f.carrier);
            if self.core.lanes.is_up(pe, carrier) {
                self.ask(pe, stream, carrier);
            }
        }
    }

    /// Asks a peer about all streams whose lanes have failed.
    pub(super) fn ask_about_lost(&mut self, pe: Pe, to: usize) {
        let mut asks = false;
        for stream in self.core.lanes.each(pe) {
            let carrier =
                self.core.lanes.failover(pe, stream).filter(|f| f.state == StreamState::Lost).map(|f| f.carrier);
            asks |= carrier.is_some() || self.core.stream_state(pe, stream) == StreamState::Asked;
            if carrier.is_some_and(|c| self.core.lanes.is_drained(pe, c.into())) && !self.core.lanes.is_down(pe, to) {
                self.ask(pe, stream, to);
            }
        }
        // A cut that no move has told is told by one of another lane's stream, to that lane itself.
        if !asks
            && let Some((cut, _)) = self.core.unconfirmed(pe, None)
            && let Some(other) = self.core.lanes.each(pe).find(|&lane| lane != cut && self.core.lanes.is_up(pe, lane))
        {
            self.ask(pe, other, other);
        }
    }

    pub(super) fn send_copy(&mut self, pe: Pe, lane: usize, kept: Kept) {
        if self.core.lanes.is_down(pe, lane) {
            return;
        }
        let (ptr, len) = (self.core.bounce.ptr(kept.slot).as_ptr(), kept.len as usize);
        match self.inject(pe, lane, (ptr, len)) {
            Ok(()) => return,
            Err(PostError::Failed(fault)) if fault.retryable => return self.core.take_down(pe, lane, &fault),
            Err(_) => {}
        }
        self.core.bounce.share(kept.slot);
        self.post(WorkRequest::new(Work::Send, pe, lane, 0, (ptr, len), Some(kept.slot)));
    }
}
