//! This PE's operations that go through the window.

use std::collections::VecDeque;

use symrail_heap::copy::copy;
use symrail_heap::mover::{Copy, Moved};
use symrail_transport::endpoint::job::{Fetch, Issue, Job};
use symrail_transport::{Error, Pe, Result};

use super::Tools;
use super::account::Accounts;
use super::operation::{Part, Piece, Staged, Way, far, keep, near, outside_window, way};
use super::order::Orders;
use super::window::Pool;

/// Operations that may be under way.
pub(super) const MAX_OPERATIONS: usize = 1024;

/// The source's side of staging.
pub(super) struct Source {
    pub(super) pool: Pool,
    pub(super) staged: slab::Slab<Staged>,
    pub(super) pieces: slab::Slab<Piece>,
    orders: Orders,
    /// Operations to be cut, in order.
    pub(super) cutting: VecDeque<usize>,
    /// Pieces that the endpoint had no room for.
    pub(super) unsent: VecDeque<usize>,
    /// Cutting stopped because it had done enough for one round.
    pub(super) more: bool,
    pub accounts: Accounts,
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
            orders: Orders::new(n_pes),
            cutting: VecDeque::new(),
            unsent: VecDeque::new(),
            more: false,
            accounts: Accounts::default(),
            ended: Vec::new(),
            timeout_s,
            now: 0,
            last_tick: 0,
        }
    }

    pub fn fence(&mut self) {
        self.orders.fence();
    }

    pub fn ready(&self) -> bool {
        self.staged.len() < MAX_OPERATIONS
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
        let ordered = !matches!(job, Job::Get { .. }); // a fence does not order gets
        let hold = self.orders.would_hold(pe)? && ordered;
        outside_window(&tools, pe, &job)?;
        if let Job::Put { dest: offset, len: 0, .. } | Job::Get { source: offset, len: 0, .. } = job
            && tools.memory.check(job.operation(), pe, offset, 0).is_ok()
        {
            // Nothing to move is done at once.
            self.accounts.begin(issue.issuer);
            self.accounts.end(issue, Ok(0));
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
        self.accounts.begin(issue.issuer);
        if hold {
            self.orders.hold(pe, key);
            return Ok(());
        }
        if ordered {
            self.orders.begin(pe);
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

    pub(super) fn copy_failed(&mut self, key: usize, why: String) {
        let Some(s) = self.pieces.get(key).and_then(|p| self.staged.get(p.staged)) else { return };
        let fault = symrail_transport::error::Fault { code: 0, text: why, retryable: false };
        let (operation, pe, bytes) = (s.job.operation(), s.pe, s.job.bytes());
        self.end(key, Err(Error::Operation { operation, pe, rail: "copies by the device".into(), bytes, fault }));
    }

    /// Ends a piece, and its operation if it was the last.
    pub(super) fn end(&mut self, key: usize, result: Result<()>) {
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
        self.orders.end(s.pe);
        while let Some(next) = self.orders.release(s.pe) {
            self.cutting.push_back(next);
            self.more = true;
        }
    }

    fn tell(&mut self, key: usize) {
        let Some(s) = self.staged.get_mut(key) else { return };
        if std::mem::replace(&mut s.told, true) {
            return;
        }
        self.accounts.end(s.issue, s.error.clone().map_or(Ok(s.value), Err));
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
            let (idle, pe) = (s.pieces == 0, s.pe);
            self.tell(key);
            if idle {
                // It was held back or waited for a chunk; if held, it is not one of those that others wait for.
                if self.orders.forget(pe, key) {
                    self.staged.remove(key);
                } else {
                    self.finish(key);
                }
            }
        }
    }
}
