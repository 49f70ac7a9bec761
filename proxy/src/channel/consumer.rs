//! The consumer, which is the engine's end of a channel.

use std::sync::Arc;

use super::codec::head;
use super::doorbell::Doorbell;
use super::layout::CHUNKS;
use super::memory::{ChannelMemory, Slot};
use super::reply::{self, Reply};
use super::request::{ReplyTo, Request};
use super::sync::{Ordering, fence};

/// Limit of requests that were taken and are not complete: so many per slot, and at least so many.
const OUTSTANDING_PER_SLOT: usize = 4;
const OUTSTANDING_AT_LEAST: usize = 4096;

/// Takes requests from a channel. One thread at a time uses it.
///
/// The engine completes or fails every request from [`next`](Self::next) exactly once, in any order. If the request has
/// a reply, the engine calls [`reply`](Self::reply) first. [`publish`](Self::publish) makes the progress visible to
/// producers.
#[derive(Debug)]
pub struct Consumer {
    memory: Arc<ChannelMemory>,
    doorbell: Arc<Doorbell>,
    next: u64,
    window: Window,
    errors: u64,
    published_tail: u64,
    published_completed: u64,
    /// Reply entries that were answered since the last wake-up of sleepers.
    answered: Vec<u32>,
}

impl Consumer {
    pub(super) fn new(memory: Arc<ChannelMemory>, doorbell: Arc<Doorbell>) -> Self {
        let outstanding = (memory.slots() * OUTSTANDING_PER_SLOT).max(OUTSTANDING_AT_LEAST);
        let window = Window::new(outstanding);
        let answered = Vec::with_capacity(memory.replies());
        Self { memory, doorbell, next: 0, window, errors: 0, published_tail: 0, published_completed: 0, answered }
    }

    /// The channel's memory.
    #[must_use]
    pub fn memory(&self) -> &Arc<ChannelMemory> {
        &self.memory
    }

    /// Whether [`next`](Self::next) may return a request: its first word has arrived. Costs one load.
    #[inline]
    #[must_use]
    pub fn is_ready(&self) -> bool {
        let [first, _] = self.memory.slot(self.next).chunk(0);
        has_arrived(first.load(Ordering::Relaxed), self.memory.parity(self.next))
    }

    /// Takes the next request and its position. `None` when there is none yet, or while too many are incomplete.
    ///
    /// `None` publishes, and so does every half ring, so that a producer that waits for room gets it.
    #[expect(clippy::should_implement_trait, reason = "an iterator's None means the end; here it means not yet")]
    #[inline]
    pub fn next(&mut self) -> Option<(u64, Request)> {
        let taken = self.take();
        if taken.is_none() {
            self.publish();
            return None;
        }
        self.next += 1;
        if self.next - self.published_tail >= self.memory.slots() as u64 / 2 {
            self.publish_tail();
        }
        taken
    }

    #[inline]
    fn take(&mut self) -> Option<(u64, Request)> {
        if self.next - self.window.completed() >= self.window.capacity() {
            return None;
        }
        let (slot, parity) = (self.memory.slot(self.next), self.memory.parity(self.next));
        let mut chunks = [[0; 2]; CHUNKS];
        chunks[0] = read_chunk(slot, 0, parity)?;
        // A malformed slot is taken as it is, because waiting for more of it could take for ever.
        let head = head(chunks[0][0]);
        let used = head.map_or(1, |(_, used)| used);
        for (number, chunk) in chunks.iter_mut().enumerate().skip(1) {
            if used & (1 << number) != 0 {
                *chunk = read_chunk(slot, number, parity)?;
            }
        }
        // Every unused chunk gets this lap's parity (see the module above), so that it cannot look like the next lap
        // but one.
        for chunk in 1..CHUNKS {
            if used & (1 << chunk) == 0 {
                slot.chunk(chunk)[0].store(parity, Ordering::Relaxed);
            }
        }
        Some((self.next, Request::decode_with(&chunks, head)))
    }

    /// Marks a request as delivered. Returns `false`, and does nothing, when `position` is not an incomplete request.
    #[inline]
    pub fn complete(&mut self, position: u64) -> bool {
        self.complete_run(position, 1)
    }

    /// Marks so many requests from `first` on as delivered. Returns `false`, and does nothing, when the first is not an
    /// incomplete request, or the last was not taken.
    #[inline]
    pub fn complete_run(&mut self, first: u64, count: u64) -> bool {
        first.saturating_add(count) <= self.next && self.window.complete(first, count)
    }

    /// Marks a request as failed: it counts as complete, and as an error. Returns `false` as
    /// [`complete`](Self::complete).
    pub fn fail(&mut self, position: u64) -> bool {
        self.fail_run(position, 1)
    }

    /// Marks so many requests from `first` on as failed. Returns `false` as [`complete_run`](Self::complete_run).
    pub fn fail_run(&mut self, first: u64, count: u64) -> bool {
        let fresh = self.complete_run(first, count);
        self.errors += if fresh { count } else { 0 };
        fresh
    }

    /// Answers a requester. Returns `false` when the entry does not exist; then the request was invalid.
    #[inline]
    #[must_use]
    pub fn reply(&mut self, to: ReplyTo, value: u64, failed: bool) -> bool {
        let exists = reply::write(&self.memory, to, Reply { value, failed });
        if exists {
            self.answered.push(to.index);
        }
        exists
    }

    /// Publishes which slots are free, which requests are delivered and how many failed, and wakes sleepers whose
    /// answer is there.
    #[inline]
    pub fn publish(&mut self) {
        self.publish_tail();
        let completed = self.window.completed();
        if completed != self.published_completed {
            self.published_completed = completed;
            // The errors are stored first, so that a reader of the position also observes the failures before it.
            self.memory.errors().store(self.errors, Ordering::Relaxed);
            self.memory.completed().store(completed, Ordering::Release);
        }
        if !self.answered.is_empty() {
            self.wake_answered();
        }
    }

    fn wake_answered(&mut self) {
        // A thread that creates the table of sleepers now loads its answer behind this fence.
        fence(Ordering::SeqCst);
        if let Some(sleepers) = self.memory.sleepers() {
            sleepers.wake(self.answered.iter().copied());
        }
        self.answered.clear();
    }

    #[inline]
    fn publish_tail(&mut self) {
        if self.next != self.published_tail {
            self.published_tail = self.next;
            self.memory.tail().store(self.next, Ordering::Release);
        }
    }

    /// The number of requests that were taken and are not complete.
    #[must_use]
    pub fn incomplete(&self) -> u64 {
        // The window may have completed positions beyond its prefix. They count as incomplete until the prefix reaches
        // them.
        self.next - self.window.completed()
    }

    /// Publishes and prepares to sleep until the [`doorbell`](Self::doorbell) is readable. Returns `false` when a
    /// request waits; then the caller must not sleep. In either case it calls [`wake`](Self::wake) before it continues.
    #[must_use]
    pub fn prepare_sleep(&mut self) -> bool {
        self.publish();
        self.memory.sleeping().store(1, Ordering::Relaxed);
        // Pairs with the fence of `Producer::wake_consumer`.
        fence(Ordering::SeqCst);
        !self.is_ready()
    }

    /// Ends the preparation of [`prepare_sleep`](Self::prepare_sleep).
    pub fn wake(&mut self) {
        self.memory.sleeping().store(0, Ordering::Relaxed);
        self.doorbell.clear();
    }

    /// The doorbell that producers ring.
    #[must_use]
    pub fn doorbell(&self) -> &Arc<Doorbell> {
        &self.doorbell
    }
}

/// Whether a chunk's first word belongs to the lap of this parity.
#[inline]
fn has_arrived(first: u64, parity: u64) -> bool {
    first >> 63 == parity >> 63
}

/// The words of a chunk, if it has arrived. Each is read once.
#[inline]
fn read_chunk(slot: Slot<'_>, chunk: usize, parity: u64) -> Option<[u64; 2]> {
    let [w0, w1] = slot.chunk(chunk);
    let first = w0.load(Ordering::Acquire);
    has_arrived(first, parity).then(|| [first, w1.load(Ordering::Relaxed)])
}

/// Completions out of order: a window over the positions from the first one that is not complete.
#[derive(Debug)]
struct Window {
    /// Bit `position % capacity` is set while the position is complete but an earlier one is not.
    bits: Box<[u64]>,
    completed: u64,
}

impl Window {
    /// A window of at least `positions` positions that starts at 0.
    fn new(positions: usize) -> Self {
        Self { bits: vec![0; positions.max(64).next_power_of_two() / 64].into(), completed: 0 }
    }

    /// The largest distance of a position from [`completed`](Self::completed).
    fn capacity(&self) -> u64 {
        self.bits.len() as u64 * 64
    }

    /// Every position before this one is complete.
    #[inline]
    fn completed(&self) -> u64 {
        self.completed
    }

    /// Marks so many positions from `first` on as complete. Returns `false`, and changes nothing, when one of them is
    /// outside of the window, or when the first is complete already.
    #[inline]
    fn complete(&mut self, first: u64, count: u64) -> bool {
        let Some(distance) = first.checked_sub(self.completed) else { return false };
        if distance.saturating_add(count) > self.capacity() || self.is_done(first) {
            return false;
        }
        if distance > 0 {
            (first..first + count).for_each(|position| {
                let (word, bit) = self.place(position);
                self.bits[word] |= bit;
            });
            return true;
        }
        self.completed += count;
        self.advance();
        true
    }

    #[inline]
    fn is_done(&self, position: u64) -> bool {
        let (word, bit) = self.place(position);
        self.bits[word] & bit != 0
    }

    #[inline]
    fn place(&self, position: u64) -> (usize, u64) {
        let index = position & (self.capacity() - 1);
        ((index / 64) as usize, 1 << (index % 64))
    }

    /// Moves the prefix over all positions that were completed early.
    #[inline]
    fn advance(&mut self) {
        loop {
            let (word, bit) = self.place(self.completed);
            let shift = bit.trailing_zeros();
            let done = (self.bits[word] >> shift).trailing_ones();
            if done == 0 {
                return;
            }
            self.bits[word] &= !((u64::MAX >> (64 - done)) << shift);
            self.completed += u64::from(done);
            if shift + done < 64 {
                return;
            }
        }
    }
}

#[cfg(test)]
#[path = "consumer_tests.rs"]
mod tests;
