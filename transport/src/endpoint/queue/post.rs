//! Handing work requests to rails, now or when they have room.

use super::{Work, WorkRequest};
use crate::endpoint::operations::key;
use crate::endpoint::swap_loop::WordAmo;
use crate::endpoint::{Core, Endpoint, completion};
use crate::error::Fault;
use crate::rail::{Dest, LocalBuf, LocalKey, NativeAmo, Notify, Piece, PostError, WriteOptions};

/// Destinations tried in one pass over a backlog. When the queue is full, each costs a useless post.
const MOST_REFUSED: usize = 4;

impl Endpoint {
    /// Posts a work request, or keeps it until the rail has room.
    #[inline(always)]
    pub(in crate::endpoint) fn post(&mut self, mut request: WorkRequest) {
        request.since = self.core.clock.now();
        if self.core.lanes.measures() || request.segmented.is_some() {
            request.posted = self.core.clock.micros();
        }
        if !matches!(request.work, Work::Send | Work::Probe { .. })
            && let Some(c) = self.core.lanes.get_mut(request.dest, usize::from(request.lane))
        {
            c.bytes += request.len as u64;
            if !matches!(request.work, Work::Read { .. }) {
                c.writes += 1;
                request.generation = c.failover.as_ref().and_then(|f| f.generation());
            }
            self.core.lanes.begin_bytes(request.lane.into(), request.len as u64);
        }
        let id = self.core.queue.enter(&mut request);
        if request.coalesce { self.post_or_wait(id, &request) } else { self.post_or_keep(id, &request) }
    }

    /// Posts a work request of the table on its lane, now or as soon as there is room.
    #[inline(always)]
    pub(in crate::endpoint) fn post_or_keep(&mut self, id: u64, request: &WorkRequest) {
        let (dest, lane) = (request.dest, usize::from(request.lane));
        // An answer may use the lane that delivered the request, even if that lane is down at this end.
        if self.core.lanes.is_down(dest, lane) && !matches!(request.work, Work::Send) {
            return self.core.mark_lost(id);
        }
        if !self.core.queue.backlog[lane].holds(dest) {
            match self.try_post(id, request) {
                Ok(()) => return,
                Err(PostError::Failed(fault)) => return self.fail(lane, id, fault),
                Err(PostError::Again) => {}
            }
        }
        let held = self.core.queue.backlog[lane].is_held(dest);
        self.core.queue.backlog[lane].push(dest, id);
        if held {
            self.post_backlog(lane);
        } else {
            self.core.observer.delayed(lane);
        }
    }

    /// Posts work requests that waited for room on `lane`; returns their number.
    pub(in crate::endpoint) fn post_backlog(&mut self, lane: usize) -> usize {
        self.core.queue.backlog[lane].hold_no_longer();
        let (mut posted, mut refused) = (0, 0);
        while refused < self.core.queue.backlog[lane].destinations().min(MOST_REFUSED)
            && let Some(id) = self.core.queue.backlog[lane].first()
        {
            let (count, result) = match self.core.queue.get(id).copied() {
                Some(request) if !self.core.is_void(&request) => {
                    self.core.void_signals(&request);
                    self.post_first(lane, id, &request)
                }
                _ => {
                    self.core.abandon(id);
                    (1, Ok(()))
                }
            };
            if let Err(PostError::Again) = result {
                self.core.queue.backlog[lane].pass();
                refused += 1;
                continue;
            }
            for _ in 0..count {
                let Some(id) = self.core.queue.backlog[lane].first() else { break };
                self.core.queue.backlog[lane].take_first();
                if let Err(PostError::Failed(fault)) = &result {
                    self.fail(lane, id, fault.clone());
                }
            }
            posted += count;
        }
        posted
    }

    #[cold]
    fn fail(&mut self, lane: usize, id: u64, fault: Fault) {
        let mut nobody = completion::NoAgent;
        completion::Sink { core: &mut self.core, lane, agent: &mut nobody }.refused(id, fault);
    }

    #[inline(always)]
    pub(in crate::endpoint) fn try_post(&mut self, id: u64, request: &WorkRequest) -> Result<(), PostError> {
        let core = &mut self.core;
        let lane = usize::from(request.lane);
        let windowed = core.enter_window(request)?;
        let local = core.local_buffer(id, request)?;
        let (dest, more) = (request.dest, request.more);
        let theirs = core.lanes.theirs(dest, lane);
        let rail = &mut self.rails[lane];
        // SAFETY (all posts below): the submitter of the operation keeps its buffers until it is complete, slots of
        // the arena are freed with their work request, and remote places come from the peers' own connection infos.
        match request.work {
            Work::Write { offset } | Work::TransmittedWrite { offset, .. } => {
                let remote = core.regions.remote(dest, theirs, offset).ok_or(PostError::Again)?.0;
                let immediate = match request.work {
                    Work::TransmittedWrite { immediate, .. } => immediate,
                    _ => None,
                };
                let notify = core.notify(dest, lane, request.work);
                let options = WriteOptions { id: Some(id), notify, immediate, more };
                // SAFETY: see above.
                unsafe { rail.write(dest, Piece { local, remote }, options) }?;
            }
            Work::Read { offset } => {
                let remote = core.regions.remote(dest, theirs, offset).ok_or(PostError::Again)?.0;
                // SAFETY: see above.
                unsafe { rail.read(dest, Piece { local, remote }, id, more) }?;
            }
            Work::Send | Work::Probe { .. } => {
                // SAFETY: see above.
                unsafe { rail.send(dest, local, Some(id)) }?;
            }
            Work::Amo { amo: WordAmo { offset, ty, op, operand, compare }, fetching } => {
                let remote = core.regions.remote(dest, theirs, offset).ok_or(PostError::Again)?.0;
                let amo = NativeAmo { ty, op, operand, compare, result: fetching.then_some(local) };
                // SAFETY: see above.
                unsafe { rail.amo(dest, remote, amo, id) }?;
            }
        }
        core.note_posted(id, request, windowed);
        Ok(())
    }
}

impl Core {
    /// Whether a work request belongs to an operation that has failed meanwhile, whose buffers have returned to their
    /// owner. Messages are sent nevertheless, since they are numbered and in our own buffers.
    pub(in crate::endpoint) fn is_void(&self, request: &WorkRequest) -> bool {
        match request.work {
            Work::Send => false,
            // The target must not count a failed write.
            Work::TransmittedWrite { immediate: Some(_), .. } => self.ops.has_failed(request.op),
            _ => request.op != 0 && self.ops.is_over(request.op),
        }
    }

    /// Voids the signals in a waiting message whose data has failed meanwhile, before the message is sent. For messages
    /// that are kept to be repeated, `failover` does this.
    fn void_signals(&mut self, request: &WorkRequest) {
        let to_agent = matches!(request.work, Work::Send) && request.slot.is_some();
        let lane = usize::from(request.lane);
        if to_agent && self.lanes.get_mut(request.dest, lane).is_some_and(|c| c.failover.is_none()) {
            // SAFETY: the message in the work request's slot, which no rail has taken.
            unsafe { self.void_failed(request.ptr, request.len) };
        }
    }

    /// Whether a work request counts towards the window; `Again` where the window is full. Where work may move to
    /// another lane, no work request counts.
    #[inline]
    pub(in crate::endpoint) fn enter_window(&mut self, request: &WorkRequest) -> Result<bool, PostError> {
        let lane = usize::from(request.lane);
        let window = self.profile.caps(lane).window;
        if window == u64::MAX || !matches!(request.work, Work::Write { .. }) {
            return Ok(false);
        }
        match self.lanes.get_mut(request.dest, lane) {
            Some(c) if c.failover.is_none() => {
                let full = c.under_way > 0 && c.under_way + request.len as u64 > window;
                if full { Err(PostError::Again) } else { Ok(true) }
            }
            _ => Ok(false),
        }
    }

    /// The meaning of a write's completion: always delivery, where the write may have to be repeated.
    pub(in crate::endpoint) fn notify(&self, dest: Dest, lane: usize, work: Work) -> Notify {
        let repeatable = self.lanes.get(dest, lane).is_some_and(|c| c.failover.is_some());
        if matches!(work, Work::TransmittedWrite { .. }) && !repeatable {
            Notify::Transmitted
        } else {
            Notify::Delivered
        }
    }

    /// Records that a lane's rail has accepted a work request.
    #[inline(always)]
    pub(in crate::endpoint) fn note_posted(&mut self, id: u64, request: &WorkRequest, windowed: bool) {
        let (dest, lane) = (request.dest, usize::from(request.lane));
        if windowed {
            self.put_in_window(id);
        }
        self.observer.posted(id, request);
        let now = self.clock.now();
        if self.lanes.failover(dest, lane).is_some_and(|f| f.post(request.len, now)) {
            self.recovery.queue_keepalive(dest, lane);
        }
    }

    fn put_in_window(&mut self, id: u64) {
        let Some(request) = self.queue.table.get_mut(key(id)) else { return };
        request.in_window = true;
        let (dest, lane, len) = (request.dest, usize::from(request.lane), request.len as u64);
        if let Some(c) = self.lanes.get_mut(dest, lane) {
            c.under_way += len;
        }
    }

    /// The memory that the rail may touch for a work request: the user's own, or a registered copy of it.
    #[inline(always)]
    pub(in crate::endpoint) fn local_buffer(&mut self, id: u64, request: &WorkRequest) -> Result<LocalBuf, PostError> {
        let WorkRequest { lane, slot, ptr, len, .. } = *request;
        match slot {
            Some(_) => Ok(LocalBuf { ptr, len, key: self.bounce.key(lane.into()) }),
            None => self.users_buffer(id),
        }
    }

    fn users_buffer(&mut self, id: u64) -> Result<LocalBuf, PostError> {
        let request = self.queue.table.get_mut(key(id)).ok_or(PostError::Again)?;
        let (lane, ptr, len) = (usize::from(request.lane), request.ptr, request.len);
        if !self.profile.caps(lane).local_registration || len == 0 {
            return Ok(LocalBuf { ptr, len, key: LocalKey::default() });
        }
        if let Some((key, covered)) = self.regions.local_key(lane, ptr)
            && covered >= len as u64
        {
            return Ok(LocalBuf { ptr, len, key });
        }
        // The copy is kept in the work request, so that a repeated post does not copy again.
        let via = match request.via {
            Some(slot) => slot,
            None => {
                let slot = self.bounce.alloc(len).ok_or(PostError::Again)?;
                request.via = Some(slot);
                if let Work::Write { .. } | Work::TransmittedWrite { .. } | Work::Send = request.work {
                    let to = self.bounce.ptr(slot);
                    // SAFETY: the slot has room for `len` bytes (`alloc`), the source is valid until the operation is
                    // complete, and the arena does not overlap user memory.
                    unsafe { to.as_ptr().copy_from_nonoverlapping(ptr, len) };
                }
                slot
            }
        };
        Ok(LocalBuf { ptr: self.bounce.ptr(via).as_ptr(), len, key: self.bounce.key(lane) })
    }
}
