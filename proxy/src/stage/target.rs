//! Peers' requests on memory that the CPU cannot touch.
//!
//! Requests wait for a chunk in order; after that they are independent ([the module](super) has a table of their
//! steps). A request ends when no copy, word or operation for it is under way.

use std::collections::VecDeque;

use symrail_heap::copy::copy;
use symrail_heap::copy_engine::Copy;
use symrail_transport::amo::AmoType;
use symrail_transport::endpoint::command::{Command, Owner, Source};
use symrail_transport::wire::{Outcome, Place, Refusal, Request, RequestKind};
use symrail_transport::{Error, Pe, Result};

use super::context::{StageContext, Ticket};
use super::staging_buffer::{Chunk, LARGE, Pool};
use super::words::{WordLocks, WordRequest, Words};
use crate::agent::{Agent, DeferredRequest};

/// The state of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// Waiting for a chunk.
    Begin,
    /// Reading the source's staging buffer.
    Read,
    /// Copying between the chunk and memory, and changing words.
    Copy,
    /// Writing to the source's staging buffer.
    Write,
}

struct Task {
    request: Request,
    payload: Vec<u8>,
    place: Place,
    chunk: Option<Chunk>,
    step: Step,
    /// Copies and words under way.
    waits: u32,
    /// Whether the signal is in memory that the CPU can access. It is updated when the data is delivered.
    then_signal: bool,
    value: u64,
    refusal: Refusal,
}

/// The target's side of staging.
pub(super) struct Target {
    pool: Pool,
    tasks: slab::Slab<Task>,
    words: Words,
    /// Tasks that wait for a chunk, and tasks for which the endpoint had no room.
    waiting: VecDeque<usize>,
    unsent: VecDeque<usize>,
    /// Reused, so that rounds do not allocate.
    done: Vec<(usize, u64)>,
    failed: Vec<usize>,
}

impl Target {
    pub fn new(pool: Pool) -> Self {
        Target {
            pool,
            tasks: slab::Slab::new(),
            words: Words::default(),
            waiting: VecDeque::new(),
            unsent: VecDeque::new(),
            done: Vec::new(),
            failed: Vec::new(),
        }
    }

    /// See [`Engine::share_words`](crate::Engine::share_words).
    pub fn share_words(&mut self, locks: WordLocks) {
        self.words.share(locks);
    }

    /// Whether polling again would make progress.
    pub fn is_busy(&self) -> bool {
        !self.unsent.is_empty() || self.words.is_busy()
    }

    /// Accepts peers' new requests, and continues those that waited for room.
    pub fn poll(&mut self, ctx: &mut StageContext<'_>, agent: &mut Agent) {
        let mut written = false;
        while let Some(DeferredRequest { request, payload }) = agent.next_deferred() {
            // NICs' writes from before the request must be visible before its effects.
            if !std::mem::replace(&mut written, true) {
                ctx.copies.copy_engine().flush_nic_writes();
            }
            let place = Place { offset: 0, len: payload.len() as u64 };
            let key = self.tasks.insert(Task {
                request,
                payload,
                place,
                chunk: None,
                step: Step::Begin,
                waits: 0,
                then_signal: false,
                value: 0,
                refusal: Refusal::None,
            });
            match self.check(ctx, agent, key) {
                Ok(()) => self.waiting.push_back(key),
                Err(refusal) => self.finish(agent, key, refusal),
            }
        }
        for _ in 0..self.unsent.len() {
            let Some(key) = self.unsent.pop_front() else { break };
            self.post(ctx, agent, key);
        }
        while let Some(&key) = self.waiting.front() {
            if !self.begin(ctx, agent, key) {
                break;
            }
            self.waiting.pop_front();
        }
        self.begin_words(ctx, agent);
    }

    /// Validates all fields of a request.
    fn check(&mut self, ctx: &StageContext<'_>, agent: &Agent, key: usize) -> Result<(), Refusal> {
        let Some(task) = self.tasks.get_mut(key) else { return Ok(()) };
        let request = task.request;
        let inside = |offset: u64, len: u64| {
            let known = ctx.memory.local(offset, len).is_some() || agent.range(offset, len as usize).is_ok();
            if known { Ok(()) } else { Err(Refusal::OutOfSegment) }
        };
        let word = |offset: u64, size: u64| {
            if !offset.is_multiple_of(size) {
                return Err(Refusal::Misaligned);
            }
            inside(offset, size)
        };
        match request.kind {
            RequestKind::Pull | RequestKind::PullSignal | RequestKind::Push => {
                task.place = Place::decode(&task.payload).ok_or(Refusal::Undefined)?;
                if !(1..=LARGE as u64).contains(&task.place.len) {
                    return Err(Refusal::Undefined);
                }
            }
            RequestKind::Put | RequestKind::PutSignal => {}
            RequestKind::Amo if request.op.defined_on(request.ty) => {
                return word(request.offset, request.ty.size() as u64);
            }
            _ => return Err(Refusal::Undefined),
        }
        if task.place.len > 0 {
            inside(request.offset, task.place.len)?;
        }
        if matches!(request.kind, RequestKind::PutSignal | RequestKind::PullSignal) {
            word(request.second, 8)?;
        }
        Ok(())
    }

    /// Starts a task; returns `false` if no chunk is free.
    fn begin(&mut self, ctx: &mut StageContext<'_>, agent: &mut Agent, key: usize) -> bool {
        let Some(task) = self.tasks.get_mut(key) else { return true };
        let (request, len) = (task.request, task.place.len as usize);
        task.step = Step::Copy;
        match request.kind {
            RequestKind::Amo => {
                if !self.change_word(ctx, key, request.offset, request.ty, true) {
                    self.finish(agent, key, Refusal::OutOfSegment);
                }
                return true;
            }
            RequestKind::Put | RequestKind::PutSignal if len == 0 => {
                self.stored(ctx, agent, key);
                return true;
            }
            _ => {}
        }
        let Some(chunk) = self.pool.take(len) else {
            task.step = Step::Begin;
            return false;
        };
        task.chunk = Some(chunk);
        let host = self.pool.ptr(chunk);
        match request.kind {
            RequestKind::Pull | RequestKind::PullSignal => {
                task.step = Step::Read;
                self.post(ctx, agent, key);
            }
            RequestKind::Push => match ctx.memory.local(request.offset, len as u64) {
                Some(memory) => {
                    let copy = Copy { memory: memory.addr(), host, len, to_memory: false };
                    self.start_copy(ctx, agent, key, copy);
                }
                None => match agent.range(request.offset, len) {
                    Ok(from) => {
                        // SAFETY: mapped memory of a segment, and a chunk of the task's own that is as long.
                        unsafe { copy(host, from, len) };
                        self.fetched(ctx, agent, key);
                    }
                    // The memory was deregistered since the request came.
                    Err(refusal) => self.finish(agent, key, refusal),
                },
            },
            _ => {
                // SAFETY: the chunk is as long as the payload.
                unsafe { copy(host, task.payload.as_ptr(), len) };
                self.store(ctx, agent, key);
            }
        }
        true
    }

    /// Copies a task's chunk to its destination.
    fn store(&mut self, ctx: &mut StageContext<'_>, agent: &mut Agent, key: usize) {
        let Some(task) = self.tasks.get_mut(key) else { return };
        let (offset, len, Some(chunk)) = (task.request.offset, task.place.len as usize, task.chunk) else { return };
        let host = self.pool.ptr(chunk);
        task.step = Step::Copy;
        match ctx.memory.local(offset, len as u64) {
            Some(memory) => {
                let copy = Copy { memory: memory.addr(), host, len, to_memory: true };
                if !self.start_copy(ctx, agent, key, copy) {
                    return;
                }
            }
            None => match agent.range(offset, len) {
                // SAFETY: as in `begin`, the other way round.
                Ok(to) => unsafe { copy(to, host, len) },
                Err(refusal) => return self.finish(agent, key, refusal),
            },
        }
        self.stored(ctx, agent, key);
    }

    /// Continues a task whose data copy has started: updates its signal.
    fn stored(&mut self, ctx: &mut StageContext<'_>, agent: &mut Agent, key: usize) {
        let Some(task) = self.tasks.get_mut(key) else { return };
        let signal = task.request.second;
        match task.request.kind {
            RequestKind::PutSignal | RequestKind::PullSignal => {
                if ctx.memory.local(signal, 8).is_some() {
                    // The data's copy has been started, so the signal is marked as following it.
                    self.change_word(ctx, key, signal, AmoType::U64, false);
                } else {
                    task.then_signal = true;
                    self.end_if_done(agent, key);
                }
            }
            _ => self.end_if_done(agent, key),
        }
    }

    /// Changes a word; returns `false` if its memory was deregistered since the request came.
    fn change_word(&mut self, ctx: &StageContext<'_>, key: usize, offset: u64, ty: AmoType, fetch: bool) -> bool {
        let (Some(task), Some(at)) = (self.tasks.get_mut(key), ctx.memory.local(offset, ty.size() as u64)) else {
            return false;
        };
        let Request { op, operand, second, .. } = task.request;
        task.waits += 1;
        let compare = if fetch { second } else { 0 };
        let after_data = !fetch && task.place.len > 0;
        self.words.request(WordRequest { address: at.addr(), ty, op, operand, compare, fetch, after_data, task: key });
        true
    }

    fn begin_words(&mut self, ctx: &mut StageContext<'_>, agent: &mut Agent) {
        let mut failed = std::mem::take(&mut self.failed);
        self.words.begin(&mut self.pool, ctx, &mut failed);
        for key in failed.drain(..) {
            self.waited(agent, key, Err(()));
        }
        self.failed = failed;
    }

    /// Continues a word whose copy has ended.
    pub fn word_copied(&mut self, ctx: &mut StageContext<'_>, agent: &mut Agent, key: usize, ok: bool) {
        let (mut done, mut failed) = (std::mem::take(&mut self.done), std::mem::take(&mut self.failed));
        self.words.copy_ended(key, ok, (&mut self.pool, ctx), &mut done, &mut failed);
        for (task, old) in done.drain(..) {
            if let Some(task) = self.tasks.get_mut(task) {
                task.value = old;
            }
            self.waited(agent, task, Ok(()));
        }
        for task in failed.drain(..) {
            self.waited(agent, task, Err(()));
        }
        (self.done, self.failed) = (done, failed);
    }

    /// Starts a copy. If that fails, ends the task and returns `false`.
    fn start_copy(&mut self, ctx: &mut StageContext<'_>, agent: &mut Agent, key: usize, copy: Copy) -> bool {
        // SAFETY: the chunk is the task's own until the copy ends; the other end was checked to be the copy engine's
        // memory.
        let started = unsafe { ctx.copies.start(copy, Ticket::Task(key), false) };
        match (started, self.tasks.get_mut(key)) {
            (Ok(()), Some(task)) => {
                task.waits += 1;
                true
            }
            (Err(why), _) => {
                tracing::warn!(why, "a peer's request could not be served");
                self.finish(agent, key, Refusal::Failed);
                false
            }
            (Ok(()), None) => false,
        }
    }

    /// Continues a task whose copy has ended.
    pub fn copy_ended(
        &mut self,
        ctx: &mut StageContext<'_>,
        agent: &mut Agent,
        key: usize,
        result: Result<(), String>,
    ) {
        let Some(task) = self.tasks.get_mut(key) else { return };
        if let Err(why) = &result {
            tracing::warn!(why, "a peer's request could not be served");
        }
        if task.request.kind == RequestKind::Push && result.is_ok() {
            task.waits -= 1;
            return self.fetched(ctx, agent, key);
        }
        self.waited(agent, key, result.map_err(drop));
    }

    /// Continues a get whose data is in the task's chunk.
    fn fetched(&mut self, ctx: &mut StageContext<'_>, agent: &mut Agent, key: usize) {
        let Some(task) = self.tasks.get_mut(key) else { return };
        if let Some(chunk) = task.chunk.filter(|_| task.place.len <= 8) {
            let mut value = [0u8; 8];
            // SAFETY: the chunk has at least 8 bytes, and no copy uses them now.
            unsafe { copy(value.as_mut_ptr(), self.pool.ptr(chunk), task.place.len as usize) };
            task.value = u64::from_ne_bytes(value);
            return self.end_if_done(agent, key);
        }
        task.step = Step::Write;
        self.post(ctx, agent, key);
    }

    /// Posts a read or write of the source's staging buffer.
    fn post(&mut self, ctx: &mut StageContext<'_>, agent: &mut Agent, key: usize) {
        let Some(task) = self.tasks.get(key) else { return };
        let (pe, Place { offset, len }, Some(chunk)) = (task.request.source, task.place, task.chunk) else { return };
        let host = self.pool.ptr(chunk);
        let command = match task.step {
            Step::Read => Command::Get { source: offset, dest: host, len },
            _ => Command::Put { dest: offset, source: Source::Stable(host), len },
        };
        match self.submit(ctx, pe, command, key) {
            Ok(()) => {}
            Err(Error::Full { .. }) => self.unsent.push_back(key),
            Err(error) => {
                tracing::warn!(pe, %error, "a peer's staging_buffer could not be reached");
                self.finish(agent, key, Refusal::Failed);
            }
        }
    }

    fn submit(&self, ctx: &mut StageContext<'_>, pe: Pe, command: Command, key: usize) -> Result<()> {
        let owner = Owner { issuer: ctx.issuer, tag: Some(Ticket::Task(key).encode()) };
        // SAFETY: the chunk is the task's own until the operation's end has been reported. After a time-out it is never
        // returned.
        unsafe { ctx.endpoint.submit(pe, command, owner) }.map(drop)
    }

    /// Continues a task that has read or written the source's staging buffer.
    pub fn operation_ended(&mut self, mut ctx: StageContext<'_>, agent: &mut Agent, key: usize, result: Result<u64>) {
        let Some(task) = self.tasks.get_mut(key) else { return };
        match result {
            Ok(_) if task.step == Step::Read => self.store(&mut ctx, agent, key),
            Ok(_) => self.end_if_done(agent, key),
            Err(error) => {
                tracing::warn!(pe = task.request.source, %error, "a peer's staging_buffer could not be reached");
                if matches!(error, Error::Timeout { .. }) {
                    task.chunk = None; // the rail may still use it
                }
                self.finish(agent, key, Refusal::Failed);
            }
        }
        self.begin_words(&mut ctx, agent);
    }

    fn waited(&mut self, agent: &mut Agent, key: usize, result: Result<(), ()>) {
        let Some(task) = self.tasks.get_mut(key) else { return };
        task.waits -= 1;
        if result.is_err() {
            task.refusal = Refusal::Failed;
        }
        self.end_if_done(agent, key);
    }

    /// Ends a task that waits for nothing.
    fn end_if_done(&mut self, agent: &mut Agent, key: usize) {
        let Some(task) = self.tasks.get_mut(key).filter(|task| task.waits == 0) else { return };
        if std::mem::take(&mut task.then_signal) && task.refusal == Refusal::None {
            let request = Request { kind: RequestKind::PutSignal, ..task.request };
            task.refusal = agent.apply(&request, &[]).err().unwrap_or(Refusal::None);
        }
        let refusal = task.refusal;
        self.finish(agent, key, refusal);
    }

    /// Ends a task and reports the outcome to its source.
    fn finish(&mut self, agent: &mut Agent, key: usize, refusal: Refusal) {
        let Some(task) = self.tasks.try_remove(key) else { return };
        if let Some(chunk) = task.chunk {
            self.pool.release(chunk);
        }
        agent.report(&task.request, Outcome::of(task.request.id, task.value, refusal));
    }
}
