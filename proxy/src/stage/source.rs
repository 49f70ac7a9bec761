//! This PE's own operations through the staging buffer.

use std::collections::VecDeque;

use symrail_heap::copy::copy;
use symrail_heap::copy_engine::{Copy, CopyCompletion};
use symrail_transport::endpoint::command::{Command, Fetch, Owner};
use symrail_transport::{Error, Pe, Result};

use super::account::Accounts;
use super::context::StageContext;
use super::operation::{
    Fragment, Part, Route, Staged, keep, local_is_device, outside_staging_buffer, remote_is_device, route,
};
use super::order::Orders;
use super::staging_buffer::Pool;

/// The limit of operations under way.
pub(super) const MAX_OPERATIONS: usize = 1024;

/// The source's side of staging.
pub(super) struct Source {
    pub(super) pool: Pool,
    pub(super) staged: slab::Slab<Staged>,
    pub(super) fragments: slab::Slab<Fragment>,
    orders: Orders,
    /// Operations to split, in order.
    pub(super) to_split: VecDeque<usize>,
    /// Fragments for which the endpoint had no room.
    pub(super) unsent: VecDeque<usize>,
    /// Whether the last round reached its limit of copied bytes before everything was split.
    pub(super) more: bool,
    pub accounts: Accounts,
    /// Reused, so that rounds do not allocate.
    pub ended: Vec<CopyCompletion>,
    timeout_s: u64,
    now: u32,
    last_tick: u32,
}

// SAFETY: the pointers inside are buffers of operations under way. Their owners promised (`submit`) to keep them valid
// whichever thread completes the operation.
unsafe impl Send for Source {}

impl Source {
    pub fn new(pool: Pool, n_pes: u32, timeout_s: u64) -> Self {
        Source {
            pool,
            staged: slab::Slab::new(),
            fragments: slab::Slab::new(),
            orders: Orders::new(n_pes),
            to_split: VecDeque::new(),
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

    /// See [`Orders::forget_pe`].
    pub fn forget_pe(&mut self, pe: Pe) -> bool {
        self.orders.forget_pe(pe)
    }

    pub fn ready(&self) -> bool {
        self.staged.len() < MAX_OPERATIONS
    }

    /// Whether polling again would make progress.
    pub fn is_busy(&self) -> bool {
        self.more || !self.unsent.is_empty()
    }

    /// See [`Stage::submit`](super::Stage::submit).
    ///
    /// # Safety
    /// As for `Endpoint::submit`.
    pub unsafe fn submit(&mut self, mut ctx: StageContext<'_>, pe: Pe, command: Command, owner: Owner) -> Result<()> {
        let ordered = !matches!(command, Command::Get { .. }); // a fence does not order gets
        let hold = self.orders.would_hold(pe)? && ordered;
        outside_staging_buffer(&ctx, pe, &command)?;
        if let Command::Put { dest: offset, len: 0, .. } | Command::Get { source: offset, len: 0, .. } = command
            && ctx.memory.check(command.operation(), pe, offset, 0).is_ok()
        {
            // An empty operation is complete at once.
            self.accounts.begin(owner.issuer);
            self.accounts.end(owner, Ok(0));
            return Ok(());
        }
        let local_is_device = local_is_device(&ctx, pe, &command)?;
        let remote_is_device = remote_is_device(&ctx, pe, &command)?;
        if !local_is_device && !remote_is_device && !hold {
            // SAFETY: the caller's promise.
            return unsafe { ctx.endpoint.submit(pe, command, owner) }.map(drop);
        }
        if !self.ready() {
            return Err(Error::Full { operation: command.operation(), pe });
        }
        let route = route(&ctx, pe, &command, (local_is_device, remote_is_device));
        // SAFETY: the caller's promise; `keep` does not access memory that the CPU cannot touch.
        let kept = unsafe { keep(&command, local_is_device) }?;
        let staged = Staged {
            pe,
            command,
            owner,
            kept,
            local_is_device,
            remote_is_device,
            route,
            split: 0,
            all_split: false,
            queued: false,
            fragments: 0,
            signal: None,
            value: 0,
            error: None,
            reported: false,
            since: self.now,
        };
        let key = self.staged.insert(staged);
        self.accounts.begin(owner.issuer);
        if hold {
            self.orders.hold(pe, key);
            return Ok(());
        }
        if ordered {
            self.orders.begin(pe);
        }
        self.queue(key);
        self.split_all(&mut ctx);
        Ok(())
    }

    /// Queues an operation to be split.
    fn queue(&mut self, key: usize) {
        if let Some(s) = self.staged.get_mut(key) {
            s.queued = true;
            self.to_split.push_back(key);
        }
    }

    /// Continues operations that waited for room.
    pub fn poll(&mut self, ctx: &mut StageContext<'_>) {
        for _ in 0..self.unsent.len() {
            let Some(fragment) = self.unsent.pop_front() else { break };
            self.send(ctx, fragment);
        }
        self.split_all(ctx);
    }

    /// Continues a fragment whose request or endpoint operation has ended.
    pub fn operation_ended(&mut self, mut ctx: StageContext<'_>, key: usize, result: Result<u64>) {
        let Some(fragment) = self.fragments.get_mut(key) else { return };
        let Some(s) = self.staged.get_mut(fragment.staged) else { return };
        let value = match result {
            Ok(value) => value,
            Err(error) => {
                if matches!(error, Error::Timeout { .. }) {
                    fragment.chunk = None; // the target may still use it
                }
                return self.end(key, Err(error));
            }
        };
        s.value = value;
        let (len, to) = match s.command {
            Command::Get { .. } if s.route == Route::Rails => return self.end(key, Ok(())),
            Command::Get { dest, .. } if s.local_is_device || s.remote_is_device => {
                (fragment.len, dest.wrapping_add(fragment.at as usize))
            }
            Command::Amo { fetch: Fetch::Stored(to), ty, .. } if s.local_is_device || s.remote_is_device => {
                (ty.size(), to)
            }
            _ => return self.end(key, Ok(())),
        };
        let bytes = value.to_ne_bytes();
        let from = match fragment.chunk {
            Some(chunk) => self.pool.ptr(chunk),
            None => bytes.as_ptr().cast_mut(),
        };
        // The outcome carries values of up to 8 bytes.
        if fragment.chunk.is_some() && (matches!(s.command, Command::Amo { .. }) || (s.remote_is_device && len <= 8)) {
            // SAFETY: every chunk has room for 8 bytes, and this one is the fragment's own.
            unsafe { copy(from, bytes.as_ptr(), len) };
        }
        if s.reported {
            return self.end(key, Ok(())); // its owner no longer waits for the bytes
        }
        if s.local_is_device {
            fragment.last = true;
            let copy = Copy { memory: to.addr(), host: from, len, to_memory: true };
            return self.start_copy(&mut ctx, key, copy);
        }
        // SAFETY: the destination is valid until the operation is complete; the other end is the fragment's own.
        unsafe { copy(to, from, len) };
        self.end(key, Ok(()));
    }

    /// Continues a fragment whose copy has ended.
    pub fn copy_ended(&mut self, ctx: &mut StageContext<'_>, key: usize, result: Result<(), String>) {
        match (result, self.fragments.get(key).map(|fragment| fragment.last)) {
            (Err(why), Some(_)) => self.copy_failed(key, why),
            (Ok(()), Some(true)) => self.end(key, Ok(())),
            (Ok(()), Some(false)) => self.send(ctx, key),
            (_, None) => {}
        }
    }

    pub(super) fn copy_failed(&mut self, key: usize, why: String) {
        let Some(s) = self.fragments.get(key).and_then(|p| self.staged.get(p.staged)) else { return };
        let fault = symrail_transport::error::Fault { code: 0, text: why, retryable: false };
        let (operation, pe, bytes) = (s.command.operation(), s.pe, s.command.bytes());
        self.end(key, Err(Error::Operation { operation, pe, rail: "copies by the device".into(), bytes, fault }));
    }

    /// Ends a fragment, and with the last one its operation.
    pub(super) fn end(&mut self, key: usize, result: Result<()>) {
        let Some(fragment) = self.fragments.try_remove(key) else { return };
        if let Some(chunk) = fragment.chunk {
            self.pool.release(chunk);
        }
        let Some(s) = self.staged.get_mut(fragment.staged) else { return };
        s.fragments -= 1;
        if let Err(error) = result {
            s.error.get_or_insert(error);
            (s.all_split, s.signal) = (true, None);
        }
        if s.fragments > 0 || !s.all_split {
            return;
        }
        if s.signal.take().is_some() {
            s.fragments = 1;
            let signal =
                Fragment { part: Part::Signal, at: 0, len: 0, chunk: None, eager: true, last: false, ..fragment };
            self.unsent.push_back(self.fragments.insert(signal));
            return;
        }
        self.finish(fragment.staged);
    }

    /// Reports an operation's end, and starts what waited behind it.
    fn finish(&mut self, key: usize) {
        self.report(key);
        let Some(s) = self.staged.try_remove(key) else { return };
        if s.queued {
            self.to_split.retain(|&k| k != key);
        }
        if matches!(s.command, Command::Get { .. }) {
            return;
        }
        self.orders.end(s.pe);
        while let Some(next) = self.orders.release(s.pe) {
            self.queue(next);
            self.more = true;
        }
    }

    fn report(&mut self, key: usize) {
        let Some(s) = self.staged.get_mut(key) else { return };
        if std::mem::replace(&mut s.reported, true) {
            return;
        }
        self.accounts.end(s.owner, s.error.clone().map_or(Ok(s.value), Err));
    }

    /// Sets the time, as `Endpoint::tick` does: only seconds with a call count.
    pub fn tick(&mut self, now_s: u32) {
        if now_s == self.last_tick {
            return;
        }
        self.last_tick = now_s;
        self.now = self.now.wrapping_add(1);
        let late = |s: &Staged| !s.reported && u64::from(self.now.wrapping_sub(s.since)) > self.timeout_s;
        let late: Vec<usize> = self.staged.iter().filter(|(_, s)| late(s)).map(|(key, _)| key).collect();
        for key in late {
            let Some(s) = self.staged.get_mut(key) else { continue };
            let (operation, pe, seconds) = (s.command.operation(), s.pe, self.timeout_s);
            let timeout = Error::Timeout { operation, pe, seconds, rails: String::new() };
            s.error.get_or_insert(timeout);
            (s.all_split, s.signal) = (true, None);
            let (idle, pe) = (s.fragments == 0, s.pe);
            self.report(key);
            if idle {
                // An operation that a fence holds back has nothing under way.
                if self.orders.forget(pe, key) {
                    self.staged.remove(key);
                } else {
                    self.finish(key);
                }
            }
        }
    }
}
