//! Atomics and signals on words that the CPU cannot touch: read, changed, written back.
//!
//! At most one read or write of each word is under way. Requests that arrive meanwhile are applied together in the next
//! round. So all requests are atomic with one another (overlapping words must have the same size). The device's own
//! loads, stores and atomics on the same word are not atomic with them. Engines that stage the same memory take turns
//! at each word ([`WordLocks`]).

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex};

use symrail_core::lock;
use symrail_heap::copy_engine::Copy;
use symrail_transport::amo::{self, AmoOp, AmoType};

use super::context::{StageContext, Ticket};
use super::staging_buffer::{Chunk, Pool};

/// A change of a word.
#[derive(Debug, Clone, Copy)]
pub(super) struct WordRequest {
    /// The word's address.
    pub address: usize,
    pub ty: AmoType,
    pub op: AmoOp,
    pub operand: u64,
    pub compare: u64,
    /// Whether the source wants the old value.
    pub fetch: bool,
    /// Whether it signals data whose copy was started earlier.
    pub after_data: bool,
    /// The task that it is a part of.
    pub task: usize,
}

/// The words that one of several engines is changing, by address. Clones share their state.
#[derive(Debug, Clone, Default)]
pub struct WordLocks(Arc<Mutex<HashSet<usize>>>);

/// How often an engine writes a word before another engine gets its turn.
const TURN: u32 = 4;

/// A word whose copies are under way.
struct Word {
    address: usize,
    size: usize,
    chunk: Chunk,
    writing: bool,
    /// Whether the write signals data.
    after_data: bool,
    /// Requests that wait for the copy under way.
    next: Vec<WordRequest>,
    /// Requests whose result is being written back: task and old value.
    applied: Vec<(usize, u64)>,
    /// The number of writes in this turn.
    writes: u32,
}

/// All words with copies under way.
#[derive(Default)]
pub(super) struct Words {
    /// The locks that are shared with other engines on the same memory, if there are any.
    locks: Option<WordLocks>,
    words: slab::Slab<Word>,
    /// Words by address and size.
    by_place: HashMap<(usize, usize), usize>,
    /// Requests that have not begun, in order.
    waiting: VecDeque<WordRequest>,
}

impl Words {
    /// Shares words with other engines that have these locks.
    pub fn share(&mut self, locks: WordLocks) {
        self.locks = Some(locks);
    }

    /// Whether polling again may begin requests. The end of another engine's turn at a word is not announced.
    pub fn is_busy(&self) -> bool {
        self.locks.is_some() && !self.waiting.is_empty()
    }

    /// Queues a request until there is room.
    pub fn request(&mut self, request: WordRequest) {
        self.waiting.push_back(request);
    }

    /// Begins queued requests. Tasks that fail are pushed to `failed`.
    pub fn begin(&mut self, pool: &mut Pool, ctx: &mut StageContext<'_>, failed: &mut Vec<usize>) {
        while let Some(&request) = self.waiting.front() {
            let place = (request.address, request.ty.size());
            if let Some(&key) = self.by_place.get(&place) {
                let word = &mut self.words[key];
                if self.locks.is_some() && word.writes >= TURN {
                    return;
                }
                word.next.push(request);
                self.waiting.pop_front();
                continue;
            }
            let (address, size) = place;
            let Some(chunk) = pool.take(8) else { return };
            if self.locks.as_ref().is_some_and(|locks| !lock(&locks.0).insert(address)) {
                pool.release(chunk);
                return;
            }
            self.waiting.pop_front();
            let (writing, after_data, next, applied) = (false, false, vec![request], Vec::new());
            let word = Word { address, size, chunk, writing, after_data, next, applied, writes: 0 };
            let key = self.words.insert(word);
            self.by_place.insert(place, key);
            // A set without a result does not need the old value.
            if request.op == AmoOp::Set && !request.fetch {
                self.write(key, pool, ctx, failed);
            } else {
                self.copy(key, false, pool, ctx, failed);
            }
        }
    }

    /// Continues a word whose copy has ended. `done` receives tasks and old values, `failed` tasks that failed.
    pub fn copy_ended(
        &mut self,
        key: usize,
        ok: bool,
        (pool, ctx): (&mut Pool, &mut StageContext<'_>),
        done: &mut Vec<(usize, u64)>,
        failed: &mut Vec<usize>,
    ) {
        let Some(word) = self.words.get_mut(key) else { return };
        if !ok {
            return self.give_up(key, pool, failed);
        }
        if word.writing {
            done.append(&mut word.applied);
        }
        if word.next.is_empty() {
            let word = self.remove(key);
            pool.release(word.chunk);
            return;
        }
        self.write(key, pool, ctx, failed);
    }

    /// Applies all waiting requests in the staging buffer, and starts to write the word back.
    fn write(&mut self, key: usize, pool: &mut Pool, ctx: &mut StageContext<'_>, failed: &mut Vec<usize>) {
        let Some(word) = self.words.get_mut(key) else { return };
        let at = pool.ptr(word.chunk);
        let Word { next, applied, .. } = word;
        word.after_data = next.iter().any(|request| request.after_data);
        for request in next.drain(..) {
            // SAFETY: an aligned chunk of the staging buffer that no copy uses now.
            let old = unsafe { amo::apply(at, request.ty, request.op, request.operand, request.compare) };
            applied.push((request.task, old));
        }
        word.writing = true;
        word.writes += 1;
        self.copy(key, true, pool, ctx, failed);
    }

    fn copy(
        &mut self,
        key: usize,
        to_memory: bool,
        pool: &mut Pool,
        ctx: &mut StageContext<'_>,
        failed: &mut Vec<usize>,
    ) {
        let Some(word) = self.words.get(key) else { return };
        let copy = Copy { memory: word.address, host: pool.ptr(word.chunk), len: word.size, to_memory };
        // SAFETY: the chunk is the word's own; the address was checked to be the copy engine's memory.
        if let Err(why) = unsafe { ctx.copies.start(copy, Ticket::Word(key), word.after_data) } {
            tracing::warn!(why, "a word could not be copied");
            self.give_up(key, pool, failed);
        }
    }

    fn remove(&mut self, key: usize) -> Word {
        let word = self.words.remove(key);
        self.by_place.remove(&(word.address, word.size));
        if let Some(locks) = &self.locks {
            lock(&locks.0).remove(&word.address);
        }
        word
    }

    fn give_up(&mut self, key: usize, pool: &mut Pool, failed: &mut Vec<usize>) {
        let word = self.remove(key);
        pool.release(word.chunk);
        failed.extend(word.applied.iter().map(|(task, _)| *task));
        failed.extend(word.next.iter().map(|request| request.task));
    }
}
