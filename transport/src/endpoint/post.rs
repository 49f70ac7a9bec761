//! Work requests: kept until the rail has taken and completed them.

use super::emulate::WordAmo;
use super::job::OpHandle;
use super::{Core, Endpoint};
use crate::bounce::Slot;
use crate::rail::{Dest, LocalBuf, NativeAmo, Notify, PostError, WriteOptions};

/// Destinations that are tried in one look at a backlog. When the queue is full, each costs a post in vain.
const MOST_REFUSED: usize = 4;

/// What a work request does.
#[derive(Debug, Clone, Copy)]
pub(super) enum Work {
    /// Write to a symmetric offset; complete when visible at the target.
    Write { offset: u64 },
    /// Write to a symmetric offset; complete when it has left, or, where it may have to be repeated, when it is visible.
    /// The immediate is the target's to have with it.
    Flag { offset: u64, immediate: Option<u64> },
    /// Read from a symmetric offset.
    Read { offset: u64 },
    /// Send a message.
    Send,
    /// Send a sign of life. When it is there, it shows that there is another way than lane `instead_of`, whose port went down, for
    /// the `outage`th time.
    Probe { instead_of: u8, outage: u32 },
    /// Let the provider do an AMO.
    Amo { amo: WordAmo, fetching: bool },
}

/// A work request.
#[derive(Debug, Clone, Copy)]
pub(super) struct WorkRequest {
    pub work: Work,
    pub dest: Dest,
    pub lane: u8,
    /// The lane that it was posted on first, where fences look for it.
    pub home: u8,
    /// Where it stands among everything that was posted.
    pub serial: u64,
    /// The turn of the home lane's stream in which messages of it stay behind this on its way.
    pub turn: Option<u32>,
    /// When it was to be posted, in seconds.
    pub since: u32,
    /// More follow at once on this lane.
    pub more: bool,
    /// It may wait for others that travel with it.
    pub may_wait: bool,
    /// Its bytes are among those under way that the window is for.
    pub in_window: bool,
    /// The one behind it of those that were posted together with it.
    pub next: Option<u64>,
    /// The operation it belongs to; 0 for replies.
    pub op: OpHandle,
    pub ptr: *mut u8,
    pub len: usize,
    /// The bounce slot that `ptr` points into, freed with the work request.
    pub slot: Option<Slot>,
    /// `ptr` is user memory that a rail must not touch: its bytes travel through this slot.
    pub via: Option<Slot>,
}

impl WorkRequest {
    /// Of `len` bytes at `ptr`, which are in `slot` if they are not user memory.
    pub fn new(
        work: Work,
        dest: Dest,
        lane: usize,
        op: OpHandle,
        (ptr, len): (*mut u8, usize),
        slot: Option<Slot>,
    ) -> Self {
        WorkRequest {
            work,
            dest,
            lane: lane as u8,
            home: lane as u8,
            serial: 0,
            turn: None,
            since: 0,
            more: false,
            may_wait: false,
            in_window: false,
            next: None,
            op,
            ptr,
            len,
            slot,
            via: None,
        }
    }
}

impl Endpoint {
    /// Posts a work request, or keeps it until the rail has room.
    #[inline(always)]
    pub(super) fn post(&mut self, mut request: WorkRequest) {
        (request.serial, request.since) = (self.core.next_serial(), self.core.now);
        if !matches!(request.work, Work::Send | Work::Probe { .. })
            && let Some(c) = self.core.connection(request.dest, usize::from(request.lane))
        {
            c.bytes += request.len as u64;
            if !matches!(request.work, Work::Read { .. }) {
                c.writes += 1;
                request.turn = c.failover.as_ref().and_then(|f| f.turn());
            }
        }
        let id = self.core.work.insert(request);
        if request.may_wait { self.post_or_wait(id, &request) } else { self.post_or_keep(id, &request) }
    }

    /// Posts a work request of the table on its lane, now or as soon as there is room.
    #[inline(always)]
    pub(super) fn post_or_keep(&mut self, id: u64, request: &WorkRequest) {
        let (dest, lane) = (request.dest, usize::from(request.lane));
        // An answer may go where the question came from, whatever this end thinks of that lane.
        if self.core.is_down(dest, lane) && !matches!(request.work, Work::Send) {
            return self.core.strand(id);
        }
        if !self.core.backlog[lane].holds(dest) {
            match self.try_post(id, request) {
                Ok(()) => return,
                Err(PostError::Failed(fault)) => return self.fail(lane, id, fault),
                Err(PostError::Again) => {}
            }
        }
        let held = self.core.backlog[lane].is_held(dest);
        self.core.backlog[lane].push(dest, id);
        if held {
            self.post_backlog(lane);
        } else {
            self.core.counters[lane].delayed += 1;
        }
    }

    /// Posts what waited for room on `lane`; returns how many.
    pub(super) fn post_backlog(&mut self, lane: usize) -> usize {
        self.core.backlog[lane].hold_no_longer();
        let (mut posted, mut refused) = (0, 0);
        while refused < self.core.backlog[lane].destinations().min(MOST_REFUSED)
            && let Some(id) = self.core.backlog[lane].first()
        {
            let (count, result) = match self.core.work.get(id).copied() {
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
                self.core.backlog[lane].pass();
                refused += 1;
                continue;
            }
            for _ in 0..count {
                let Some(id) = self.core.backlog[lane].first() else { break };
                self.core.backlog[lane].take_first();
                if let Err(PostError::Failed(fault)) = &result {
                    self.fail(lane, id, fault.clone());
                }
            }
            posted += count;
        }
        posted
    }

    #[cold]
    fn fail(&mut self, lane: usize, id: u64, fault: crate::error::Fault) {
        let mut nobody = super::completion::NoAgent;
        super::completion::Sink { core: &mut self.core, lane, agent: &mut nobody }.refused(id, fault);
    }

    #[inline(always)]
    pub(super) fn try_post(&mut self, id: u64, request: &WorkRequest) -> Result<(), PostError> {
        let core = &mut self.core;
        let lane = usize::from(request.lane);
        let windowed = core.enter_window(request)?;
        let local = core.local_buffer(id, request)?;
        let (dest, more) = (request.dest, request.more);
        let rail = &mut self.rails[lane];
        // SAFETY (all posts below): whoever submitted the operation keeps its buffers until it is complete, slots of the
        // arena are freed with their work request, and remote places come from the peers' own cards.
        match request.work {
            Work::Write { offset } | Work::Flag { offset, .. } => {
                let remote = core.regions.remote(dest, lane, offset).ok_or(PostError::Again)?.0;
                let immediate = match request.work {
                    Work::Flag { immediate, .. } => immediate,
                    _ => None,
                };
                let notify = core.notify(dest, lane, request.work);
                let options = WriteOptions { id: Some(id), notify, immediate, more };
                // SAFETY: see above.
                unsafe { rail.write(dest, local, remote, options) }?;
            }
            Work::Read { offset } => {
                let remote = core.regions.remote(dest, lane, offset).ok_or(PostError::Again)?.0;
                // SAFETY: see above.
                unsafe { rail.read(dest, local, remote, id, more) }?;
            }
            Work::Send | Work::Probe { .. } => {
                // SAFETY: see above.
                unsafe { rail.send(dest, local, Some(id)) }?;
            }
            Work::Amo { amo: WordAmo { offset, ty, op, operand, compare }, fetching } => {
                let remote = core.regions.remote(dest, lane, offset).ok_or(PostError::Again)?.0;
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
    /// Whether a work request is of an operation that has failed meanwhile, whose buffers are no longer ours. Messages are sent all
    /// the same, since they are numbered and in buffers of our own.
    pub(super) fn is_void(&self, request: &WorkRequest) -> bool {
        match request.work {
            Work::Send => false,
            // What has failed must not be counted.
            Work::Flag { immediate: Some(_), .. } => self.has_failed(request.op),
            _ => request.op != 0 && self.ops.get(request.op).is_none(),
        }
    }

    /// Before a message goes that has waited: the signals in it whose data has failed meanwhile must not come. Where messages are kept to be
    /// repeated, `failover` sees to it.
    fn void_signals(&mut self, request: &WorkRequest) {
        let to_agent = matches!(request.work, Work::Send) && request.slot.is_some();
        let lane = usize::from(request.lane);
        if to_agent && self.connection(request.dest, lane).is_some_and(|c| c.failover.is_none()) {
            // SAFETY: the message in the work request's slot, which no rail has taken.
            unsafe { self.void_failed(request.ptr, request.len) };
        }
    }

    /// Whether a work request is one for the window; `Again` where so much is that it should wait. Where work may move to another lane,
    /// none is.
    #[inline]
    pub(super) fn enter_window(&mut self, request: &WorkRequest) -> Result<bool, PostError> {
        let lane = usize::from(request.lane);
        let window = self.caps[lane].window;
        if window == u64::MAX || !matches!(request.work, Work::Write { .. }) {
            return Ok(false);
        }
        match self.connection(request.dest, lane) {
            Some(c) if c.failover.is_none() => {
                let full = c.under_way > 0 && c.under_way + request.len as u64 > window;
                if full { Err(PostError::Again) } else { Ok(true) }
            }
            _ => Ok(false),
        }
    }

    /// What a write's completion is to tell: where it may have to be repeated always that it was delivered.
    pub(super) fn notify(&self, dest: Dest, lane: usize, work: Work) -> Notify {
        let repeatable = self.connections[dest as usize * self.caps.len() + lane].failover.is_some();
        if matches!(work, Work::Flag { .. }) && !repeatable { Notify::Transmitted } else { Notify::Delivered }
    }

    /// Writes down that a lane's rail has taken a work request.
    #[inline(always)]
    pub(super) fn note_posted(&mut self, id: u64, request: &WorkRequest, windowed: bool) {
        let (dest, lane) = (request.dest, usize::from(request.lane));
        if windowed {
            self.put_in_window(id);
        }
        let counters = &mut self.counters[lane];
        counters.bytes += request.len as u64;
        match request.work {
            Work::Write { .. } | Work::Flag { .. } => counters.writes += 1,
            Work::Read { .. } => counters.reads += 1,
            Work::Send | Work::Probe { .. } | Work::Amo { .. } => counters.messages += 1,
        }
        if self.failover(dest, lane).is_some_and(|f| f.post(request.len)) {
            self.to_greet.push((dest, lane));
        }
        self.samplers[lane].posted(id);
        if let Some(recorder) = &mut self.recorder {
            recorder.posted(id);
        }
    }

    fn put_in_window(&mut self, id: u64) {
        let Some(request) = self.work.get_mut(id) else { return };
        request.in_window = true;
        let (dest, lane, len) = (request.dest, usize::from(request.lane), request.len as u64);
        if let Some(c) = self.connection(dest, lane) {
            c.under_way += len;
        }
    }

    /// The memory that the rail may touch for a work request: the user's own, or a registered copy of it.
    #[inline]
    pub(super) fn local_buffer(&mut self, id: u64, request: &WorkRequest) -> Result<LocalBuf, PostError> {
        match request.slot {
            Some(_) => {
                let key = self.bounce.key(request.lane.into());
                Ok(LocalBuf { ptr: request.ptr, len: request.len, key })
            }
            None => self.users_buffer(id),
        }
    }

    fn users_buffer(&mut self, id: u64) -> Result<LocalBuf, PostError> {
        let Some(&request) = self.work.get(id) else { return Err(PostError::Again) };
        let lane = usize::from(request.lane);
        let len = request.len;
        if !self.caps[lane].local_registration || len == 0 {
            return Ok(LocalBuf { ptr: request.ptr, len, key: crate::rail::LocalKey::default() });
        }
        if let Some((key, covered)) = self.regions.local_key(lane, request.ptr)
            && covered >= len as u64
        {
            return Ok(LocalBuf { ptr: request.ptr, len, key });
        }
        // Kept in the work request, so that a post that has to be repeated does not copy again.
        let via = match request.via {
            Some(slot) => slot,
            None => {
                let slot = self.bounce.alloc(len).ok_or(PostError::Again)?;
                if let Work::Write { .. } | Work::Flag { .. } | Work::Send = request.work {
                    let to = self.bounce.ptr(slot);
                    // SAFETY: the slot has room for `len` bytes (`alloc`), the source is valid until the operation is
                    // complete, and the arena does not overlap user memory.
                    unsafe { to.as_ptr().copy_from_nonoverlapping(request.ptr, len) };
                }
                if let Some(r) = self.work.get_mut(id) {
                    r.via = Some(slot);
                }
                slot
            }
        };
        Ok(LocalBuf { ptr: self.bounce.ptr(via).as_ptr(), len, key: self.bounce.key(lane) })
    }

    /// The lane to a peer's proxy endpoint; `None` for its host endpoint, which is never a target.
    pub(super) fn connection(&mut self, dest: Dest, lane: usize) -> Option<&mut super::connection::Connection> {
        if dest >= self.n_pes {
            return None;
        }
        let lanes = self.caps.len();
        self.connections.get_mut(dest as usize * lanes + lane)
    }
}
