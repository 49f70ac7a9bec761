//! Answers to one requester: a fetched value, or the completion of exactly this request.
//!
//! An entry is `{value, state}`. The consumer stores the value and then, with release, the state: the generation of the
//! request, and whether it failed. The requester owns the entry, chooses a new generation for each request and waits
//! for it, so that it can reuse the entry at once. It never sends another request while an answer is outstanding.
//! Otherwise a late answer to an abandoned request could overwrite the value of a newer one between its state and its
//! reading.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::layout;
use super::memory::ChannelMemory;
use super::request::ReplyTo;
use super::sync::Ordering;

const GENERATION: u64 = (1 << layout::GENERATION_BITS) - 1;

/// The answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reply {
    /// The old or fetched value, zero-extended; 0 where the request has none.
    pub value: u64,
    /// Whether the request failed. Then the value is undefined.
    pub failed: bool,
}

/// Writes an answer. Returns `false` when the entry does not exist.
pub(super) fn write(memory: &ChannelMemory, to: ReplyTo, reply: Reply) -> bool {
    let Some([value, state]) = memory.reply(to.index) else { return false };
    value.store(reply.value, Ordering::Relaxed);
    let failed = u64::from(reply.failed) << layout::REPLY_FAILED_SHIFT;
    state.store(failed | u64::from(to.generation) & GENERATION, Ordering::Release);
    true
}

/// The free entries of a channel's reply table. CPU threads share one pool; a GPU divides its table by itself.
#[derive(Debug)]
pub(super) struct ReplyPool {
    memory: Arc<ChannelMemory>,
    /// Entries and the generations of their last requests.
    free: Mutex<Vec<(u32, u32)>>,
}

impl ReplyPool {
    pub(super) fn new(memory: Arc<ChannelMemory>) -> Self {
        let free = (0..memory.replies() as u32).rev().map(|index| (index, 0)).collect();
        Self { memory, free: Mutex::new(free) }
    }

    /// An entry whose last request was answered, or `None` when there is none.
    pub(super) fn take(self: &Arc<Self>) -> Option<ReplySlot> {
        let mut free = symrail_core::lock(&self.free);
        let at =
            free.iter().rposition(|(index, generation)| self.state(*index) & GENERATION == u64::from(*generation))?;
        let (index, generation) = free.swap_remove(at);
        drop(free);
        Some(ReplySlot { pool: Arc::clone(self), index, generation })
    }

    fn state(&self, index: u32) -> u64 {
        self.memory.reply(index).map_or(0, |[_, state]| state.load(Ordering::Acquire))
    }
}

/// One entry of the reply table. One requester owns it, and dropping it frees it.
#[derive(Debug)]
pub struct ReplySlot {
    pool: Arc<ReplyPool>,
    index: u32,
    generation: u32,
}

impl ReplySlot {
    /// Starts a new request. Returns the value to put in it, or `None` while the previous request is unanswered.
    #[must_use]
    #[inline]
    pub fn begin(&mut self) -> Option<ReplyTo> {
        self.poll()?;
        self.generation = (self.generation + 1) & GENERATION as u32;
        Some(ReplyTo { index: self.index, generation: self.generation })
    }

    /// Undoes the last [`begin`](Self::begin), because its request was not pushed.
    pub fn cancel(&mut self) {
        self.generation = self.generation.wrapping_sub(1) & GENERATION as u32;
    }

    /// The answer to the last request, once it has arrived.
    #[must_use]
    #[inline]
    pub fn poll(&self) -> Option<Reply> {
        let [value, state] = self.pool.memory.reply(self.index)?;
        let state = state.load(Ordering::Acquire);
        if state & GENERATION != u64::from(self.generation) {
            return None;
        }
        Some(Reply { value: value.load(Ordering::Relaxed), failed: state >> layout::REPLY_FAILED_SHIFT != 0 })
    }
}

impl ReplySlot {
    /// Sleeps until the answer to the last request arrives or [`Producer::wake_one`](super::Producer::wake_one) wakes
    /// the thread, for at most `longest`. It does not sleep where that has happened already, or where `stay` returns
    /// `false`.
    pub fn sleep(&self, longest: Duration, stay: impl Fn() -> bool) {
        self.pool.memory.sleeping_threads().sleep(self.index, longest, || stay() && self.poll().is_none());
    }
}

impl Drop for ReplySlot {
    fn drop(&mut self) {
        let mut free = symrail_core::lock(&self.pool.free);
        free.push((self.index, self.generation));
    }
}

#[cfg(all(test, not(loom)))]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn pool(replies: usize) -> Arc<ReplyPool> {
        Arc::new(ReplyPool::new(Arc::new(ChannelMemory::new(2, replies).unwrap())))
    }

    #[test]
    fn an_entry_waits_for_its_own_generation() {
        let pool = pool(1);
        let mut slot = pool.take().unwrap();
        for round in 1..=5 {
            let to = slot.begin().unwrap();
            assert_eq!(slot.poll(), None);
            assert_eq!(slot.begin(), None, "one request at a time");
            assert!(write(&pool.memory, to, Reply { value: round, failed: round == 3 }));
            assert_eq!(slot.poll(), Some(Reply { value: round, failed: round == 3 }));
        }
    }

    #[test]
    fn an_abandoned_entry_is_not_lent_before_its_late_answer() {
        let pool = pool(1);
        let mut slot = pool.take().unwrap();
        assert!(pool.take().is_none(), "one entry, one owner");
        let late = slot.begin().unwrap();
        drop(slot);
        assert!(pool.take().is_none());
        write(&pool.memory, late, Reply { value: 1, failed: false });
        let mut slot = pool.take().unwrap();
        assert_ne!(slot.begin().unwrap().generation, late.generation);
    }

    #[test]
    fn a_cancelled_request_leaves_the_entry_usable() {
        let mut slot = pool(1).take().unwrap();
        let first = slot.begin().unwrap();
        slot.cancel();
        assert_eq!(slot.begin(), Some(first));
    }

    #[test]
    fn entries_that_do_not_exist_are_refused() {
        let pool = pool(2);
        assert!(!write(&pool.memory, ReplyTo { index: 2, generation: 1 }, Reply { value: 0, failed: false }));
    }
}
