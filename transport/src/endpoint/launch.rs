//! From an operation to work requests: what each kind needs, and cutting.

use super::company::MOST;
use super::emulate::{AMO_LANE, WordAmo};
use super::job::{Ask, Fetch, Job, OpHandle, Payload, Signal, Source};
use super::lone::Hurry;
use super::post::{Work, WorkRequest};
use super::{Core, Endpoint, Role, STRIPE_GRAIN};
use crate::amo::{AmoOp, AmoType};
use crate::env::RailPolicy;
use crate::pe::Pe;
use crate::rail::RailCaps;
use crate::segment;
use crate::wire::{Request, RequestKind};

/// Data of at most this many bytes travels in a message, if there are messages so large. Beyond, copying it costs more than a post.
const IN_MESSAGE_MAX: u64 = 4096;

/// Beyond this many bytes acknowledgements cost little, and a flush behind all writes that a window holds costs more: 7 % with 1 MiB
/// over `tcp;ofi_rxm`.
const FLUSHED_MAX: u64 = 64 << 10;

impl Endpoint {
    /// Posts everything that an operation needs on a lane (or, striped, on all).
    #[inline(always)]
    pub(super) fn launch(&mut self, pe: Pe, job: &Job, op: OpHandle, lane: usize, hurry: Hurry) {
        let urgent = hurry != Hurry::No;
        // What waits for others at a host endpoint may wait for long; the engine polls soon.
        let unhurried = !urgent || (hurry == Hurry::Soon && self.core.role == Role::Proxy);
        match *job {
            Job::Put { dest, source, len } if hurry != Hurry::Alone && self.core.is_request(lane, len) => {
                let plain = self.core.request(RequestKind::Put, AmoOp::Set, AmoType::U64, (dest, 0, 0), op);
                let payload = (source.ptr().cast_mut(), len as usize);
                self.launch_message(pe, lane, op, Request { urgent, ..plain }, Some(payload));
            }
            Job::Put { dest, source, len } => {
                let way = if urgent || len > FLUSHED_MAX { Way::Put } else { self.core.cheapest_put(pe, lane) };
                self.launch_data(pe, op, lane, (dest, source.ptr().cast_mut(), len), way, unhurried);
                if way == Way::LeftPut {
                    self.core.make_dirty(pe, lane);
                }
            }
            Job::Get { source, dest, len } => {
                self.launch_data(pe, op, lane, (source, dest, len), Way::Get, unhurried);
            }
            Job::PutSignal { dest, source, len, signal } => {
                self.launch_put_signal(pe, op, lane, (dest, source, len), signal, urgent);
            }
            Job::Amo { offset, ty, op: amo, operand, compare, fetch } if self.core.policy.native_amo => {
                let amo = WordAmo { offset, ty, op: amo, operand, compare };
                self.launch_word_amo(pe, op, amo, fetch != Fetch::No);
            }
            Job::Amo { offset, ty, op: amo, operand, compare, fetch } => {
                let fetch = fetch != Fetch::No;
                let words = (offset, operand, compare);
                let request = Request {
                    fetch,
                    urgent: urgent || fetch,
                    ..self.core.request(RequestKind::Amo, amo, ty, words, op)
                };
                self.launch_message(pe, lane, op, request, None);
            }
            Job::Ask(ask) => self.launch_ask(pe, op, lane, &ask),
        }
    }

    fn launch_ask(&mut self, pe: Pe, op: OpHandle, lane: usize, ask: &Ask) {
        let words = (ask.offset, ask.operand, ask.second);
        let plain = self.core.request(ask.kind, ask.op, ask.ty, words, op);
        let request = Request { fetch: true, urgent: true, ..plain };
        let payload = match &ask.payload {
            Payload::Stable(ptr, _) => *ptr,
            Payload::Inline(bytes, _) => bytes.as_ptr(),
        };
        // The outcome; the acknowledgement is counted with the message.
        self.core.expect(op, 1);
        self.launch_message(pe, lane, op, request, Some((payload.cast_mut(), ask.payload.len())));
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
        if self.core.policy.native_amo {
            return self.launch_put_native_signal(pe, op, lane, (dest, ptr, len), signal);
        }
        if self.core.fits_message(len) {
            let words = (dest, signal.value, signal.offset);
            let request =
                Request { urgent, ..self.core.request(RequestKind::PutSignal, signal.op, AmoType::U64, words, op) };
            return self.launch_message(pe, lane, op, request, Some((ptr, len as usize)));
        }
        let striped = self.core.is_striped(pe, len);
        let straight = self.core.connection(pe, lane).is_some_and(|c| c.is_straight());
        if !striped && straight && self.core.caps[lane].order.send_after_write {
            // The lane keeps the message behind the data, so its acknowledgement is the data's, too. The count goes up first:
            // completions may come in between.
            self.core.expect(op, 1);
            let way = if len > FLUSHED_MAX { Way::Put } else { self.core.cheapest_put(pe, lane) };
            self.launch_data(pe, op, lane, (dest, ptr, len), way, false);
            if self.core.has_failed(op) {
                return self.core.release(op); // a signal must not come without its data
            }
            self.core.unexpect(op, 1);
            self.launch_signal(pe, lane, op, signal, urgent);
        } else {
            self.launch_then_signal(pe, op, lane, (dest, ptr, len), signal, lane);
        }
    }

    /// A put-signal whose signal is an AMO by the provider, which goes behind the data where the lane keeps it there.
    fn launch_put_native_signal(
        &mut self,
        pe: Pe,
        op: OpHandle,
        lane: usize,
        data: (u64, *mut u8, u64),
        signal: Signal,
    ) {
        if lane != AMO_LANE || self.core.is_striped(pe, data.2) || !self.core.caps[lane].order.amo_after_write {
            return self.launch_then_signal(pe, op, lane, data, signal, AMO_LANE);
        }
        // As above.
        self.core.expect(op, 1);
        self.launch_data(pe, op, lane, data, Way::Put, false);
        if self.core.has_failed(op) {
            return self.core.release(op);
        }
        self.core.unexpect(op, 1);
        self.launch_word_amo(pe, op, WordAmo::of_signal(signal), false);
    }

    /// Puts, and lets the signal go over `signal_lane` when the data has been delivered.
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
        if let Some(o) = self.core.ops.get_mut(op) {
            o.followup = Some(signal);
        }
        self.launch_data(pe, op, lane, data, Way::Put, false);
    }

    fn launch_signal(&mut self, pe: Pe, lane: usize, op: OpHandle, signal: Signal, urgent: bool) {
        let words = (signal.offset, signal.value, 0);
        let request = Request { urgent, ..self.core.request(RequestKind::Amo, signal.op, AmoType::U64, words, op) };
        self.launch_message(pe, lane, op, request, None);
    }

    /// Sends the signal of an operation whose data has been delivered.
    pub(super) fn launch_followup(&mut self, op: OpHandle) {
        let Some(o) = self.core.ops.get_mut(op) else { return };
        let (pe, Some(signal)) = (o.pe, o.followup.take()) else { return };
        if self.core.policy.native_amo {
            return self.launch_word_amo(pe, op, WordAmo::of_signal(signal), false);
        }
        let lane = o.holds.map_or(0, usize::from);
        self.launch_signal(pe, lane, op, signal, true);
    }

    /// Posts the work requests of a put or get of `len` bytes at a symmetric offset and a local address. An unhurried one may wait for company.
    pub(super) fn launch_data(
        &mut self,
        pe: Pe,
        op: OpHandle,
        lane: usize,
        (offset, ptr, len): (u64, *mut u8, u64),
        way: Way,
        unhurried: bool,
    ) {
        let lanes = if self.core.is_striped(pe, len) { usize::from(self.core.peers[pe as usize].lanes) } else { 1 };
        let copy = self.core.ops.get(op).and_then(|o| o.slot);
        let may_wait = unhurried && copy.is_none() && self.core.may_wait(lane, len);
        // The engine polls soon, when it has taken all that its channels hold.
        let polled = unhurried && self.core.role == Role::Proxy && self.core.caps[lane].polls_post;
        // Held while posting, so that the operation cannot complete between two of its work requests.
        self.core.expect(op, 1);
        for (share, start, length) in segment::stripes(len, lanes, STRIPE_GRAIN) {
            let lane = if lanes > 1 { (lane + share) % lanes } else { lane };
            let mut done = 0;
            loop {
                let (at, from) = (offset + start + done, ptr.wrapping_add((start + done) as usize));
                let piece = self.core.piece(pe, lane, at, from, length - done);
                let more = done + piece < length;
                self.core.expect(op, 1);
                let work = match way {
                    Way::Put => Work::Write { offset: at },
                    Way::LeftPut => Work::Flag { offset: at, immediate: None },
                    // What has failed must not be counted.
                    Way::CountedPut(immediate) => {
                        let whole = !more && !self.core.has_failed(op);
                        Work::Flag { offset: at, immediate: whole.then_some(immediate) }
                    }
                    Way::Get => Work::Read { offset: at },
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
pub(super) enum Way {
    Get,
    /// Each write tells when it is delivered.
    Put,
    /// Each write tells when it has left. A request behind it is what tells that it was delivered: a signal, or the next quiet's flush.
    LeftPut,
    /// The same; the last write brings this, by which its target knows that all has come.
    CountedPut(u64),
}

impl Core {
    /// A request of this endpoint; not urgent, without payload, not numbered yet.
    pub(super) fn request(
        &self,
        kind: RequestKind,
        op: AmoOp,
        ty: AmoType,
        words: (u64, u64, u64),
        id: OpHandle,
    ) -> Request {
        let (offset, operand, second) = words;
        let origin = self.origin;
        let (source, fetch, urgent, lane) = (self.me, false, false, 0);
        let (sequence, payload, acknowledged) = (0, 0, 0);
        #[rustfmt::skip]
        let request = Request {
            kind, op, ty, origin, fetch, urgent, lane, source, sequence, payload, acknowledged, offset, operand, second, id,
        };
        request
    }

    /// Whether data travels in a message.
    pub(super) fn fits_message(&self, len: u64) -> bool {
        len <= IN_MESSAGE_MAX && len as usize + Request::alone(0) <= self.bounce.largest()
    }

    /// Whether the data of an operation is copied into a message when it is launched.
    pub(super) fn is_in_message(&self, lane: usize, job: &Job, hurry: Hurry) -> bool {
        match *job {
            Job::Put { len, .. } => hurry != Hurry::Alone && self.is_request(lane, len),
            Job::PutSignal { len, .. } => !self.policy.native_amo && self.fits_message(len),
            _ => false,
        }
    }

    /// Whether a put that the engine starts is a request to the target agent, which travels with others and is acknowledged with them.
    pub(super) fn is_request(&self, lane: usize, len: u64) -> bool {
        self.role == Role::Proxy && !self.policy.native_amo && self.is_cheap_request(lane, len)
    }

    /// Whether a put costs least as a request: at least as many find room in a message as in a work request of several pieces.
    pub(super) fn is_cheap_request(&self, lane: usize, len: u64) -> bool {
        let caps = &self.caps[lane];
        caps.software && self.fits_message(len) && len <= (caps.max_send / caps.pieces.clamp(1, MOST)) as u64
    }

    /// Lets the target's agent fetch a word, where its answers to many such requests travel together.
    pub(super) fn get_as_fetch(&self, lane: usize, job: &mut Job) {
        let Job::Get { source: offset, dest, len } = *job else { return };
        let ty = if len == 8 { AmoType::U64 } else { AmoType::U32 };
        let is_word = matches!(len, 4 | 8) && offset.is_multiple_of(len);
        if is_word && self.is_request(lane, len) {
            *job = Job::Amo { offset, ty, op: AmoOp::Fetch, operand: 0, compare: 0, fetch: Fetch::Stored(dest) };
        }
    }

    /// For a put that a request behind it will complete. Where the target's CPU would have to acknowledge each write, that request's
    /// acknowledgement alone is cheaper, if the lane keeps it there.
    fn cheapest_put(&self, pe: Pe, lane: usize) -> Way {
        let RailCaps { order, software, .. } = self.caps[lane];
        let behind = self.role == Role::Host
            && self.peers[pe as usize].lanes == 1
            && software
            && order.send_after_write
            && order.send_after_send;
        if behind { Way::LeftPut } else { Way::Put }
    }

    /// How many bytes from `offset` and `ptr` one work request can move.
    fn piece(&self, pe: Pe, lane: usize, offset: u64, ptr: *const u8, len: u64) -> u64 {
        let caps = &self.caps[lane];
        let mut piece = len.min(self.max_rma);
        if let Some((_, covered)) = self.regions.remote(pe, lane, offset) {
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
        let peer = &self.peers[pe as usize];
        self.policy.rails == RailPolicy::Stripe
            && len >= self.policy.stripe_threshold
            && peer.lanes > 1
            && self.role == Role::Proxy
            && peer.down == 0
            && peer.pinned.is_none()
    }

    /// Whether an operation has failed, or is over without having been completed.
    pub(super) fn has_failed(&self, op: OpHandle) -> bool {
        self.ops.get(op).is_none_or(|o| o.fault.is_some())
    }

    pub(super) fn expect(&mut self, op: OpHandle, count: u32) {
        if let Some(o) = self.ops.get_mut(op) {
            o.remaining += count;
        }
    }

    fn unexpect(&mut self, op: OpHandle, count: u32) {
        if let Some(o) = self.ops.get_mut(op) {
            o.remaining -= count;
        }
    }
}
