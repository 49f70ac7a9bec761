//! Atomics and signals on words that the CPU cannot touch: read, changed, written back.
//!
//! One word is changed by one sequence of copies at a time, and everything that is asked of it meanwhile is applied in
//! the next round, all at once. So all that goes through here is atomic with one another (with words of one size; as in
//! C, a word is not half of another). Loads, stores and atomics of the device itself on the same word are not.

use std::collections::{HashMap, VecDeque};

use symrail_heap::mover::Copy;
use symrail_transport::amo::{self, AmoOp, AmoType};

use super::window::{Chunk, Pool};
use super::{Ticket, Tools};

/// Something to be done to a word.
#[derive(Debug, Clone, Copy)]
pub(super) struct WordAsk {
    /// The word's address.
    pub address: usize,
    pub ty: AmoType,
    pub op: AmoOp,
    pub operand: u64,
    pub compare: u64,
    /// The old value matters.
    pub fetch: bool,
    /// It tells of data whose copy was started before.
    pub after_data: bool,
    /// Whose it is.
    pub task: usize,
}

/// A word whose copies are under way.
struct Word {
    address: usize,
    size: usize,
    chunk: Chunk,
    writing: bool,
    /// Something of what is written tells of data.
    after_data: bool,
    /// Waiting for the copy that is under way.
    next: Vec<WordAsk>,
    /// Applied, and not written back yet: the task and the old value.
    applied: Vec<(usize, u64)>,
}

/// The words that are being changed.
#[derive(Default)]
pub(super) struct Words {
    words: slab::Slab<Word>,
    /// By address and size.
    by_place: HashMap<(usize, usize), usize>,
    /// Not begun, in order.
    waiting: VecDeque<WordAsk>,
}

impl Words {
    /// Begins something, as soon as there is room for it.
    pub fn ask(&mut self, ask: WordAsk) {
        self.waiting.push_back(ask);
    }

    /// Begins what waits. What cannot be done is pushed to `failed`.
    pub fn begin(&mut self, pool: &mut Pool, tools: &mut Tools<'_>, failed: &mut Vec<usize>) {
        while let Some(&ask) = self.waiting.front() {
            let place = (ask.address, ask.ty.size());
            if let Some(&key) = self.by_place.get(&place) {
                self.words[key].next.push(ask);
                self.waiting.pop_front();
                continue;
            }
            let Some(chunk) = pool.take(8) else { return };
            self.waiting.pop_front();
            let (address, size) = place;
            let (writing, after_data, applied) = (false, false, Vec::new());
            let key = self.words.insert(Word { address, size, chunk, writing, after_data, next: vec![ask], applied });
            self.by_place.insert(place, key);
            // A value that replaces the old one unseen need not wait for it.
            if ask.op == AmoOp::Set && !ask.fetch {
                self.write(key, pool, tools, failed);
            } else {
                self.copy(key, false, pool, tools, failed);
            }
        }
    }

    /// A word's copy has ended: goes on with it. `done` gets tasks and old values; `failed` those that could not be
    /// done.
    pub fn moved(
        &mut self,
        key: usize,
        ok: bool,
        (pool, tools): (&mut Pool, &mut Tools<'_>),
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
            pool.give(word.chunk);
            return;
        }
        self.write(key, pool, tools, failed);
    }

    /// Applies everything that waits for a word, in the window, and starts to write it back.
    fn write(&mut self, key: usize, pool: &mut Pool, tools: &mut Tools<'_>, failed: &mut Vec<usize>) {
        let Some(word) = self.words.get_mut(key) else { return };
        let at = pool.ptr(word.chunk);
        let Word { next, applied, .. } = word;
        word.after_data = next.iter().any(|ask| ask.after_data);
        for ask in next.drain(..) {
            // SAFETY: an aligned chunk of the window that no copy uses now.
            let old = unsafe { amo::apply(at, ask.ty, ask.op, ask.operand, ask.compare) };
            applied.push((ask.task, old));
        }
        word.writing = true;
        self.copy(key, true, pool, tools, failed);
    }

    fn copy(&mut self, key: usize, to_memory: bool, pool: &mut Pool, tools: &mut Tools<'_>, failed: &mut Vec<usize>) {
        let Some(word) = self.words.get(key) else { return };
        let copy = Copy { memory: word.address, host: pool.ptr(word.chunk), len: word.size, to_memory };
        // SAFETY: the chunk is the word's own; the address was checked to be memory of the mover's kind.
        if let Err(why) = unsafe { tools.copies.start(copy, Ticket::Word(key), word.after_data) } {
            tracing::warn!(why, "a word could not be copied");
            self.give_up(key, pool, failed);
        }
    }

    fn remove(&mut self, key: usize) -> Word {
        let word = self.words.remove(key);
        self.by_place.remove(&(word.address, word.size));
        word
    }

    fn give_up(&mut self, key: usize, pool: &mut Pool, failed: &mut Vec<usize>) {
        let word = self.remove(key);
        pool.give(word.chunk);
        failed.extend(word.applied.iter().map(|(task, _)| *task));
        failed.extend(word.next.iter().map(|ask| ask.task));
    }
}
