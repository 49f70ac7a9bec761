//! What peers ask of memory that the CPU cannot touch.
//!
//! A request waits, in order, for a chunk, and then is on its own: see the table in [the module](super). It has come to
//! its end when nothing that was started for it is under way any more.

use std::collections::VecDeque;

use symrail_heap::copy::copy;
use symrail_heap::mover::Copy;
use symrail_transport::amo::AmoType;
use symrail_transport::endpoint::job::{Issue, Job, Source};
use symrail_transport::wire::{Outcome, Place, Refusal, Request, RequestKind};
use symrail_transport::{Error, Pe, Result};

use super::window::{Chunk, LARGE, Pool};
use super::words::{WordAsk, Words};
use super::{Ticket, Tools};
use crate::agent::{Agent, Long};

/// What a request is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// Waiting for a chunk.
    Begin,
    /// Reading the source's window.
    Read,
    /// Copying between the chunk and memory, and changing words.
    Copy,
    /// Writing to the source's window.
    Write,
}

struct Task {
    connection: u32,
    request: Request,
    payload: Vec<u8>,
    place: Place,
    chunk: Option<Chunk>,
    step: Step,
    /// Copies and words under way.
    waits: u32,
    /// A signal in memory that the CPU reaches: updated when the data is where it belongs.
    then_signal: bool,
    value: u64,
    refusal: Refusal,
}

/// The target's side of staging.
pub(super) struct Target {
    pool: Pool,
    tasks: slab::Slab<Task>,
    words: Words,
    /// Tasks that wait for a chunk, and those that the endpoint had no room for.
    waiting: VecDeque<usize>,
    unsent: VecDeque<usize>,
    /// Kept for their memory.
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

    /// Whether a round would bring something forward.
    pub fn is_busy(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Takes in what peers have asked for, and goes on with what waited for room.
    pub fn poll(&mut self, tools: &mut Tools<'_>, agent: &mut Agent) {
        let mut written = false;
        while let Some(Long { connection, request, payload }) = agent.next_long() {
            // What has been written before it was sent must be seen before what it does.
            if !std::mem::replace(&mut written, true) {
                tools.copies.mover().see_writes();
            }
            let place = Place { offset: 0, len: payload.len() as u64 };
            let key = self.tasks.insert(Task {
                connection,
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
            match self.check(tools, agent, key) {
                Ok(()) => self.waiting.push_back(key),
                Err(refusal) => self.finish(agent, key, refusal),
            }
        }
        for _ in 0..self.unsent.len() {
            let Some(key) = self.unsent.pop_front() else { break };
            self.post(tools, agent, key);
        }
        while let Some(&key) = self.waiting.front() {
            if !self.begin(tools, agent, key) {
                break;
            }
            self.waiting.pop_front();
        }
        self.begin_words(tools, agent);
    }

    /// Checks everything that came from the peer.
    fn check(&mut self, tools: &Tools<'_>, agent: &Agent, key: usize) -> Result<(), Refusal> {
        let Some(task) = self.tasks.get_mut(key) else { return Ok(()) };
        let request = task.request;
        let inside = |offset: u64, len: u64| {
            let known = tools.memory.local(offset, len).is_some() || agent.range(offset, len as usize).is_ok();
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

    /// Begins a task. `false`: there is no chunk for it now.
    fn begin(&mut self, tools: &mut Tools<'_>, agent: &mut Agent, key: usize) -> bool {
        let Some(task) = self.tasks.get_mut(key) else { return true };
        let (request, len) = (task.request, task.place.len as usize);
        task.step = Step::Copy;
        match request.kind {
            RequestKind::Amo => {
                self.change_word(tools, key, request.offset, request.ty, true);
                return true;
            }
            RequestKind::Put | RequestKind::PutSignal if len == 0 => {
                self.stored(tools, agent, key);
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
                self.post(tools, agent, key);
            }
            RequestKind::Push => match tools.memory.local(request.offset, len as u64) {
                Some(memory) => {
                    let copy = Copy { memory: memory.addr(), host, len, to_memory: false };
                    self.start_copy(tools, agent, key, copy);
                }
                None => {
                    if let Ok(from) = agent.range(request.offset, len) {
                        // SAFETY: mapped memory of a segment, and a chunk of the task's own that is as long.
                        unsafe { copy(host, from, len) };
                    }
                    self.fetched(tools, agent, key);
                }
            },
            _ => {
                // SAFETY: the chunk is as long as the payload.
                unsafe { copy(host, task.payload.as_ptr(), len) };
                self.store(tools, agent, key);
            }
        }
        true
    }

    /// Copies a task's chunk to where its data belongs.
    fn store(&mut self, tools: &mut Tools<'_>, agent: &mut Agent, key: usize) {
        let Some(task) = self.tasks.get_mut(key) else { return };
        let (offset, len, Some(chunk)) = (task.request.offset, task.place.len as usize, task.chunk) else { return };
        let host = self.pool.ptr(chunk);
        task.step = Step::Copy;
        match tools.memory.local(offset, len as u64) {
            Some(memory) => {
                let copy = Copy { memory: memory.addr(), host, len, to_memory: true };
                if !self.start_copy(tools, agent, key, copy) {
                    return;
                }
            }
            None => {
                if let Ok(to) = agent.range(offset, len) {
                    // SAFETY: as in `begin`, the other way round.
                    unsafe { copy(to, host, len) };
                }
            }
        }
        self.stored(tools, agent, key);
    }

    /// A task's data is on its way to memory, or there: sees to its signal.
    fn stored(&mut self, tools: &mut Tools<'_>, agent: &mut Agent, key: usize) {
        let Some(task) = self.tasks.get_mut(key) else { return };
        let signal = task.request.second;
        match task.request.kind {
            RequestKind::PutSignal | RequestKind::PullSignal => {
                if tools.memory.local(signal, 8).is_some() {
                    // The data's copy has been started: the signal is marked as coming after it.
                    self.change_word(tools, key, signal, AmoType::U64, false);
                } else {
                    task.then_signal = true;
                    self.end_if_done(agent, key);
                }
            }
            _ => self.end_if_done(agent, key),
        }
    }

    fn change_word(&mut self, tools: &Tools<'_>, key: usize, offset: u64, ty: AmoType, fetch: bool) {
        let (Some(task), Some(at)) = (self.tasks.get_mut(key), tools.memory.local(offset, ty.size() as u64)) else {
            return;
        };
        let Request { op, operand, second, .. } = task.request;
        task.waits += 1;
        let compare = if fetch { second } else { 0 };
        let after_data = !fetch && task.place.len > 0;
        self.words.ask(WordAsk { address: at.addr(), ty, op, operand, compare, fetch, after_data, task: key });
    }

    fn begin_words(&mut self, tools: &mut Tools<'_>, agent: &mut Agent) {
        let mut failed = std::mem::take(&mut self.failed);
        self.words.begin(&mut self.pool, tools, &mut failed);
        for key in failed.drain(..) {
            self.waited(agent, key, Err(()));
        }
        self.failed = failed;
    }

    /// A word's copy has ended.
    pub fn word_moved(&mut self, tools: &mut Tools<'_>, agent: &mut Agent, key: usize, ok: bool) {
        let (mut done, mut failed) = (std::mem::take(&mut self.done), std::mem::take(&mut self.failed));
        self.words.moved(key, ok, (&mut self.pool, tools), &mut done, &mut failed);
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

    /// Starts a copy; a task for which that fails ends (`false`).
    fn start_copy(&mut self, tools: &mut Tools<'_>, agent: &mut Agent, key: usize, copy: Copy) -> bool {
        // SAFETY: the chunk is the task's own until the copy ends; the other end was found to be the mover's memory.
        let started = unsafe { tools.copies.start(copy, Ticket::Task(key), false) };
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

    /// A task's copy has ended.
    pub fn moved(&mut self, tools: &mut Tools<'_>, agent: &mut Agent, key: usize, result: Result<(), String>) {
        let Some(task) = self.tasks.get_mut(key) else { return };
        if let Err(why) = &result {
            tracing::warn!(why, "a peer's request could not be served");
        }
        if task.request.kind == RequestKind::Push && result.is_ok() {
            task.waits -= 1;
            return self.fetched(tools, agent, key);
        }
        self.waited(agent, key, result.map_err(drop));
    }

    /// What a get asked for is in the task's chunk.
    fn fetched(&mut self, tools: &mut Tools<'_>, agent: &mut Agent, key: usize) {
        let Some(task) = self.tasks.get_mut(key) else { return };
        if let Some(chunk) = task.chunk.filter(|_| task.place.len <= 8) {
            let mut value = [0u8; 8];
            // SAFETY: the chunk has at least 8 bytes, of which no copy uses any now.
            unsafe { copy(value.as_mut_ptr(), self.pool.ptr(chunk), task.place.len as usize) };
            task.value = u64::from_ne_bytes(value);
            return self.end_if_done(agent, key);
        }
        task.step = Step::Write;
        self.post(tools, agent, key);
    }

    /// Reads or writes the source's window.
    fn post(&mut self, tools: &mut Tools<'_>, agent: &mut Agent, key: usize) {
        let Some(task) = self.tasks.get(key) else { return };
        let (pe, Place { offset, len }, Some(chunk)) = (task.request.source, task.place, task.chunk) else { return };
        let host = self.pool.ptr(chunk);
        let job = match task.step {
            Step::Read => Job::Get { source: offset, dest: host, len },
            _ => Job::Put { dest: offset, source: Source::Stable(host), len },
        };
        match self.submit(tools, pe, job, key) {
            Ok(()) => {}
            Err(Error::Full { .. }) => self.unsent.push_back(key),
            Err(error) => {
                tracing::warn!(pe, %error, "a peer's window could not be reached");
                self.finish(agent, key, Refusal::Failed);
            }
        }
    }

    fn submit(&self, tools: &mut Tools<'_>, pe: Pe, job: Job, key: usize) -> Result<()> {
        let issue = Issue { issuer: tools.issuer, tag: Some(Ticket::Task(key).encode()) };
        // SAFETY: the chunk is the task's own until the operation's end has been told, and kept if that was a time-out.
        unsafe { tools.endpoint.submit(pe, job, issue) }.map(drop)
    }

    /// The source's window has been read or written.
    pub fn came(&mut self, mut tools: Tools<'_>, agent: &mut Agent, key: usize, result: Result<u64>) {
        let Some(task) = self.tasks.get_mut(key) else { return };
        match result {
            Ok(_) if task.step == Step::Read => self.store(&mut tools, agent, key),
            Ok(_) => self.end_if_done(agent, key),
            Err(error) => {
                tracing::warn!(pe = task.request.source, %error, "a peer's window could not be reached");
                if matches!(error, Error::Timeout { .. }) {
                    task.chunk = None; // the rail may still use it
                }
                self.finish(agent, key, Refusal::Failed);
            }
        }
        self.begin_words(&mut tools, agent);
    }

    fn waited(&mut self, agent: &mut Agent, key: usize, result: Result<(), ()>) {
        let Some(task) = self.tasks.get_mut(key) else { return };
        task.waits -= 1;
        if result.is_err() {
            task.refusal = Refusal::Failed;
        }
        self.end_if_done(agent, key);
    }

    /// Ends a task that waits for nothing any more.
    fn end_if_done(&mut self, agent: &mut Agent, key: usize) {
        let Some(task) = self.tasks.get_mut(key).filter(|task| task.waits == 0) else { return };
        if std::mem::take(&mut task.then_signal) && task.refusal == Refusal::None {
            let request = Request { kind: RequestKind::PutSignal, ..task.request };
            task.refusal = agent.apply(&request, &[]).err().unwrap_or(Refusal::None);
        }
        let refusal = task.refusal;
        self.finish(agent, key, refusal);
    }

    /// Ends a task, and tells its source.
    fn finish(&mut self, agent: &mut Agent, key: usize, refusal: Refusal) {
        let Some(task) = self.tasks.try_remove(key) else { return };
        if let Some(chunk) = task.chunk {
            self.pool.give(chunk);
        }
        agent.tell(task.connection, Outcome { id: task.request.id, value: task.value, refusal });
    }
}
