//! Launch: from an operation to work requests. Each kind of operation needs its own, and large ones are segmented.

use super::abilities::AMO_LANE;
use super::command::{AgentRequest, Command, Fetch, OpHandle, Owner, Payload, Signal};
use super::inject::FLAGS;
use super::protocol::{Form, PostFlags, Protocol};
use super::queue::{Work, WorkRequest};
use super::segmentation::Pieces;
use super::swap_loop::WordAmo;
use super::{Core, Endpoint};
use crate::amo::{AmoOp, AmoType};
use crate::pe::Pe;
use crate::segment;
use crate::wire::{Request, RequestKind};

/// Stripes start on multiples of this many bytes.
const STRIPE_GRAIN: u64 = 4096;

impl Endpoint {
    /// Posts everything that an operation needs on a lane (or, striped, on all).
    #[inline(always)]
    pub(super) fn launch(&mut self, pe: Pe, command: &Command, op: OpHandle, lane: usize, protocol: Protocol) {
        let Protocol { form, flags } = protocol;
        match *command {
            Command::AgentRequest(ask) => self.launch_ask(pe, op, lane, &ask, flags),
            Command::Put { .. } | Command::PutSignal { .. } | Command::Amo { .. } if form == Form::Message => {
                self.launch_request(pe, lane, op, command, flags);
            }
            Command::Put { dest, source, len } => {
                let transmitted = form == Form::TransmittedWrite;
                let transfer = if transmitted { Transfer::TransmittedWrite } else { Transfer::Write };
                self.launch_data(pe, op, lane, (dest, source.ptr().cast_mut(), len), transfer, flags);
                if transmitted {
                    self.core.lanes.make_dirty(pe, lane);
                }
            }
            Command::Get { source, dest, len } if form == Form::AgentRead => {
                self.launch_fetch(pe, op, lane, (source, dest, len), flags);
            }
            Command::Get { source, dest, len } => {
                self.launch_data(pe, op, lane, (source, dest, len), Transfer::Read, flags);
            }
            Command::PutSignal { dest, source, len, signal } => {
                self.launch_put_signal(pe, op, lane, (dest, source.ptr().cast_mut(), len), signal, protocol);
            }
            Command::Amo { offset, ty, op: amo, operand, compare, fetch } => {
                let amo = WordAmo { offset, ty, op: amo, operand, compare };
                self.launch_word_amo(pe, op, amo, fetch != Fetch::No);
            }
        }
    }

    /// Sends an operation to the target's agent as a request that carries its data.
    #[inline(always)]
    pub(super) fn launch_request(&mut self, pe: Pe, lane: usize, op: OpHandle, command: &Command, flags: PostFlags) {
        let request = |kind, amo, ty, words| self.core.profile.request(kind, amo, ty, words, op);
        let (request, payload) = match *command {
            Command::Put { dest, source, len } => {
                let words = (dest, 0, 0);
                (request(RequestKind::Put, AmoOp::Set, AmoType::U64, words), Some((source, len)))
            }
            Command::PutSignal { dest, source, len, signal } => {
                let words = (dest, signal.value, signal.offset);
                (request(RequestKind::PutSignal, signal.op, AmoType::U64, words), Some((source, len)))
            }
            Command::Amo { offset, ty, op: amo, operand, compare, fetch } => {
                let plain = request(RequestKind::Amo, amo, ty, (offset, operand, compare));
                (Request { fetch: fetch != Fetch::No, ..plain }, None)
            }
            Command::Get { .. } | Command::AgentRequest(_) => return,
        };
        let payload = payload.map(|(source, len)| (source.ptr().cast_mut(), len as usize));
        self.launch_message(pe, lane, op, request, payload, flags);
    }

    /// Launches deferred operations, as far as fences permit now.
    pub(super) fn launch_deferred(&mut self) {
        let mut at = 0;
        while let Some(pe) = self.core.lanes.blocked(at) {
            while self.core.bounce.sufficient()
                && let Core { lanes, profile, ops, .. } = &mut self.core
                && let Some((op, command, lane, protocol)) = lanes.next_deferred(pe, profile, |op| ops.is_over(op))
            {
                self.launch(pe, &command, op, lane, protocol);
            }
            while self.core.bounce.plentiful()
                && let Some(lane) = self.core.lanes.unflushed_before_segmented(pe)
            {
                self.launch_flush(pe, lane, Owner { issuer: FLAGS, tag: None });
            }
            if !self.core.lanes.unblock(at) {
                at += 1;
            }
        }
    }

    fn launch_ask(&mut self, pe: Pe, op: OpHandle, lane: usize, ask: &AgentRequest, flags: PostFlags) {
        let words = (ask.offset, ask.operand, ask.second);
        let plain = self.core.profile.request(ask.kind, ask.op, ask.ty, words, op);
        let request = Request { fetch: true, ..plain };
        let payload = match &ask.payload {
            Payload::Stable(ptr, _) => *ptr,
            Payload::Inline(bytes, _) => bytes.as_ptr(),
        };
        // Expects the outcome; the acknowledgement is counted with the message.
        self.core.ops.expect(op, 1);
        self.launch_message(pe, lane, op, request, Some((payload.cast_mut(), ask.payload.len())), flags);
    }

    /// Requests a read by the target's agent.
    fn launch_fetch(
        &mut self,
        pe: Pe,
        op: OpHandle,
        lane: usize,
        (source, dest, len): (u64, *mut u8, u64),
        flags: PostFlags,
    ) {
        self.core.ops.fetches(op, dest);
        let plain = self.core.profile.request(RequestKind::Get, AmoOp::Fetch, AmoType::U64, (source, len, 0), op);
        self.launch_message(pe, lane, op, Request { fetch: true, ..plain }, None, flags);
    }

    /// Launches a put-signal whose data does not travel with the signal.
    fn launch_put_signal(
        &mut self,
        pe: Pe,
        op: OpHandle,
        lane: usize,
        data: (u64, *mut u8, u64),
        signal: Signal,
        Protocol { form, flags }: Protocol,
    ) {
        if form == Form::WriteThenSignal {
            let signal_lane = if self.core.profile.native_amo() { AMO_LANE } else { lane };
            self.core.hold_lane(op, signal_lane);
            self.core.ops.follow_up(op, signal);
            return self.launch_data(pe, op, lane, data, Transfer::Write, flags);
        }
        // The lane keeps the signal behind the data, so the signal's completion covers the data, too. The count is
        // raised first, because completions may arrive in between.
        self.core.ops.expect(op, 1);
        let transmitted = form == Form::TransmittedWriteMessage;
        let transfer = if transmitted { Transfer::TransmittedWrite } else { Transfer::Write };
        self.launch_data(pe, op, lane, data, transfer, flags);
        if self.core.ops.has_failed(op) {
            return self.core.release(op); // a signal must not arrive without its data
        }
        self.core.ops.unexpect(op, 1);
        if form == Form::WriteAmo {
            self.launch_word_amo(pe, op, WordAmo::of_signal(signal), false);
        } else {
            self.launch_signal(pe, lane, op, signal, flags);
        }
    }

    fn launch_signal(&mut self, pe: Pe, lane: usize, op: OpHandle, signal: Signal, flags: PostFlags) {
        let words = (signal.offset, signal.value, 0);
        let request = self.core.profile.request(RequestKind::Amo, signal.op, AmoType::U64, words, op);
        self.launch_message(pe, lane, op, request, None, flags);
    }

    /// Sends the signals of operations whose data has been delivered, as far as there are buffers.
    pub(super) fn launch_followups(&mut self) {
        while self.core.bounce.plentiful()
            && let Some((op, pe, lane, signal)) = self.core.ops.next_followup()
        {
            if self.core.profile.native_amo() {
                self.launch_word_amo(pe, op, WordAmo::of_signal(signal), false);
            } else {
                let flags = self.core.profile.protocols().request_flags(lane);
                self.launch_signal(pe, lane, op, signal, flags);
            }
        }
    }

    /// Posts the work requests of a put or get of `len` bytes at a symmetric offset and a local address.
    pub(super) fn launch_data(
        &mut self,
        pe: Pe,
        op: OpHandle,
        lane: usize,
        (offset, ptr, len): (u64, *mut u8, u64),
        transfer: Transfer,
        flags: PostFlags,
    ) {
        if let Some(priority) = flags.segmented {
            let reads = transfer == Transfer::Read;
            return self.launch_segmented(pe, lane, Pieces { op, offset, ptr, left: len, reads, priority });
        }
        let lanes = if flags.stripe { self.core.lanes.count(pe) } else { 1 };
        let copy = self.core.ops.slot(op);
        let coalesce = flags.coalesce && copy.is_none();
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
                    Transfer::Write => Work::Write { offset: at },
                    Transfer::TransmittedWrite => Work::TransmittedWrite { offset: at, immediate: None },
                    // The target must not count a failed write.
                    Transfer::CountedWrite(immediate) => {
                        let whole = !more && !self.core.ops.has_failed(op);
                        Work::TransmittedWrite { offset: at, immediate: whole.then_some(immediate) }
                    }
                    Transfer::Read => Work::Read { offset: at },
                };
                let len = piece as usize;
                if let Some(slot) = copy {
                    self.core.bounce.share(slot);
                }
                let more = more || flags.defer_doorbell;
                self.post(WorkRequest { more, coalesce, ..WorkRequest::new(work, pe, lane, op, (from, len), copy) });
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
    Read,
    /// The completion of each write means that it was delivered.
    Write,
    /// The completion of each write means that it has left. A request behind it confirms the delivery: a signal, or the
    /// next quiet's flush.
    TransmittedWrite,
    /// As `TransmittedWrite`, but the last write carries this immediate. The target learns from it that all bytes have
    /// arrived.
    CountedWrite(u64),
}

impl Core {
    /// The number of bytes from `offset` and `ptr` that one work request can move.
    pub(super) fn piece(&self, pe: Pe, lane: usize, offset: u64, ptr: *const u8, len: u64) -> u64 {
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
}
