//! This PE's operations that go through the window.

use std::collections::VecDeque;

use symrail_heap::copy::copy;
use symrail_heap::mover::{Between, Copy, Moved};
use symrail_transport::endpoint::job::{Fetch, Finished, Issue, Issuer, Job};
use symrail_transport::{Error, Pe, Result};

use super::operation::{Part, Piece, Staged, Way, far, keep, message, near, outside_window, way};
use super::window::{EAGER, Pool, piece_bytes};
use super::{Ticket, Tools};

/// Operations that may be under way.
const MAX_OPERATIONS: usize = 1024;
/// Bytes that the CPU copies to the window in one round, so that peers and channels need not wait long.
const COPIED_PER_ROUND: usize = 1 << 20;

/// What is remembered for the order of operations to one PE.
#[derive(Default)]
struct Order {
    /// The fence that the operations under way came after.
    epoch: u32,
    active: u32,
    /// Operations that came after a later one.
    held: VecDeque<usize>,
}

/// Operations of one issuer: how many are under way, and the first that failed.
#[derive(Default)]
struct Account {
    outstanding: u64,
    error: Option<Error>,
}

/// The source's side of staging.
pub(super) struct Source {
    pool: Pool,
    staged: slab::Slab<Staged>,
    pieces: slab::Slab<Piece>,
    orders: Vec<Order>,
    epoch: u32,
    /// Operations to be cut, in order.
    cutting: VecDeque<usize>,
    /// Pieces that the endpoint had no room for.
    unsent: VecDeque<usize>,
    /// Cutting stopped because it had done enough for one round.
    more: bool,
    accounts: Vec<Account>,
    /// Ends to be told.
    pub finished: Vec<Finished>,
    /// Kept for its memory.
    pub ended: Vec<Moved>,
    timeout_s: u64,
    now: u32,
    last_tick: u32,
}

// SAFETY: the pointers inside are buffers of operations under way, whose owners promised (`submit`) to keep them valid
// whichever thread completes the operation.
unsafe impl Send for Source {}

impl Source {
    pub fn new(pool: Pool, n_pes: u32, timeout_s: u64) -> Self {
        Source {
            pool,
            staged: slab::Slab::new(),
            pieces: slab::Slab::new(),
            orders: (0..n_pes).map(|_| Order::default()).collect(),
            epoch: 0,
            cutting: VecDeque::new(),
            unsent: VecDeque::new(),
            more: false,
            accounts: Vec::new(),
            finished: Vec::new(),
            ended: Vec::new(),
            timeout_s,
            now: 0,
            last_tick: 0,
        }
    }

    pub fn fence(&mut self) {
        self.epoch = self.epoch.wrapping_add(1);
    }

    pub fn ready(&self) -> bool {
        self.staged.len() < MAX_OPERATIONS
    }

    pub fn is_quiet(&self, issuer: Issuer) -> bool {
        self.accounts.get(usize::from(issuer)).is_none_or(|a| a.outstanding == 0)
    }

    pub fn take_error(&mut self, issuer: Issuer) -> Option<Error> {
        self.accounts.get_mut(usize::from(issuer)).and_then(|a| a.error.take())
    }

    /// Whether a round would bring something forward.
    pub fn is_busy(&self) -> bool {
        self.more || !self.unsent.is_empty()
    }

    /// See [`Stage::submit`](super::Stage::submit).
    ///
    /// # Safety
    /// As for `Endpoint::submit`.
    pub unsafe fn submit(&mut self, mut tools: Tools<'_>, pe: Pe, job: Job, issue: Issue) -> Result<()> {
        let Some(order) = self.orders.get(pe as usize) else {
            return Err(Error::NoSuchPe { pe: pe.into(), last: self.orders.len() as u32 - 1 });
        };
        let ordered = !matches!(job, Job::Get { .. }); // a fence does not order gets
        let hold = ordered && (!order.held.is_empty() || (order.active > 0 && order.epoch != self.epoch));
        outside_window(&tools, pe, &job)?;
        if let Job::Put { dest: offset, len: 0, .. } | Job::Get { source: offset, len: 0, .. } = job
            && tools.memory.check(job.operation(), pe, offset, 0).is_ok()
        {
            // Nothing to move is done at once.
            self.finished.extend(issue.tag.map(|tag| Finished { issuer: issue.issuer, tag, result: Ok(0) }));
            return Ok(());
        }
        let (near, far) = (near(&tools, pe, &job)?, far(&tools, pe, &job)?);
        if !near && !far && !hold {
            // SAFETY: the caller's promise.
            return unsafe { tools.endpoint.submit(pe, job, issue) }.map(drop);
        }
        if !self.ready() {
            return Err(Error::Full { operation: job.operation(), pe });
        }
        let way = way(&tools, pe, &job, (near, far));
        // SAFETY: the caller's promise; `keep` leaves memory alone that the CPU cannot touch.
        let kept = unsafe { keep(&job, near) }?;
        let staged = Staged {
            pe,
            job,
            issue,
            epoch: self.epoch,
            kept,
            near,
            far,
            way,
            cut: 0,
            all_cut: false,
            pieces: 0,
            signal: None,
            value: 0,
            error: None,
            told: false,
            since: self.now,
        };
        let key = self.staged.insert(staged);
        self.account(issue.issuer).outstanding += 1;
        let epoch = self.epoch;
        let order = &mut self.orders[pe as usize];
        if hold {
            order.held.push_back(key);
            return Ok(());
        }
        if ordered {
            order.epoch = epoch;
            order.active += 1;
        }
        self.cutting.push_back(key);
        self.cut_all(&mut tools);
        Ok(())
    }

    /// Goes on with what waited for room.
    pub fn poll(&mut self, tools: &mut Tools<'_>) {
        for _ in 0..self.unsent.len() {
            let Some(piece) = self.unsent.pop_front() else { break };
            self.send(tools, piece);
        }
        self.cut_all(tools);
    }

    /// Cuts operations into pieces while there are chunks.
    fn cut_all(&mut self, tools: &mut Tools<'_>) {
        self.more = false;
        let mut copied = 0;
        while let Some(&key) = self.cutting.front() {
            if copied >= COPIED_PER_ROUND {
                self.more = true;
                return;
            }
            let Some(by_cpu) = self.cut(tools, key) else { return };
            copied += by_cpu;
            if self.staged.get(key).is_none_or(|s| s.all_cut) {
                self.cutting.retain(|&k| k != key);
            }
        }
    }

    /// Cuts one piece. `None` when there is no chunk for it; else how many bytes the CPU has copied.
    fn cut(&mut self, tools: &mut Tools<'_>, key: usize) -> Option<usize> {
        let Some(s) = self.staged.get_mut(key) else { return Some(0) };
        let len = match s.job {
            _ if s.all_cut => return Some(0),
            Job::Put { len, .. } | Job::Get { len, .. } | Job::PutSignal { len, .. } if s.near || s.far => len,
            _ => 0,
        };
        if len == 0 {
            // An AMO, a signal, or something that only had to wait.
            let stored_near = s.near && matches!(s.job, Job::Amo { .. });
            let chunk = if stored_near { Some(self.pool.take(8)?) } else { None };
            let part = match s.job {
                Job::PutSignal { .. } if s.far => Part::Signal,
                _ => Part::Whole,
            };
            s.all_cut = true;
            s.pieces += 1;
            let piece = self.pieces.insert(Piece { staged: key, part, at: 0, len: 0, chunk, eager: true, last: false });
            self.send(tools, piece);
            return Some(0);
        }
        let (at, is_get) = (s.cut, matches!(s.job, Job::Get { .. }));
        if s.way != Way::Window {
            // Whoever moves it cuts it.
            (s.cut, s.all_cut) = (len, true);
            s.pieces += 1;
            if let Job::PutSignal { signal, .. } = s.job {
                s.signal = Some(signal);
            }
            let (part, len, way, local) = (Part::Data, len as usize, s.way, s.job.local().addr());
            let last = way != Way::Rails;
            let piece = self.pieces.insert(Piece { staged: key, part, at, len, chunk: None, eager: false, last });
            match way {
                Way::Device(there) if is_get => {
                    self.copy_between(tools, piece, Between { to: local, from: there, len });
                }
                Way::Device(there) => self.copy_between(tools, piece, Between { to: there, from: local, len }),
                _ => self.send(tools, piece),
            }
            return Some(0);
        }
        let eager = s.far && !is_get && len <= (EAGER.min(tools.endpoint.copy_limit())) as u64;
        let bytes = if eager { len } else { piece_bytes(len).min(len - at) } as usize;
        let needed = is_get || s.near || !eager;
        let chunk = if needed { Some(self.pool.take(bytes)?) } else { None };
        s.cut += bytes as u64;
        s.all_cut = s.cut == len;
        s.pieces += 1;
        if let Job::PutSignal { signal, .. } = s.job
            && s.all_cut
            && !(s.far && bytes as u64 == len)
        {
            s.signal = Some(signal);
        }
        let (near, local) = (s.near, s.job.local().wrapping_add(at as usize));
        let piece =
            self.pieces.insert(Piece { staged: key, part: Part::Data, at, len: bytes, chunk, eager, last: false });
        let Some(chunk) = chunk.filter(|_| !is_get) else {
            self.send(tools, piece);
            return Some(0);
        };
        let host = self.pool.ptr(chunk);
        if near {
            self.start_copy(tools, piece, Copy { memory: local.addr(), host, len: bytes, to_memory: false });
            return Some(0);
        }
        // SAFETY: the source is valid until the operation is complete; the chunk is the piece's own and as long.
        unsafe { copy(host, local, bytes) };
        self.send(tools, piece);
        Some(bytes)
    }

    fn start_copy(&mut self, tools: &mut Tools<'_>, piece: usize, copy: Copy) {
        // SAFETY: the chunk is the piece's own until the copy ends; the other end was found to be the mover's memory.
        if let Err(why) = unsafe { tools.mover.start(copy, Ticket::Piece(piece).encode()) } {
            self.copy_failed(piece, why);
        }
    }

    fn copy_between(&mut self, tools: &mut Tools<'_>, piece: usize, copy: Between) {
        // SAFETY: one end was found to be the mover's memory and the other a peer's that its device has mapped; both are the operation's own
        // until it is complete.
        if let Err(why) = unsafe { tools.mover.start_between(copy, Ticket::Piece(piece).encode()) } {
            self.copy_failed(piece, why);
        }
    }

    /// Hands a piece to the endpoint, or keeps it until that has room.
    fn send(&mut self, tools: &mut Tools<'_>, key: usize) {
        let Some(piece) = self.pieces.get(key) else { return };
        let Some(s) = self.staged.get(piece.staged) else { return };
        let (pe, job) = (s.pe, message(s, piece, &self.pool));
        let issue = Issue { issuer: tools.issuer, tag: Some(Ticket::Piece(key).encode()) };
        // SAFETY: chunks and kept sources stay until the piece is done, and so do the operation's own buffers.
        match unsafe { tools.endpoint.submit(pe, job, issue) } {
            Ok(_) => {}
            Err(Error::Full { .. }) => self.unsent.push_back(key),
            Err(error) => self.end(key, Err(error)),
        }
    }

    /// The target has done what a piece asked for, or the endpoint what it was given.
    pub fn came(&mut self, mut tools: Tools<'_>, key: usize, result: Result<u64>) {
        let Some(piece) = self.pieces.get_mut(key) else { return };
        let Some(s) = self.staged.get_mut(piece.staged) else { return };
        let value = match result {
            Ok(value) => value,
            Err(error) => {
                if matches!(error, Error::Timeout { .. }) {
                    piece.chunk = None; // the target may still use it
                }
                return self.end(key, Err(error));
            }
        };
        s.value = value;
        let (len, to) = match s.job {
            Job::Get { .. } if s.way == Way::Rails => return self.end(key, Ok(())),
            Job::Get { dest, .. } if s.near || s.far => (piece.len, dest.wrapping_add(piece.at as usize)),
            Job::Amo { fetch: Fetch::Stored(to), ty, .. } if s.near || s.far => (ty.size(), to),
            _ => return self.end(key, Ok(())),
        };
        let bytes = value.to_ne_bytes();
        let from = match piece.chunk {
            Some(chunk) => self.pool.ptr(chunk),
            None => bytes.as_ptr().cast_mut(),
        };
        // Values come in the outcome.
        if piece.chunk.is_some() && (matches!(s.job, Job::Amo { .. }) || (s.far && len <= 8)) {
            // SAFETY: every chunk has room for 8 bytes, and this one is the piece's own.
            unsafe { copy(from, bytes.as_ptr(), len) };
        }
        if s.told {
            return self.end(key, Ok(())); // its owner does not wait for the bytes any more
        }
        if s.near {
            piece.last = true;
            let copy = Copy { memory: to.addr(), host: from, len, to_memory: true };
            return self.start_copy(&mut tools, key, copy);
        }
        // SAFETY: the destination is valid until the operation is complete; the other end is the piece's own.
        unsafe { copy(to, from, len) };
        self.end(key, Ok(()));
    }

    /// A piece's copy has ended.
    pub fn moved(&mut self, tools: &mut Tools<'_>, key: usize, result: Result<(), String>) {
        match (result, self.pieces.get(key).map(|piece| piece.last)) {
            (Err(why), Some(_)) => self.copy_failed(key, why),
            (Ok(()), Some(true)) => self.end(key, Ok(())),
            (Ok(()), Some(false)) => self.send(tools, key),
            (_, None) => {}
        }
    }

    fn copy_failed(&mut self, key: usize, why: String) {
        let Some(s) = self.pieces.get(key).and_then(|p| self.staged.get(p.staged)) else { return };
        let fault = symrail_transport::error::Fault { code: 0, text: why, retryable: false };
        let (operation, pe, bytes) = (s.job.operation(), s.pe, s.job.bytes());
        self.end(key, Err(Error::Operation { operation, pe, rail: "copies by the device".into(), bytes, fault }));
    }

    /// Ends a piece, and its operation if it was the last.
    fn end(&mut self, key: usize, result: Result<()>) {
        let Some(piece) = self.pieces.try_remove(key) else { return };
        if let Some(chunk) = piece.chunk {
            self.pool.give(chunk);
        }
        let Some(s) = self.staged.get_mut(piece.staged) else { return };
        s.pieces -= 1;
        if let Err(error) = result {
            s.error.get_or_insert(error);
            (s.all_cut, s.signal) = (true, None);
        }
        if s.pieces > 0 || !s.all_cut {
            return;
        }
        if s.signal.take().is_some() {
            s.pieces = 1;
            let signal = Piece { part: Part::Signal, at: 0, len: 0, chunk: None, eager: true, last: false, ..piece };
            self.unsent.push_back(self.pieces.insert(signal));
            return;
        }
        self.finish(piece.staged);
    }

    /// Tells an operation's end, and lets go of what was held back for it.
    fn finish(&mut self, key: usize) {
        self.tell(key);
        let Some(s) = self.staged.try_remove(key) else { return };
        self.cutting.retain(|&k| k != key);
        if matches!(s.job, Job::Get { .. }) {
            return;
        }
        let order = &mut self.orders[s.pe as usize];
        order.active = order.active.saturating_sub(1);
        while let Some(&next) = order.held.front() {
            let Some(epoch) = self.staged.get(next).map(|s| s.epoch) else {
                order.held.pop_front();
                continue;
            };
            if order.active > 0 && order.epoch != epoch {
                break;
            }
            order.held.pop_front();
            order.epoch = epoch;
            order.active += 1;
            self.cutting.push_back(next);
            self.more = true;
        }
    }

    fn tell(&mut self, key: usize) {
        let Some(s) = self.staged.get_mut(key) else { return };
        if std::mem::replace(&mut s.told, true) {
            return;
        }
        let (issue, result) = (s.issue, s.error.clone().map_or(Ok(s.value), Err));
        let account = self.account(issue.issuer);
        account.outstanding = account.outstanding.saturating_sub(1);
        match (issue.tag, result) {
            (Some(tag), result) => {
                self.finished.push(Finished { issuer: issue.issuer, tag, result: result.map_err(Box::new) });
            }
            (None, Err(error)) => {
                account.error.get_or_insert(error);
            }
            (None, Ok(_)) => {}
        }
    }

    /// As `Endpoint::tick`: only seconds in which somebody called count.
    pub fn tick(&mut self, now_s: u32) {
        if now_s == self.last_tick {
            return;
        }
        self.last_tick = now_s;
        self.now = self.now.wrapping_add(1);
        let late = |s: &Staged| !s.told && u64::from(self.now.wrapping_sub(s.since)) > self.timeout_s;
        let late: Vec<usize> = self.staged.iter().filter(|(_, s)| late(s)).map(|(key, _)| key).collect();
        for key in late {
            let Some(s) = self.staged.get_mut(key) else { continue };
            let timeout = Error::Timeout { operation: s.job.operation(), pe: s.pe, seconds: self.timeout_s };
            s.error.get_or_insert(timeout);
            (s.all_cut, s.signal) = (true, None);
            let (idle, pe) = (s.pieces == 0, s.pe as usize);
            self.tell(key);
            if idle {
                // It was held back or waited for a chunk; if held, it is not one of those that others wait for.
                let order = &mut self.orders[pe];
                if let Some(at) = order.held.iter().position(|&k| k == key) {
                    order.held.remove(at);
                    self.staged.remove(key);
                } else {
                    self.finish(key);
                }
            }
        }
    }

    fn account(&mut self, issuer: Issuer) -> &mut Account {
        let at = usize::from(issuer);
        if at >= self.accounts.len() {
            self.accounts.resize_with(at + 1, Account::default);
        }
        &mut self.accounts[at]
    }
}
