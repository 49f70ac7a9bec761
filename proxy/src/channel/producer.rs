//! The producers' end of a channel.

use std::sync::Arc;

use super::codec::Encoded;
use super::doorbell::Doorbell;
use super::error::{PushError, Refused};
use super::layout::CHUNKS;
use super::memory::ChannelMemory;
use super::reply::{ReplyPool, ReplySlot};
use super::request::Request;
use super::sleep::SleepingThreads;
use super::sync::{Ordering, fence};

/// Pushes requests into a channel; any number of threads, each with a clone or a reference.
#[derive(Debug, Clone)]
pub struct Producer {
    memory: Arc<ChannelMemory>,
    doorbell: Arc<Doorbell>,
    replies: Arc<ReplyPool>,
}

impl Producer {
    pub(super) fn new(memory: Arc<ChannelMemory>, doorbell: Arc<Doorbell>) -> Self {
        let replies = Arc::new(ReplyPool::new(Arc::clone(&memory)));
        Self { memory, doorbell, replies }
    }

    /// The channel's memory.
    #[must_use]
    pub fn memory(&self) -> &Arc<ChannelMemory> {
        &self.memory
    }

    /// Wakes one of those that [sleep](ReplySlot::sleep) until their answer comes, if there is any.
    pub fn wake_one(&self) -> bool {
        // Whoever makes the table of sleepers loads behind this fence whether it is to stay.
        fence(Ordering::SeqCst);
        self.memory.sleepers().is_some_and(SleepingThreads::wake_one)
    }

    /// Pushes a request if there is room, and returns its position.
    ///
    /// # Errors
    /// The ring is full, or the request cannot be expressed. Nothing was reserved then.
    #[inline]
    pub fn try_push(&self, request: &Request) -> Result<u64, PushError> {
        self.try_push_encoded(&request.encode()?)
    }

    /// Pushes a request, and calls `wait` as often as the ring is full. Returns its position.
    ///
    /// # Errors
    /// The request cannot be expressed, or `wait` gave up with an error.
    #[inline]
    pub fn push<E: From<Refused>>(&self, request: &Request, mut wait: impl FnMut() -> Result<(), E>) -> Result<u64, E> {
        let encoded = request.encode()?;
        loop {
            match self.try_push_encoded(&encoded) {
                Ok(position) => return Ok(position),
                Err(PushError::Refused(refused)) => return Err(refused.into()),
                Err(PushError::Full { .. }) => wait()?,
            }
        }
    }

    #[inline]
    fn try_push_encoded(&self, encoded: &Encoded) -> Result<u64, PushError> {
        let mut position = self.memory.head().load(Ordering::Relaxed);
        loop {
            if !self.has_room(position) {
                // The head may be old by now: only the newest one says that the ring is full.
                let newest = self.memory.head().load(Ordering::Relaxed);
                if newest == position {
                    return Err(PushError::Full { slots: self.memory.slots() });
                }
                position = newest;
                continue;
            }
            let next = position + 1;
            match self.memory.head().compare_exchange_weak(position, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => break,
                Err(newest) => position = newest,
            }
        }
        // Chunk 0 last: on the strongly ordered CPUs the consumer then never finds half a request.
        for chunk in (0..CHUNKS).rev() {
            self.write_chunk(position, chunk, encoded);
        }
        self.wake_consumer();
        Ok(position)
    }

    /// Pushes as a GPU thread does: reserves first, then calls `wait` until there is room. A GPU's stores of the chunks
    /// are not ordered, so the consumer may see chunk 0 before the others. The position is lost to the channel if
    /// `wait` never returns.
    ///
    /// # Errors
    /// The request cannot be expressed.
    pub fn push_as_gpu(&self, request: &Request, mut wait: impl FnMut()) -> Result<u64, Refused> {
        let encoded = request.encode()?;
        let position = self.memory.head().fetch_add(1, Ordering::Relaxed);
        while !self.has_room(position) {
            wait();
        }
        for chunk in 0..CHUNKS {
            self.write_chunk(position, chunk, &encoded);
        }
        self.wake_consumer();
        Ok(position)
    }

    /// Whether the slot of `position` was taken from its previous lap. Asks the consumer's word only when the copy of
    /// the tail says no.
    #[inline]
    fn has_room(&self, position: u64) -> bool {
        let slots = self.memory.slots() as u64;
        if position < self.memory.cached_tail().load(Ordering::Acquire).wrapping_add(slots) {
            return true;
        }
        let tail = self.memory.tail().load(Ordering::Acquire);
        let room = position < tail.wrapping_add(slots);
        if room {
            // An older tail may overwrite a newer copy; that costs another load, never a slot.
            self.memory.cached_tail().store(tail, Ordering::Release);
        }
        room
    }

    #[inline]
    fn write_chunk(&self, position: u64, chunk: usize, encoded: &Encoded) {
        if encoded.mask & (1 << chunk) == 0 {
            return;
        }
        let [w0, w1] = self.memory.chunk(position, chunk);
        w1.store(encoded.chunks[chunk][1], Ordering::Relaxed);
        w0.store(encoded.chunks[chunk][0] | self.memory.parity(position), Ordering::Release);
    }

    #[inline]
    fn wake_consumer(&self) {
        // Pairs with the fence of `Consumer::prepare_sleep`: it sees the slot, or this sees that it sleeps.
        fence(Ordering::SeqCst);
        if self.memory.sleeping().load(Ordering::Relaxed) != 0 {
            self.ring();
        }
    }

    #[cold]
    fn ring(&self) {
        if self.memory.sleeping().swap(0, Ordering::Relaxed) != 0 {
            self.doorbell.ring();
        }
    }

    /// The position that the next request will get: everything pushed so far lies before it.
    #[must_use]
    #[inline]
    pub fn pushed(&self) -> u64 {
        self.memory.head().load(Ordering::Relaxed)
    }

    /// Every request before this position is delivered. What the engine did for them is visible to the caller.
    #[must_use]
    #[inline]
    pub fn completed(&self) -> u64 {
        self.memory.completed().load(Ordering::Acquire)
    }

    /// How many requests of the channel failed so far. Read after [`completed`](Self::completed), it includes those
    /// before that position.
    #[must_use]
    #[inline]
    pub fn errors(&self) -> u64 {
        self.memory.errors().load(Ordering::Relaxed)
    }

    /// Takes a free entry of the reply table, or `None` when all are in use.
    #[must_use]
    pub fn reply_slot(&self) -> Option<ReplySlot> {
        self.replies.take()
    }
}
