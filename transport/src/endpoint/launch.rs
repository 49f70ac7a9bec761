//! Launch: from an operation to work requests. Each kind of operation needs its own, and large ones are cut.

use super::abilities::AMO_LANE;
use super::command::{AgentRequest, Command, Fetch, OpHandle, Payload, Signal, Source};
use super::issuers::Hurry;
use super::queue::{Work, WorkRequest};
use super::swap_loop::WordAmo;
use super::{Core, Endpoint, Role};
use crate::amo::{AmoOp, AmoType};
use crate::pe::Pe;
use crate::rail::RailCaps;
use crate::segment;
use crate::wire::{Request, RequestKind};

/// Beyond this many bytes acknowledgements cost little. A flush behind all writes of a window costs more: 7 % with 1
/// MiB over `tcp;ofi_rxm`.
const FLUSHED_MAX: u64 = 64 << 10;

/// Stripes start on multiples of this many bytes.
const STRIPE_GRAIN: u64 = 4096;

impl Endpoint {
    /// Posts everything that an operation needs on a lane (or, striped, on all).
    #[inline(always)]
    pub(super) fn launch(&mut self, pe: Pe, command: &Command, op: OpHandle, lane: usize, hurry: Hurry) {
        let urgent = hurry != Hurry::No;
        // At a host endpoint an operation that waits for others may wait for long. The engine polls soon.
        let unhurried = !urgent || (hurry == Hurry::Soon && self.core.profile.role() == Role::Proxy);
        match *command {
            Command::Put { len, .. } if hurry != Hurry::Alone && self.core.profile.is_request(lane, len) => {
                self.launch_request(pe, lane, op, command, urgent);
            }
            Command::Put { dest, source, len } => {
                let transfer =
                    if urgent || len > FLUSHED_MAX { Transfer::Put } else { self.core.cheapest_put(pe, lane) };
                self.launch_data(pe, op, lane, (dest, source.ptr().cast_mut(), len), transfer, unhurried);
                if transfer == Transfer::LeftPut {
                    self.core.lanes.make_dirty(pe, lane);
                }
            }
            Command::Get { source, dest, len } if hurry != Hurry::Alone && self.core.profile.is_fetched(lane, len) => {
                self.launch_fetch(pe, op, lane, (source, dest, len));
            }
            Command::Get { source, dest, len } => {
                self.launch_data(pe, op, lane, (source, dest, len), Transfer::Get, unhurried);
            }
            Command::PutSignal { len, .. }
                if !self.core.profile.native_amo() && self.core.profile.fits_message(len) =>
            {
                self.launch_request(pe, lane, op, command, urgent);
            }
            Command::PutSignal { dest, source, len, signal } => {
                self.launch_put_signal(pe, op, lane, (dest, source, len), signal, urgent);
            }
            Command::Amo { offset, ty, op: amo, operand, compare, fetch } if self.core.profile.native_amo() => {
                let amo = WordAmo { offset, ty, op: amo, operand, compare };
                self.launch_word_amo(pe, op, amo, fetch != Fetch::No);
            }
            Command::Amo { .. } => self.launch_request(pe, lane, op, command, urgent),
            Command::AgentRequest(ask) => self.launch_ask(pe, op, lane, &ask),
        }
    }

    /// Sends an operation to the target's agent as a request that carries its data.
    #[inline(always)]
    pub(super) fn launch_request(&mut self, pe: Pe, lane: usize, op: OpHandle, command: &Command, urgent: bool) {
        let request = |kind, amo, ty, words| self.core.profile.request(kind, amo, ty, words, op);
        let (plain, payload, fetch) = match *command {
            Command::Put { dest, source, len } => {
                let words = (dest, 0, 0);
                (request(RequestKind::Put, AmoOp::Set, AmoType::U64, words), Some((source, len)), false)
            }
            Command::PutSignal { dest, source, len, signal } => {
                let words = (dest, signal.value, signal.offset);
                (request(RequestKind::PutSignal, signal.op, AmoType::U64, words), Some((source, len)), false)
            }
            Command::Amo { offset, ty, op: amo, operand, compare, fetch } => {
                (request(RequestKind::Amo, amo, ty, (offset, operand, compare)), None, fetch != Fetch::No)
            }
            Command::Get { .. } | Command::AgentRequest(_) => return,
        };
        let payload = payload.map(|(source, len)| (source.ptr().cast_mut(), len as usize));
        self.launch_message(pe, lane, op, Request { fetch, urgent: urgent || fetch, ..plain }, payload);
    }

    /// Launches deferred operations, as far as fences permit now.
    pub(super) fn launch_deferred(&mut self) {
        let mut at = 0;
        while let Some(pe) = self.core.lanes.blocked(at) {
            while self.core.bounce.sufficient()
                && let Core { lanes, profile, ops, .. } = &mut self.core
                && let Some((op, command, lane)) = lanes.next_deferred(pe, profile, |op| ops.is_over(op))
            {
                self.launch(pe, &command, op, lane, Hurry::Soon);
            }
            if !self.core.lanes.unblock(at) {
                at += 1;
            }
        }
    }

    fn launch_ask(&mut self, pe: Pe, op: OpHandle, lane: usize, ask: &AgentRequest) {
        let words = (ask.offset, ask.operand, ask.second);
        let plain = self.core.profile.request(ask.kind, ask.op, ask.ty, words, op);
        let request = Request { fetch: true, urgent: true, ..plain };
        let payload = match &ask.payload {
            Payload::Stable(ptr, _) => *ptr,
            Payload::Inline(bytes, _) => bytes.as_ptr(),
        };
        // Expects the outcome; the acknowledgement is counted with the message.
        self.core.ops.expect(op, 1);
        self.launch_message(pe, lane, op, request, Some((payload.cast_mut(), ask.payload.len())));
    }

    /// Requests a read by the target's agent.
    fn launch_fetch(&mut self, pe: Pe, op: OpHandle, lane: usize, (source, dest, len): (u64, *mut u8, u64)) {
        self.core.ops.fetches(op, dest);
        let plain = self.core.profile.request(RequestKind::Get, AmoOp::Fetch, AmoType::U64, (source, len, 0), op);
        self.launch_message(pe, lane, op, Request { fetch: true, urgent: true, ..plain }, None);
    }

    fn launch_put_signal(
        &mut self,
        pe: Pe,
        op: OpHandle,
        lane: usize,
        data: (u64, Source, u64),
        signal: Signal,
        urgent: bool,
    ) {
        let (dest, source, len) = data;
        let ptr = source.ptr().cast_mut();
        if self.core.profile.native_amo() {
            return self.launch_put_native_signal(pe, op, lane, (dest, ptr, len), signal);
        }
        let striped = self.core.is_striped(pe, len);
        let straight = self.core.lanes.get_mut(pe, lane).is_some_and(|c| c.is_straight());
        if !striped && straight && self.core.profile.caps(lane).order.send_after_write {
            // The lane keeps the message behind the data, so the acknowledgement of the message covers the data, too.
            // The count is raised first, because completions may arrive in between.
            self.core.ops.expect(op, 1);
            let transfer = if len > FLUSHED_MAX { Transfer::Put } else { self.core.cheapest_put(pe, lane) };
            self.launch_data(pe, op, lane, (dest, ptr, len), transfer, false);
            if self.core.ops.has_failed(op) {
                return self.core.release(op); // a signal must not arrive without its data
            }
            self.core.ops.unexpect(op, 1);
            self.launch_signal(pe, lane, op, signal, urgent);
        } else {
            self.launch_then_signal(pe, op, lane, (dest, ptr, len), signal, lane);
        }
    }

    /// Launches a put-signal whose signal is an AMO by the provider. The AMO follows the data directly where the lane
    /// keeps it behind.
    fn launch_put_native_signal(
        &mut self,
        pe: Pe,
        op: OpHandle,
        lane: usize,
        data: (u64, *mut u8, u64),
        signal: Signal,
    ) {
        if lane != AMO_LANE || self.core.is_striped(pe, data.2) || !self.core.profile.caps(lane).order.amo_after_write {
            return self.launch_then_signal(pe, op, lane, data, signal, AMO_LANE);
        }
        // The count is raised first, as above.
        self.core.ops.expect(op, 1);
        self.launch_data(pe, op, lane, data, Transfer::Put, false);
        if self.core.ops.has_failed(op) {
            return self.core.release(op);
        }
        self.core.ops.unexpect(op, 1);
        self.launch_word_amo(pe, op, WordAmo::of_signal(signal), false);
    }

    /// Puts, and sends the signal over `signal_lane` when the data has been delivered.
    fn launch_then_signal(
        &mut self,
        pe: Pe,
        op: OpHandle,
        lane: usize,
        data: (u64, *mut u8, u64),
        signal: Signal,
        signal_lane: usize,
    ) {
        self.core.hold_lane(op, signal_lane);
        self.core.ops.follow_up(op, signal);
        self.launch_data(pe, op, lane, data, Transfer::Put, false);
    }

    fn launch_signal(&mut self, pe: Pe, lane: usize, op: OpHandle, signal: Signal, urgent: bool) {
        let words = (signal.offset, signal.value, 0);
        let request =
            Request { urgent, ..self.core.profile.request(RequestKind::Amo, signal.op, AmoType::U64, words, op) };
        self.launch_message(pe, lane, op, request, None);
    }

    /// Sends the signals of operations whose data has been delivered, as far as there are buffers.
    pub(super) fn launch_followups(&mut self) {
        while self.core.bounce.plentiful()
            && let Some((op, pe, lane, signal)) = self.core.ops.next_followup()
        {
            if self.core.profile.native_amo() {
                self.launch_word_amo(pe, op, WordAmo::of_signal(signal), false);
            } else {
                self.launch_signal(pe, lane, op, signal, true);
            }
        }
    }

    /// Posts the work requests of a put or get of `len` bytes at a symmetric offset and a local address. One that is
    /// not urgent may wait to be coalesced.
    pub(super) fn launch_data(
        &mut self,
        pe: Pe,
        op: OpHandle,
        lane: usize,
        (offset, ptr, len): (u64, *mut u8, u64),
        transfer: Transfer,
        unhurried: bool,
    ) {
        let lanes = if self.core.is_striped(pe, len) { self.core.lanes.count(pe) } else { 1 };
        let copy = self.core.ops.slot(op);
        let may_wait = unhurried && copy.is_none() && self.core.may_wait(lane, len);
        // The engine polls soon, when it has read all requests of its channels.
        let polled = unhurried && self.core.profile.role() == Role::Proxy && self.core.profile.caps(lane).polls_post;
        // The operation is held during the posts, so that it cannot complete between two of its work requests.
        self.core.ops.expect(op, 1);
        for (share, start, length) in segment::stripes(len, lanes, STRIPE_GRAIN) {
            let lane = if lanes > 1 { self.core.lanes.after(pe, lane, share) } else { lane };
            let mut done = 0;
            loop {
                let (at, from) = (offset + start + done, ptr.wrapping_add((start + done) as usize));
                let piece = self.core.piece(pe, lane, at, from, length - done);
                let more = done + piece < length;
                self.core.ops.expect(op, 1);
                let work = match transfer {
                    Transfer::Put => Work::Write { offset: at },
                    Transfer::LeftPut => Work::Flag { offset: at, immediate: None },
                    // The target must not count a failed write.
                    Transfer::CountedPut(immediate) => {
                        let whole = !more && !self.core.ops.has_failed(op);
                        Work::Flag { offset: at, immediate: whole.then_some(immediate) }
                    }
                    Transfer::Get => Work::Read { offset: at },
                };
                let len = piece as usize;
                if let Some(slot) = copy {
                    self.core.bounce.share(slot);
                }
                let more = more || polled;
                self.post(WorkRequest { more, may_wait, ..WorkRequest::new(work, pe, lane, op, (from, len), copy) });
                done += piece;
                if done >= length {
                    break;
                }
            }
        }
        self.core.release(op);
    }
}

/// How data moves.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Transfer {
    Get,
    /// A put; the completion of each write means that it was delivered.
    Put,
    /// A put; the completion of each write means that it has left. A request behind it confirms the delivery: a signal,
    /// or the next quiet's flush.
    LeftPut,
    /// As `LeftPut`, but the last write carries this immediate. The target learns from it that all bytes have arrived.
    CountedPut(u64),
}

impl Core {
    /// The cheapest transfer for a put that a later request will complete. Where the target's CPU would have to
    /// acknowledge each write, the acknowledgement of that request alone is cheaper, if the lane keeps the request
    /// behind the writes.
    fn cheapest_put(&self, pe: Pe, lane: usize) -> Transfer {
        let &RailCaps { order, software, .. } = self.profile.caps(lane);
        let behind = self.profile.role() == Role::Host
            && self.lanes.peer(pe).lanes == 1
            && software
            && order.send_after_write
            && order.send_after_send;
        if behind { Transfer::LeftPut } else { Transfer::Put }
    }

    /// The number of bytes from `offset` and `ptr` that one work request can move.
    fn piece(&self, pe: Pe, lane: usize, offset: u64, ptr: *const u8, len: u64) -> u64 {
        let caps = self.profile.caps(lane);
        let mut piece = len.min(self.profile.max_rma());
        if let Some((_, covered)) = self.regions.remote(pe, self.lanes.theirs(pe, lane), offset) {
            piece = piece.min(covered);
        }
        if caps.local_registration {
            piece = match self.regions.local_key(lane, ptr) {
                Some((_, covered)) => piece.min(covered),
                None => piece.min(self.bounce.largest() as u64),
            };
        }
        piece.max(1).min(len)
    }

    pub(super) fn is_striped(&self, pe: Pe, len: u64) -> bool {
        let peer = self.lanes.peer(pe);
        self.profile.wants_stripes(len)
            && peer.lanes > 1
            && self.lanes.in_use() > 1
            && peer.is_whole()
            && peer.pinned.is_none()
    }
}
