//! Requests to target agents, and the agents' answers, as messages.
//!
//! The endpoint sends a request at once or, where CPUs move the bytes, [gathers](super::software) it with others.
//!
//! Where a peer has several lanes, messages are kept until they are acknowledged, so that `failover` can send them
//! again.

use super::command::{OpHandle, Owner};
use super::operations::Op;
use super::protocol::{Form, Gather, PostFlags};
use super::queue::{Work, WorkRequest};
use super::software::append;
use super::{Core, Endpoint};
use crate::amo::{AmoOp, AmoType};
use crate::bounce::SMALL;
use crate::error::{Error, Operation};
use crate::pe::Pe;
use crate::rail::{Dest, LocalBuf, LocalKey, PostError};
use crate::wire::{Origin, Request, RequestKind, Token};

impl Endpoint {
    /// Sends a request, with its payload if it has one; the operation waits for its acknowledgement.
    #[inline(always)]
    pub(super) fn launch_message(
        &mut self,
        pe: Pe,
        lane: usize,
        op: OpHandle,
        request: Request,
        payload: Option<(*mut u8, usize)>,
        flags: PostFlags,
    ) {
        self.core.ops.expect(op, 1);
        self.send_request(pe, lane, request, payload.unwrap_or((std::ptr::null_mut(), 0)), flags);
    }

    /// Numbers a request and sends it, or gathers it with others. Its id is the operation that waits for it, or 0.
    #[inline(always)]
    pub(super) fn send_request(
        &mut self,
        pe: Pe,
        lane: usize,
        request: Request,
        payload: (*mut u8, usize),
        flags: PostFlags,
    ) {
        let waits = match flags.gather {
            Gather::No => false,
            Gather::IfClose => self.core.follows_closely(pe, lane),
            Gather::Yes => true,
        };
        if self.core.profile.introduction().is_some() {
            self.introduce(pe, lane);
        }
        self.gather_or_send(pe, lane, request, payload, (flags.acknowledge, waits));
    }

    /// Numbers a request. If it `waits`, it is gathered with others, else sent. The next quiet asks for its
    /// acknowledgement, or its message does if it is to be acknowledged.
    #[inline(always)]
    fn gather_or_send(
        &mut self,
        pe: Pe,
        lane: usize,
        mut request: Request,
        payload: (*mut u8, usize),
        (acknowledge, waits): (bool, bool),
    ) {
        // A later request asks for the acknowledgement of the requests in the same message.
        let asks_later = self.core.lanes.expects_more() && self.core.profile.caps(lane).software;
        request.urgent = acknowledge && (request.fetch || !asks_later);
        if self.core.profile.rails() > 1 {
            request.urgent |= self.core.will_wait(pe, lane);
        }
        self.core.observer.requested(lane);
        let Core { lanes, profile, bounce, .. } = &mut self.core;
        let Some(c) = lanes.get_mut(pe, lane) else { return };
        request.sequence = c.number(request.id, Request::SIZE + payload.1);
        request.source = profile.source_at(pe);
        request.lane = c.theirs(lane) as u8;
        request.acknowledged = c.applied as u16;
        request.payload = payload.1 as u16;
        let appended = waits && append(c, bounce, profile.caps(lane).max_send, &request, payload);
        if !acknowledge {
            // The next quiet asks, even where the answer is wanted soon to free buffers.
            c.lazy = true;
            if !c.listed {
                lanes.list(pe, lane);
            }
        } else if request.urgent == c.ack_not_requested {
            lanes.note_ack(pe, lane, request.urgent);
        }
        if !appended {
            self.send_numbered(pe, lane, &request, payload, waits);
        }
    }

    /// Adds a put to the open message to its PE, of operations of this form, if the put is of a size that travels so.
    /// `op` is the operation on that PE's memory that waits for it then, or 0.
    #[inline(always)]
    pub(super) fn continue_puts(
        &mut self,
        pe: Pe,
        lane: usize,
        form: Form,
        op: OpHandle,
        (dest, source, len): (u64, *const u8, u64),
    ) -> bool {
        if len == 0 || len > self.core.profile.protocols().cheap_message(lane) {
            return false;
        }
        let recorded = form == Form::Message;
        if recorded && !self.core.ops.extend(op, pe) {
            return false;
        }
        let request = self.core.profile.request(RequestKind::Put, AmoOp::Set, AmoType::U64, (dest, 0, 0), op);
        self.gather_or_send(pe, lane, request, (source.cast_mut(), len as usize), (recorded, true));
        true
    }

    /// Sends a numbered request. If it `waits`, or if others are gathered, it goes behind them or begins a message.
    #[inline(never)]
    fn send_numbered(&mut self, pe: Pe, lane: usize, request: &Request, payload: (*mut u8, usize), waits: bool) {
        if waits || self.core.lanes.get(pe, lane).is_some_and(|c| c.outbox.is_some()) {
            if self.gather(pe, lane, request, payload) {
                if !waits {
                    self.send_outbox(pe, lane);
                }
                return;
            }
            self.send_outbox(pe, lane);
        }
        if self.core.lanes.failover(pe, lane).is_some() {
            return self.send_kept(pe, lane, request, payload);
        }
        self.send_alone(pe, lane, request, payload);
    }

    /// Tells a peer, once, the address for answers to this endpoint.
    #[cold]
    fn introduce(&mut self, pe: Pe, lane: usize) {
        let known = self.core.lanes.get_mut(pe, lane).is_none_or(|c| std::mem::replace(&mut c.introduced, true));
        let Some(address) = self.core.profile.introduction().filter(|_| !known).map(Box::<[u8]>::from) else { return };
        let request = self.core.profile.request(RequestKind::Introduce, AmoOp::Fetch, AmoType::U64, (0, 0, 0), 0);
        let payload = (address.as_ptr().cast_mut(), address.len());
        self.send_request(pe, lane, request, payload, PostFlags::AT_ONCE);
    }

    /// Asks for the acknowledgement of all requests sent on a lane: by a gathered request, or else by a flush. Returns
    /// `false` when there is no room for the flush.
    pub(super) fn ask_for_acknowledgement(&mut self, pe: Pe, lane: usize) -> bool {
        let c = self.core.lanes.get(pe, lane).filter(|c| !c.unacked.is_empty());
        match c.map(|c| c.outbox) {
            None => {}
            Some(Some((slot, _))) => {
                let first = self.core.bounce.ptr(slot).as_ptr().wrapping_add(Token::SIZE).cast();
                // SAFETY: an outbox begins with a token and a request, in a slot that no rail knows of yet.
                Request::make_urgent(unsafe { &mut *first }); // one answer acknowledges all requests of the message
            }
            Some(None) if !self.core.bounce.plentiful() => return false,
            Some(None) => {
                let flush = self.core.profile.request(RequestKind::Flush, AmoOp::Fetch, AmoType::U64, (0, 0, 0), 0);
                let nothing = (std::ptr::null_mut(), 0);
                self.send_request(pe, lane, flush, nothing, PostFlags::AT_ONCE);
            }
        }
        self.core.lanes.note_ack_requested(pe, lane);
        true
    }

    /// Sends one request and keeps the message until it is acknowledged.
    fn send_kept(&mut self, pe: Pe, lane: usize, request: &Request, (ptr, len): (*mut u8, usize)) {
        let total = Request::alone(len);
        let Some(slot) = self.core.bounce.alloc(total) else { return self.core.fail_full(request.id) };
        let token = self.core.profile.token_of(pe);
        // SAFETY: the slot has room for `total` bytes.
        unsafe { fill(begin(self.core.bounce.ptr(slot).as_ptr(), token), request, ptr, len) };
        self.keep_and_send(pe, lane, slot, total as u32, request.sequence);
    }

    /// Sends a message that the rail copies at once, if it is small enough and no earlier message waits.
    #[inline]
    pub(super) fn inject(&mut self, dest: Dest, lane: usize, (ptr, len): (*mut u8, usize)) -> Result<(), PostError> {
        // A recorded message needs a completion.
        let recorded = self.core.observer.records();
        if len > self.core.profile.caps(lane).inject || self.core.queue.holds(lane, dest) || recorded {
            return Err(PostError::Again);
        }
        let local = LocalBuf { ptr, len, key: LocalKey::default() };
        // SAFETY: the callers' bytes are valid, and without an id they are copied before the call returns.
        unsafe { self.rails[lane].send(dest, local, None) }?;
        self.core.observer.sent(lane, len);
        Ok(())
    }

    fn send_alone(&mut self, pe: Pe, lane: usize, request: &Request, (ptr, len): (*mut u8, usize)) {
        let op = request.id;
        let (total, token) = (Request::alone(len), self.core.profile.token_of(pe));
        if total <= SMALL {
            let mut bytes = [0u8; SMALL];
            // SAFETY: `total` fits.
            unsafe { fill(begin(bytes.as_mut_ptr(), token), request, ptr, len) };
            match self.inject(pe, lane, (bytes.as_mut_ptr(), total)) {
                Ok(()) => return,
                Err(PostError::Again) => {}
                Err(PostError::Failed(fault)) => return self.core.fail_request(op, lane, fault),
            }
        }
        let Some(slot) = self.core.bounce.alloc(total) else { return self.core.fail_full(op) };
        let to = self.core.bounce.ptr(slot).as_ptr();
        // SAFETY: the slot has room for `total` bytes.
        unsafe { fill(begin(to, token), request, ptr, len) };
        self.core.ops.expect(op, 1);
        self.post(WorkRequest::new(Work::Send, pe, lane, op, (to, total), Some(slot)));
    }

    /// Sends a request whose acknowledgement means that earlier writes on the lane are visible.
    pub(super) fn launch_flush(&mut self, pe: Pe, lane: usize, owner: Owner) {
        let flush = Op::new(Operation::Quiet, pe, 0, owner, self.core.clock.now(), None);
        let op = self.core.ops.start(flush, &mut self.core.issuers);
        let was_dirty = self.core.lanes.get_mut(pe, lane).is_some_and(|c| {
            c.lazy = false;
            std::mem::take(&mut c.dirty)
        });
        let flush = self.core.profile.request(RequestKind::Flush, AmoOp::Fetch, AmoType::U64, (0, 0, 0), op);
        let flags = self.core.profile.protocols().request_flags(lane);
        self.launch_message(pe, lane, op, flush, None, flags);
        // Operations that a fence holds back behind writes without a completion wait for this acknowledgement.
        let sent = self.core.lanes.get_mut(pe, lane).map_or(0, |c| c.sent);
        let peer = self.core.lanes.peer_mut(pe);
        if was_dirty && peer.pinned == Some(lane as u8) {
            peer.fenced = sent;
        }
    }

    /// Asks a peer's target agent for a keepalive.
    ///
    /// # Errors
    /// [`Error::NoSuchPe`], [`Error::PeerLost`], [`Error::Full`].
    pub fn probe(&mut self, pe: Pe, owner: Owner) -> Result<(), Error> {
        self.probe_over(None, pe, owner)
    }

    /// As [`Endpoint::probe`], over this lane if it is one to the peer.
    ///
    /// # Errors
    /// As for [`Endpoint::probe`].
    pub fn probe_over(&mut self, over: Option<usize>, pe: Pe, owner: Owner) -> Result<(), Error> {
        self.core.lanes.accept(Operation::Quiet, pe)?;
        self.need(pe)?;
        if !self.ready() {
            return Err(Error::Full { operation: Operation::Quiet, pe });
        }
        let lane = over.filter(|&over| self.core.lanes.each(pe).any(|lane| lane == over));
        let lane = lane.or_else(|| self.core.lanes.pick(pe, 0)).unwrap_or_else(|| self.core.lanes.each(pe).first());
        self.launch_flush(pe, lane, owner);
        Ok(())
    }

    /// The PE number that a peer has for this PE.
    #[must_use]
    pub fn source_at(&self, pe: Pe) -> Pe {
        self.core.profile.source_at(pe)
    }

    /// Sends a target agent's answer to the endpoint of `pe` that sent the request. The answer begins with room for the
    /// token of that endpoint. Returns `false` when there is no room; the caller polls and tries again.
    pub fn reply(&mut self, pe: Pe, origin: Origin, lane: usize, bytes: &mut [u8]) -> bool {
        let dest = self.core.profile.answer_to(pe, origin);
        let Some(token) = bytes.first_chunk_mut() else { return true };
        *token = self.core.profile.token_of(dest).bytes();
        let lane = self.core.lanes.for_reply(dest, lane);
        if lane >= self.core.profile.rails() || self.inject(dest, lane, (bytes.as_mut_ptr(), bytes.len())).is_ok() {
            return true;
        }
        let Some(slot) = self.core.bounce.alloc(bytes.len()) else { return false };
        let ptr = self.core.bounce.ptr(slot).as_ptr();
        // SAFETY: the slot has room, and is not inside of `bytes`.
        unsafe { ptr.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        self.post(WorkRequest::new(Work::Send, dest, lane, 0, (ptr, bytes.len()), Some(slot)));
        true
    }
}

/// Begins a message: writes the token, and returns the place for the requests.
///
/// # Safety
/// `message` is valid for writes of the token.
pub(super) unsafe fn begin(message: *mut u8, token: Token) -> *mut u8 {
    // SAFETY: the caller's promise.
    unsafe {
        message.copy_from_nonoverlapping(token.bytes().as_ptr(), Token::SIZE);
        message.add(Token::SIZE)
    }
}

/// Writes a request and its payload.
///
/// # Safety
/// `to` is valid for writes of the request with its padded payload; `ptr` is valid for reads of `len` bytes and
/// elsewhere.
#[inline(always)]
pub(super) unsafe fn fill(to: *mut u8, request: &Request, ptr: *const u8, len: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        to.cast::<[[u8; 8]; Request::SIZE / 8]>().write(request.encode());
        let payload = to.add(Request::SIZE);
        // A word, the most frequent payload, needs no calls.
        if len == 8 {
            return payload.cast::<[u8; 8]>().write(ptr.cast::<[u8; 8]>().read());
        }
        if len > 0 {
            payload.copy_from_nonoverlapping(ptr, len);
            payload.add(len).write_bytes(0, Request::padded(len) - len);
        }
    }
}

impl Core {
    /// Replaces the requests of failed operations by requests without effect, because a signal must not arrive without
    /// its data.
    ///
    /// # Safety
    /// `message` is a message of `len` bytes in a slot that no thread or NIC accesses now.
    pub(super) unsafe fn void_failed(&self, message: *mut u8, len: usize) {
        let mut at = Token::SIZE;
        while at < len {
            // SAFETY: the caller's promise.
            let rest = unsafe { std::slice::from_raw_parts(message.add(at), len - at) };
            let Ok((request, payload, _)) = Request::decode(rest) else { return };
            let size = Request::SIZE + Request::padded(payload.len());
            if request.id != 0 && self.ops.has_failed(request.id) {
                let nothing = Request { kind: RequestKind::Flush, fetch: false, ..request }.encode();
                // SAFETY: the caller's promise; the message has a request of this size there.
                unsafe { message.add(at).copy_from_nonoverlapping(nothing.as_flattened().as_ptr(), Request::SIZE) };
            }
            at += size;
        }
    }
}
