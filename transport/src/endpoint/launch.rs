//! From an operation to work requests: checks, lane choice, order, cutting.

use std::sync::atomic::{Ordering, fence};

use super::connection::Connection;
use super::job::{Fetch, Finished, Issue, Job, Local, Op, OpHandle, Signal, Source};
use super::post::{Work, WorkRequest};
use super::{Core, Endpoint, STRIPE_GRAIN};
use crate::amo::{self, AmoOp, AmoType};
use crate::bounce::SMALL;
use crate::env::RailPolicy;
use crate::error::{Error, Operation, Result};
use crate::pe::Pe;
use crate::rail::{LocalBuf, LocalKey, NativeAmo, Notify, PostError, WriteOptions};
use crate::segment;
use crate::wire::{Request, RequestKind};

/// A put-signal whose data fits beside its request in one message of at most this many bytes travels so;
/// a larger one is a write and a message. Past this, copying into the message costs more than the second post.
const SIGNAL_MESSAGE_MAX: usize = 4096;

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
        if pe == self.core.me && !(self.core.policy.native_amo && matches!(job, Job::Amo { .. })) {
            // SAFETY: the caller's promise about its buffers; `validate` checked ours.
            unsafe { self.core.apply_here(&job, issue) };
            return Ok(0);
        }
        if !self.ready() {
            return Err(Error::Full { operation: job.operation(), pe });
        }
        if issue.tag.is_none() && matches!(job, Job::Put { .. }) {
            if self.try_quick_put(pe, &job, true) {
                self.core.lone_puts.put();
                return Ok(0);
            }
            self.core.lone_puts.put();
        }
        if let Job::Amo { ty, op, fetch, .. } = job
            && self.core.policy.native_amo
        {
            self.check_native(ty, op, fetch)?;
        }
        let (job, slot) = self.core.keep_source(job)?;
        let result = match job {
            Job::Amo { fetch: Fetch::Stored(to), ty, .. } => Some((to, ty.size())),
            _ => None,
        };
        let op = self.core.ops.insert(Op {
            operation: job.operation(),
            pe,
            bytes: job.bytes(),
            issue,
            remaining: 0,
            followup: None,
            value: 0,
            result,
            fault: None,
            since: self.core.now,
            slot,
        });
        self.core.issuer(issue.issuer).outstanding += 1;
        match self.core.lane_for(pe, &job, self.core.epoch) {
            Some(lane) => self.launch(pe, job, op, lane),
            None => self.core.defer(pe, op, job, issue),
        }
        Ok(op)
    }

    /// A small put on the only lane: no completion, no operation; `dirty` until a flush.
    #[inline]
    fn try_quick_put(&mut self, pe: Pe, job: &Job, marks: bool) -> bool {
        let Job::Put { dest, source: Source::Stable(ptr) | Source::Copied(ptr), len } = *job else { return false };
        let core = &mut self.core;
        let (Some(caps), Some(peer)) = (core.caps.first(), core.peers.get(pe as usize)) else { return false };
        let lanes = core.caps.len();
        let Some(c) = core.connections.get_mut(pe as usize * lanes) else { return false };
        let ordered = caps.order.write_after_write && caps.order.send_after_write;
        let in_epoch = peer.deferred.is_empty()
            && (c.unacked.is_empty() || (peer.epoch == core.epoch && peer.pinned.is_none()));
        if peer.lanes != 1 || !ordered || len as usize > caps.inject || !in_epoch {
            return false;
        }
        if marks && core.lone_puts.expects_quiet() {
            return false;
        }
        let Some((remote, covered)) = core.regions.remote(pe, 0, dest) else { return false };
        if covered < len || !core.backlog[0].is_empty() {
            return false;
        }
        let local = LocalBuf { ptr: ptr.cast_mut(), len: len as usize, key: LocalKey::default() };
        let options = WriteOptions { id: None, notify: Notify::Transmitted, immediate: None, more: false };
        // SAFETY: the source is valid during this call, which copies it; the remote place comes from the peer's card.
        if unsafe { self.rails[0].write(pe, local, remote, options) }.is_err() {
            return false; // the ordinary way queues it, or reports why not
        }
        core.counters[0].writes += 1;
        core.counters[0].bytes += len;
        if marks && !c.dirty {
            c.dirty = true;
            core.dirty.push((pe, 0));
        }
        true
    }

    /// Writes one byte that nobody's quiet has to wait for: a flag that its reader waits for.
    ///
    /// # Errors
    /// As for [`Endpoint::submit`].
    pub fn put_flag(&mut self, pe: Pe, dest: u64, value: u8, issue: Issue) -> Result<()> {
        let job = Job::Put { dest, source: Source::Copied(&raw const value), len: 1 };
        self.core.validate(pe, &job)?;
        if pe != self.core.me && self.try_quick_put(pe, &job, false) {
            return Ok(());
        }
        // SAFETY: the byte is copied during the call.
        unsafe { self.submit(pe, job, issue) }.map(drop)
    }

    fn check_native(&self, ty: AmoType, op: AmoOp, fetch: Fetch) -> Result<()> {
        match self.rails.iter().find(|r| !r.supports_amo(ty, op, fetch != Fetch::No)) {
            None => Ok(()),
            Some(rail) => Err(Error::Unsupported {
                what: format!("{op:?} on {ty:?} as a native atomic"),
                by: rail.caps().provider.clone(),
                remedy: "set SYMRAIL_AMO_PATH=agent on all PEs".into(),
            }),
        }
    }

    /// Posts everything that an operation needs on a lane (or, striped, on all).
    pub(super) fn launch(&mut self, pe: Pe, job: Job, op: OpHandle, lane: usize) {
        match job {
            Job::Put { dest, source, len } => self.launch_data(pe, op, lane, dest, local(source).ptr, len, true),
            Job::Get { source, dest, len } => self.launch_data(pe, op, lane, source, dest, len, false),
            Job::PutSignal { dest, source, len, signal } => {
                self.launch_put_signal(pe, op, lane, (dest, source, len), signal);
            }
            Job::Amo { offset, ty, op: amo, operand, compare, fetch } if self.core.policy.native_amo => {
                let fetching = fetch != Fetch::No;
                let nothing = LocalBuf { ptr: std::ptr::null_mut(), len: 8, key: LocalKey::default() };
                let native = NativeAmo { ty, op: amo, operand, compare, result: fetching.then_some(nothing) };
                let Some(slot) = self.core.bounce.alloc(8) else { return self.core.fail_full(op) };
                let ptr = self.core.bounce.ptr(slot).as_ptr();
                self.core.expect(op, 1);
                let work = Work::Amo { offset, amo: native };
                self.post(WorkRequest {
                    work,
                    dest: pe,
                    lane: lane as u8,
                    more: false,
                    op,
                    ptr,
                    len: 8,
                    slot: Some(slot),
                    via: None,
                });
            }
            Job::Amo { offset, ty, op: amo, operand, compare, fetch } => {
                let fetch = fetch != Fetch::No;
                let request = self.core.request(RequestKind::Amo, amo, ty, fetch, (offset, operand, compare), op);
                self.launch_message(pe, lane, op, request, None);
            }
        }
    }

    fn launch_put_signal(&mut self, pe: Pe, op: OpHandle, lane: usize, data: (u64, Source, u64), signal: Signal) {
        let (dest, source, len) = data;
        let source = local(source);
        let fits = (len as usize).saturating_add(Request::SIZE) <= SIGNAL_MESSAGE_MAX.min(self.core.bounce.largest());
        if fits {
            let words = (dest, signal.value, signal.offset);
            let request = self.core.request(RequestKind::PutSignal, signal.op, AmoType::U64, false, words, op);
            return self.launch_message(pe, lane, op, request, Some((source.ptr, len as usize)));
        }
        let striped = self.core.is_striped(pe, len);
        if !striped && self.core.caps[lane].order.send_after_write {
            // The lane keeps the message behind the data. The count goes up first: completions may come in between.
            self.core.expect(op, 1);
            self.launch_data(pe, op, lane, dest, source.ptr, len, true);
            self.core.unexpect(op, 1);
            self.launch_signal(pe, lane, op, signal);
        } else {
            if let Some(o) = self.core.ops.get_mut(op) {
                o.followup = Some(signal);
            }
            self.launch_data(pe, op, lane, dest, source.ptr, len, true);
        }
    }

    fn launch_signal(&mut self, pe: Pe, lane: usize, op: OpHandle, signal: Signal) {
        let words = (signal.offset, signal.value, 0);
        let request = self.core.request(RequestKind::Amo, signal.op, AmoType::U64, false, words, op);
        self.launch_message(pe, lane, op, request, None);
    }

    /// Sends the signal of an operation whose data has been delivered.
    pub(super) fn launch_followup(&mut self, op: OpHandle) {
        let Some(o) = self.core.ops.get_mut(op) else { return };
        let (pe, Some(signal)) = (o.pe, o.followup.take()) else { return };
        let lane = self.core.pick_lane(pe);
        self.launch_signal(pe, lane, op, signal);
    }

    /// Sends a request whose acknowledgement means that earlier writes on the lane are visible.
    pub(super) fn launch_flush(&mut self, pe: Pe, lane: usize, issue: Issue) {
        let op = self.core.ops.insert(Op {
            operation: Operation::Quiet,
            pe,
            bytes: 0,
            issue,
            remaining: 0,
            followup: None,
            value: 0,
            result: None,
            fault: None,
            since: self.core.now,
            slot: None,
        });
        self.core.issuer(issue.issuer).outstanding += 1;
        if let Some(c) = self.core.connection(pe, lane) {
            c.dirty = false;
        }
        let request = self.core.request(RequestKind::Flush, AmoOp::Fetch, AmoType::U64, false, (0, 0, 0), op);
        self.launch_message(pe, lane, op, request, None);
    }

    /// Asks a peer's target agent for a sign of life.
    ///
    /// # Errors
    /// [`Error::NoSuchPe`], [`Error::Full`].
    pub fn probe(&mut self, pe: Pe, issue: Issue) -> Result<()> {
        if pe >= self.core.n_pes {
            return Err(Error::NoSuchPe { pe: pe.into(), last: self.core.n_pes - 1 });
        }
        if !self.ready() {
            return Err(Error::Full { operation: Operation::Quiet, pe });
        }
        // A flush on lane 0 covers earlier small writes there, so the lane is clean behind it.
        self.core.dirty.retain(|&d| d != (pe, 0));
        self.launch_flush(pe, 0, issue);
        Ok(())
    }

    /// Launches what waited for earlier operations, as far as it may go now.
    pub(super) fn launch_deferred(&mut self) {
        let mut blocked = std::mem::take(&mut self.core.blocked);
        blocked.retain(|&pe| {
            while let Some(&(op, job, _, epoch)) = self.core.peers.get(pe as usize).and_then(|p| p.deferred.front()) {
                if !self.core.bounce.plentiful() {
                    return true;
                }
                // An operation that timed out meanwhile is not started any more.
                if self.core.ops.get(op).is_some() {
                    let Some(lane) = self.core.order_behind(pe, &job, epoch) else { return true };
                    self.core.peers[pe as usize].deferred.pop_front();
                    self.launch(pe, job, op, lane);
                } else {
                    self.core.peers[pe as usize].deferred.pop_front();
                }
            }
            false
        });
        self.core.blocked.append(&mut blocked);
    }

    /// Posts the work requests of a put or get.
    #[allow(clippy::too_many_arguments)] // one call per kind of operation; a struct would be built to be taken apart
    fn launch_data(&mut self, pe: Pe, op: OpHandle, lane: usize, offset: u64, ptr: *mut u8, len: u64, put: bool) {
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
                let work = if put { Work::Write { offset: at } } else { Work::Read { offset: at } };
                let len = piece as usize;
                self.post(WorkRequest {
                    work,
                    dest: pe,
                    lane: lane as u8,
                    more,
                    op,
                    ptr: from,
                    len,
                    slot: None,
                    via: None,
                });
                done += piece;
                if done >= length {
                    break;
                }
            }
        }
        self.core.release(op);
    }

    /// Sends a request, with its payload if it has one; the operation waits for its acknowledgement.
    fn launch_message(
        &mut self,
        pe: Pe,
        lane: usize,
        op: OpHandle,
        mut request: Request,
        payload: Option<(*mut u8, usize)>,
    ) {
        let (ptr, len) = payload.unwrap_or((std::ptr::null_mut(), 0));
        let total = Request::SIZE + len;
        self.core.expect(op, 1);
        let inject = self.core.caps[lane].inject;
        let backlogged = !self.core.backlog[lane].is_empty();
        let Some(c) = self.core.connection(pe, lane) else { return };
        c.sent = c.sent.wrapping_add(1);
        c.unacked.push_back(op);
        request.sequence = c.sent;
        request.payload = len as u32;
        let head = request.encode();
        if total <= inject.min(SMALL) && !backlogged {
            let mut bytes = [0u8; SMALL];
            bytes[..Request::SIZE].copy_from_slice(&head);
            if len > 0 {
                // SAFETY: `total` fits, and the source is valid until the operation is complete.
                unsafe { bytes.as_mut_ptr().add(Request::SIZE).copy_from_nonoverlapping(ptr, len) };
            }
            let local = LocalBuf { ptr: bytes.as_mut_ptr(), len: total, key: LocalKey::default() };
            // SAFETY: without an id the bytes are copied before the call returns.
            match unsafe { self.rails[lane].send(pe, local, None) } {
                Ok(()) => {
                    self.core.counters[lane].messages += 1;
                    self.core.counters[lane].bytes += total as u64;
                    return;
                }
                Err(PostError::Again) => {}
                Err(PostError::Failed(fault)) => return self.core.fail_request(op, lane, fault),
            }
        }
        let Some(slot) = self.core.bounce.alloc(total) else { return self.core.fail_full(op) };
        let to = self.core.bounce.ptr(slot).as_ptr();
        // SAFETY: the slot has room for `total` bytes; the source is valid until the operation is complete.
        unsafe {
            to.copy_from_nonoverlapping(head.as_ptr(), Request::SIZE);
            if len > 0 {
                to.add(Request::SIZE).copy_from_nonoverlapping(ptr, len);
            }
        }
        self.core.expect(op, 1);
        let (work, lane) = (Work::Send, lane as u8);
        self.post(WorkRequest {
            work,
            dest: pe,
            lane,
            more: false,
            op,
            ptr: to,
            len: total,
            slot: Some(slot),
            via: None,
        });
    }

    /// Sends a target agent's answer to the endpoint that asked: `to_host` for a host endpoint.
    /// Returns `false` when there is no room; try again after polling.
    pub fn reply(&mut self, pe: Pe, to_host: bool, lane: usize, bytes: &[u8]) -> bool {
        let dest = if to_host { self.core.n_pes + pe } else { pe };
        let Some(caps) = self.core.caps.get(lane) else { return true };
        if bytes.len() <= caps.inject && self.core.backlog[lane].is_empty() {
            let local = LocalBuf { ptr: bytes.as_ptr().cast_mut(), len: bytes.len(), key: LocalKey::default() };
            // SAFETY: without an id the bytes are copied before the call returns.
            if unsafe { self.rails[lane].send(dest, local, None) }.is_ok() {
                self.core.counters[lane].messages += 1;
                return true;
            }
        }
        let Some(slot) = self.core.bounce.alloc(bytes.len()) else { return false };
        let ptr = self.core.bounce.ptr(slot).as_ptr();
        // SAFETY: the slot has room, and is not inside of `bytes`.
        unsafe { ptr.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        let (work, lane, len) = (Work::Send, lane as u8, bytes.len());
        self.post(WorkRequest { work, dest, lane, more: false, op: 0, ptr, len, slot: Some(slot), via: None });
        true
    }
}

fn local(source: Source) -> Local {
    let (Source::Stable(ptr) | Source::Copied(ptr)) = source;
    Local { ptr: ptr.cast_mut() }
}

impl Core {
    fn validate(&self, pe: Pe, job: &Job) -> Result<()> {
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
        }
    }

    /// Does an operation on this PE's own memory.
    ///
    /// # Safety
    /// As for `submit`; the ranges were checked.
    unsafe fn apply_here(&mut self, job: &Job, issue: Issue) {
        let mut value = 0;
        match *job {
            Job::Put { dest, source, len } => {
                if let Some(to) = self.regions.local(dest, len) {
                    // SAFETY: both ranges are valid; `copy` allows them to overlap.
                    unsafe { to.copy_from(local(source).ptr, len as usize) };
                }
            }
            Job::Get { source, dest, len } => {
                if let Some(from) = self.regions.local(source, len) {
                    // SAFETY: as above.
                    unsafe { dest.copy_from(from, len as usize) };
                }
            }
            Job::PutSignal { dest, source, len, signal } => {
                if let (Some(to), Some(word)) = (self.regions.local(dest, len), self.regions.local(signal.offset, 8)) {
                    // SAFETY: as above; the signal word was checked to be aligned.
                    unsafe {
                        to.copy_from(local(source).ptr, len as usize);
                        fence(Ordering::Release);
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
        }
        if let Some(tag) = issue.tag {
            self.finished.push(Finished { issuer: issue.issuer, tag, result: Ok(value) });
        }
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

    fn request(
        &self,
        kind: RequestKind,
        op: AmoOp,
        ty: AmoType,
        fetch: bool,
        words: (u64, u64, u64),
        id: OpHandle,
    ) -> Request {
        let (offset, operand, second) = words;
        let from_host = self.role == super::Role::Host;
        Request {
            kind,
            op,
            ty,
            from_host,
            fetch,
            source: self.me,
            sequence: 0,
            payload: 0,
            offset,
            operand,
            second,
            id,
        }
    }

    /// How many bytes from `offset` and `ptr` one work request can move.
    fn piece(&self, pe: Pe, lane: usize, offset: u64, ptr: *const u8, len: u64) -> u64 {
        let caps = &self.caps[lane];
        let mut piece = len.min(caps.max_rma as u64);
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

    fn is_striped(&self, pe: Pe, len: u64) -> bool {
        let peer = &self.peers[pe as usize];
        self.policy.rails == RailPolicy::Stripe
            && len >= self.policy.stripe_threshold
            && peer.lanes > 1
            && peer.pinned.is_none()
    }

    pub(super) fn pick_lane(&mut self, pe: Pe) -> usize {
        let lanes = usize::from(self.peers[pe as usize].lanes.max(1));
        self.next_lane = self.next_lane.wrapping_add(1);
        self.next_lane % lanes
    }

    /// The lane for a new operation, or `None` if it has to wait for earlier ones.
    fn lane_for(&mut self, pe: Pe, job: &Job, epoch: u32) -> Option<usize> {
        if matches!(job, Job::Get { .. }) {
            return Some(self.pick_lane(pe)); // a fence does not order gets
        }
        if !self.peers[pe as usize].deferred.is_empty() {
            return None;
        }
        self.order_behind(pe, job, epoch)
    }

    /// The lane on which `job` stays behind what the fence before `epoch` ordered, if it can go now.
    fn order_behind(&mut self, pe: Pe, job: &Job, epoch: u32) -> Option<usize> {
        let (lanes, at) = (self.caps.len(), pe as usize);
        let connections = at * lanes..at * lanes + lanes;
        if self.peers[at].epoch != epoch {
            let mut busy = connections.clone().filter(|&c| !self.connections[c].idle());
            let (first, second) = (busy.next(), busy.next());
            if second.is_some() {
                return None;
            }
            let peer = &mut self.peers[at];
            peer.pinned = first.map(|c| (c - connections.start) as u8);
            peer.fenced = first.map_or(0, |c| self.connections[c].sent);
            peer.epoch = epoch;
        }
        let Some(lane) = self.peers[at].pinned else { return Some(self.pick_lane(pe)) };
        let c: &Connection = &self.connections[connections.start + usize::from(lane)];
        if c.idle() {
            self.peers[at].pinned = None;
            return Some(self.pick_lane(pe));
        }
        let fits = |len: u64| (len as usize).saturating_add(Request::SIZE) <= SIGNAL_MESSAGE_MAX;
        let as_message = match job {
            Job::Amo { .. } => !self.policy.native_amo,
            Job::PutSignal { len, .. } => fits(*len),
            _ => false,
        };
        let writes = matches!(job, Job::Put { .. } | Job::PutSignal { .. }) && !as_message;
        let order = self.caps[usize::from(lane)].order;
        c.keeps_behind(order, self.peers[at].fenced, as_message, writes).then_some(lane.into())
    }

    fn defer(&mut self, pe: Pe, op: OpHandle, job: Job, issue: Issue) {
        let epoch = self.epoch;
        self.peers[pe as usize].deferred.push_back((op, job, issue, epoch));
        if !self.blocked.contains(&pe) {
            self.blocked.push(pe);
        }
    }

    fn expect(&mut self, op: OpHandle, count: u32) {
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
