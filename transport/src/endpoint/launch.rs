//! From an operation to work requests: checks, lane choice, order, cutting.

use std::sync::atomic::{Ordering, fence};

use super::emulate::{AMO_LANE, How, WordAmo};
use super::job::{Ask, Fetch, Finished, Issue, Job, Local, Op, OpHandle, Payload, Signal, Source};
use super::post::{Work, WorkRequest};
use super::{Core, Endpoint, STRIPE_GRAIN};
use crate::amo::{self, AmoOp, AmoType};
use crate::env::RailPolicy;
use crate::error::{Error, Result};
use crate::pe::Pe;
use crate::rail::RailCaps;
use crate::segment;
use crate::wire::{Request, RequestKind};

/// A put-signal whose data fits beside its request in one message of at most this many bytes travels so;
/// a larger one is a write and a message. Past this, copying into the message costs more than the second post.
pub(super) const SIGNAL_MESSAGE_MAX: usize = 4096;

impl Endpoint {
    /// Starts an operation on `pe`'s symmetric memory.
    ///
    /// Returns its handle: 0 when it is already complete. An operation on this PE's own memory is done at once.
    ///
    /// # Safety
    /// [`Source::Stable`] memory stays valid and unchanged, and destinations of gets and fetched values stay valid and
    /// unused, until the operation is complete ([`Endpoint::is_done`], or a quiet of its issuer).
    ///
    /// # Errors
    /// Nothing was started: the PE does not exist, the range is not inside of one, the word is not aligned, the operation is not defined on
    /// the type, the provider lacks it ([`Error::Unsupported`]), or there is no room ([`Error::Full`]; see [`Endpoint::ready`]).
    pub unsafe fn submit(&mut self, pe: Pe, job: Job, issue: Issue) -> Result<OpHandle> {
        self.core.validate(pe, &job)?;
        let (operation, native) = (job.operation(), self.core.policy.native_amo);
        // Nothing to move is done at once too: providers differ about empty writes (shm never completes them).
        let nothing = matches!(job, Job::Put { len: 0, .. } | Job::Get { len: 0, .. });
        // With a provider's atomics even puts to this PE go over the wire: a fence orders them with AMOs there.
        let here = pe == self.core.me && (!native || matches!(job, Job::Get { .. })) && !matches!(job, Job::Ask(_));
        if nothing || here {
            // SAFETY: the caller's promise about its buffers; `validate` checked ours.
            unsafe { self.core.apply_here(&job, issue) };
            return Ok(0);
        }
        if !self.ready() {
            return Err(Error::Full { operation, pe });
        }
        let job = if native { as_amo(job) } else { job };
        if native {
            self.check_native(&job)?;
        }
        let urgent = issue.tag.is_some() || self.core.lone.expects_quiet();
        if issue.tag.is_none() {
            self.core.lone.issued();
            if !urgent && self.quick_put(pe, &job) {
                return Ok(0);
            }
        }
        let (job, slot) = self.core.keep_source(job)?;
        let result = match job {
            Job::Amo { fetch: Fetch::Stored(to), ty, .. } => Some((to, ty.size())),
            _ => None,
        };
        let op = self.core.ops.insert(Op {
            operation,
            pe,
            bytes: job.bytes(),
            issue,
            remaining: 0,
            followup: None,
            swap_loop: None,
            awaits_outcome: matches!(job, Job::Ask(_)),
            holds: None,
            value: 0,
            result,
            fault: None,
            since: self.core.now,
            slot,
        });
        self.core.issuer(issue.issuer).outstanding += 1;
        match self.core.lane_for(pe, &job, self.core.epoch) {
            Some(lane) => self.launch(pe, job, op, lane, urgent),
            None => self.core.defer(pe, op, job),
        }
        Ok(op)
    }

    fn check_native(&self, job: &Job) -> Result<()> {
        let (ty, op, fetching) = match *job {
            Job::Amo { ty, op, fetch, .. } => (ty, op, fetch != Fetch::No),
            Job::PutSignal { signal, .. } => (AmoType::U64, signal.op, false),
            Job::Put { .. } | Job::Get { .. } | Job::Ask(_) => return Ok(()),
        };
        if self.core.abilities.how(ty, op, fetching) != How::Never {
            return Ok(());
        }
        Err(Error::Unsupported {
            what: format!("{op:?} on {ty:?} as a native atomic"),
            by: self.core.caps[AMO_LANE].provider.clone(),
            remedy: "set SYMRAIL_AMO_PATH=agent on all PEs".into(),
        })
    }

    /// Posts everything that an operation needs on a lane (or, striped, on all).
    pub(super) fn launch(&mut self, pe: Pe, job: Job, op: OpHandle, lane: usize, urgent: bool) {
        match job {
            Job::Put { dest, source, len } => {
                let way = if urgent { Way::Put } else { self.core.cheapest_put(pe, lane) };
                self.launch_data(pe, op, lane, (dest, local(source).ptr, len), way);
            }
            Job::Get { source, dest, len } => self.launch_data(pe, op, lane, (source, dest, len), Way::Get),
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
        let source = local(source);
        if self.core.policy.native_amo {
            return self.launch_put_native_signal(pe, op, lane, (dest, source.ptr, len), signal);
        }
        let fits = (len as usize).saturating_add(Request::SIZE) <= SIGNAL_MESSAGE_MAX.min(self.core.bounce.largest());
        if fits {
            let words = (dest, signal.value, signal.offset);
            let request =
                Request { urgent, ..self.core.request(RequestKind::PutSignal, signal.op, AmoType::U64, words, op) };
            return self.launch_message(pe, lane, op, request, Some((source.ptr, len as usize)));
        }
        let striped = self.core.is_striped(pe, len);
        let straight = self.core.connection(pe, lane).is_some_and(|c| c.is_straight());
        if !striped && straight && self.core.caps[lane].order.send_after_write {
            // The lane keeps the message behind the data. The count goes up first: completions may come in between.
            self.core.expect(op, 1);
            self.launch_data(pe, op, lane, (dest, source.ptr, len), Way::Put);
            if self.core.has_failed(op) {
                return self.core.release(op); // a signal must not come without its data
            }
            self.core.unexpect(op, 1);
            self.launch_signal(pe, lane, op, signal, urgent);
        } else {
            self.launch_then_signal(pe, op, lane, (dest, source.ptr, len), signal, lane);
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
        self.launch_data(pe, op, lane, data, Way::Put);
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
        self.launch_data(pe, op, lane, data, Way::Put);
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

    /// Posts the work requests of a put or get of `len` bytes at a symmetric offset and a local address.
    fn launch_data(&mut self, pe: Pe, op: OpHandle, lane: usize, (offset, ptr, len): (u64, *mut u8, u64), way: Way) {
        let lanes = if self.core.is_striped(pe, len) { usize::from(self.core.peers[pe as usize].lanes) } else { 1 };
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
                    Way::FlushedPut => Work::Flag { offset: at },
                    Way::Get => Work::Read { offset: at },
                };
                let len = piece as usize;
                self.post(WorkRequest { more, ..WorkRequest::new(work, pe, lane, op, (from, len), None) });
                done += piece;
                if done >= length {
                    break;
                }
            }
        }
        if way == Way::FlushedPut {
            self.core.make_dirty(pe, lane);
        }
        self.core.release(op);
    }
}

/// How data moves.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Get,
    /// Each write tells when it is delivered.
    Put,
    /// Each write tells when it has left, and the next quiet's flush when all of them are delivered.
    FlushedPut,
}

/// A signal without data is an AMO where providers do both.
fn as_amo(job: Job) -> Job {
    match job {
        Job::PutSignal { len: 0, signal, .. } => {
            let WordAmo { offset, ty, op, operand, compare } = WordAmo::of_signal(signal);
            Job::Amo { offset, ty, op, operand, compare, fetch: Fetch::No }
        }
        _ => job,
    }
}

pub(super) fn local(source: Source) -> Local {
    let (Source::Stable(ptr) | Source::Copied(ptr)) = source;
    Local { ptr: ptr.cast_mut() }
}

impl Core {
    pub(super) fn validate(&self, pe: Pe, job: &Job) -> Result<()> {
        if pe >= self.n_pes {
            return Err(Error::NoSuchPe { pe: pe.into(), last: self.n_pes - 1 });
        }
        let operation = job.operation();
        let word = |offset: u64, size: usize| {
            if !offset.is_multiple_of(size as u64) {
                return Err(Error::Misaligned { operation, pe, offset, needed: size });
            }
            self.regions.check(operation, pe, offset, size as u64)
        };
        match *job {
            Job::Put { dest: offset, len, .. } | Job::Get { source: offset, len, .. } => {
                self.regions.check(operation, pe, offset, len)
            }
            Job::PutSignal { dest, len, signal, .. } => {
                self.regions.check(operation, pe, dest, len)?;
                word(signal.offset, 8)
            }
            Job::Amo { offset, ty, op, .. } => {
                if !op.defined_on(ty) {
                    return Err(Error::Unsupported {
                        what: format!("{op:?} on {ty:?}"),
                        by: "atomic memory operations".into(),
                        remedy: "use an integer type".into(),
                    });
                }
                word(offset, ty.size())
            }
            Job::Ask(ask) => {
                let (bytes, limit) = (ask.payload.len(), self.bounce.largest() - Request::SIZE);
                if bytes <= limit {
                    return Ok(());
                }
                Err(Error::Unsupported {
                    what: format!("a request with a payload of {bytes} bytes"),
                    by: format!("messages, which hold {limit}"),
                    remedy: "let the target read the bytes from the window".into(),
                })
            }
        }
    }

    /// Does an operation on this PE's own memory.
    ///
    /// # Safety
    /// As for `submit`; the ranges were checked.
    unsafe fn apply_here(&mut self, job: &Job, issue: Issue) {
        let mut value = 0;
        match *job {
            // SAFETY: the caller's promise.
            Job::Put { dest, source, len } => unsafe { self.put_here(dest, source, len) },
            Job::Get { source, dest, len } => {
                if let Some(from) = self.regions.local(source, len) {
                    // SAFETY: as above.
                    unsafe { dest.copy_from(from, len as usize) };
                }
            }
            Job::PutSignal { dest, source, len, signal } => {
                if let Some(word) = self.regions.local(signal.offset, 8) {
                    // SAFETY: as above; the signal word was checked to be aligned.
                    unsafe {
                        self.put_here(dest, source, len);
                        amo::apply(word, AmoType::U64, signal.op, signal.value, 0);
                    }
                }
            }
            Job::Amo { offset, ty, op, operand, compare, fetch } => {
                if let Some(word) = self.regions.local(offset, ty.size() as u64) {
                    // SAFETY: checked to be inside of a segment and aligned.
                    value = unsafe { amo::apply(word, ty, op, operand, compare) };
                }
                if let Fetch::Stored(to) = fetch {
                    // SAFETY: the caller vouches for the destination.
                    unsafe { store(to, ty.size(), value) };
                }
            }
            Job::Ask(_) => {}
        }
        if let Some(tag) = issue.tag {
            self.finished.push(Finished { issuer: issue.issuer, tag, result: Ok(value) });
        }
    }

    /// Copies to this PE's own memory; what follows is visible behind it.
    ///
    /// # Safety
    /// The source is valid.
    unsafe fn put_here(&self, dest: u64, source: Source, len: u64) {
        if let Some(to) = self.regions.local(dest, len)
            && len > 0
        {
            // SAFETY: both ranges are valid; `copy` allows them to overlap.
            unsafe { to.copy_from(local(source).ptr, len as usize) };
        }
        fence(Ordering::SeqCst);
    }

    /// Copies a source that the caller wants back at once.
    fn keep_source(&mut self, mut job: Job) -> Result<(Job, Option<crate::bounce::Slot>)> {
        let (operation, limit) = (job.operation(), self.bounce.largest() - Request::SIZE);
        let (Job::Put { source, len, .. } | Job::PutSignal { source, len, .. }) = &mut job else {
            return Ok((job, None));
        };
        let Source::Copied(from) = *source else { return Ok((job, None)) };
        if *len as usize > limit {
            return Err(Error::Unsupported {
                what: format!("{operation} of a copied source of {len} bytes"),
                by: format!("the bounce buffers, which hold {limit}"),
                remedy: "pass a stable source and wait for the operation".into(),
            });
        }
        let Some(slot) = self.bounce.alloc(*len as usize) else {
            return Err(Error::Full { operation, pe: self.me });
        };
        let to = self.bounce.ptr(slot).as_ptr();
        // SAFETY: the slot has room for `len` bytes; the caller vouches for the source.
        unsafe { to.copy_from_nonoverlapping(from, *len as usize) };
        *source = Source::Stable(to);
        Ok((job, Some(slot)))
    }

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

    /// For a put that a quiet will complete. Where the target's CPU would have to acknowledge each, one flush behind all of them is
    /// cheaper, if the lane keeps it there.
    fn cheapest_put(&self, pe: Pe, lane: usize) -> Way {
        let RailCaps { order, software, .. } = self.caps[lane];
        let flushed = self.role == super::Role::Host
            && self.peers[pe as usize].lanes == 1
            && software
            && order.send_after_write
            && order.send_after_send;
        if flushed { Way::FlushedPut } else { Way::Put }
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
            && self.role == super::Role::Proxy
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

/// Stores the low `size` bytes (4 or 8) of a fetched value.
///
/// # Safety
/// `to` is valid for writes of `size` bytes.
pub(super) unsafe fn store(to: *mut u8, size: usize, value: u64) {
    // SAFETY: the caller's promise; unaligned stores are allowed here.
    unsafe {
        if size == 4 { to.cast::<u32>().write_unaligned(value as u32) } else { to.cast::<u64>().write_unaligned(value) }
    }
}
