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

/// Pushes requests into a channel. Any number of threads may use a clone or a reference.
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

    /// Wakes one requester that [sleeps](ReplySlot::sleep) until its answer arrives, if there is any.
    pub fn wake_one(&self) -> bool {
        // A thread that creates the table of sleepers checks behind this fence whether it has to stay.
        fence(Ordering::SeqCst);
        self.memory.sleepers().is_some_and(SleepingThreads::wake_one)
    }

    /// Pushes a request if there is room, and returns its position.
    ///
    /// # Errors
    /// The ring is full, or the request cannot be encoded. Nothing was reserved then.
    #[inline]
    pub fn try_push(&self, request: &Request) -> Result<u64, PushError> {
        self.try_push_encoded(&request.encode()?)
    }

    /// Pushes a request, and calls `wait` whenever the ring is full. Returns its position.
    ///
    /// # Errors
    /// The request cannot be encoded, or `wait` returned an error.
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
                // The loaded head may be old. Only the newest one proves that the ring is full.
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
        // Chunk 0 is written last, so that on strongly ordered CPUs the consumer never finds a part of a request.
        (0..CHUNKS).rev().for_each(|chunk| self.write_chunk(position, chunk, encoded));
        self.wake_consumer();
        Ok(position)
    }

    /// Pushes as a GPU thread does: reserves first, then calls `wait` until there is room. A GPU's stores of the chunks
    /// are not ordered, so the consumer may observe chunk 0 before the others. The position is lost to the channel if
    /// `wait` never returns.
    ///
    /// # Errors
    /// The request cannot be encoded.
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

    /// Whether the consumer has taken the previous lap's request from the slot of `position`. Reads the consumer's word
    /// only when the copy of the tail shows no room.
    #[inline]
    fn has_room(&self, position: u64) -> bool {
        let slots = self.memory.slots() as u64;
        if position < self.memory.cached_tail().load(Ordering::Acquire).wrapping_add(slots) {
            return true;
        }
        let tail = self.memory.tail().load(Ordering::Acquire);
        let room = position < tail.wrapping_add(slots);
        if room {
            // An older tail may overwrite a newer copy. That costs another load, but never a slot.
            self.memory.cached_tail().store(tail, Ordering::Release);
        }
        room
    }

    #[inline]
    fn write_chunk(&self, position: u64, chunk: usize, encoded: &Encoded) {
        if encoded.mask & (1 << chunk) == 0 {
            return;
        }
        let [w0, w1] = self.memory.slot(position).chunk(chunk);
        w1.store(encoded.chunks[chunk][1], Ordering::Relaxed);
        w0.store(encoded.chunks[chunk][0] | self.memory.parity(position), Ordering::Release);
    }

    #[inline]
    fn wake_consumer(&self) {
        // The fence pairs with that of `Consumer::prepare_sleep`: either the consumer observes the slot, or this thread
        // observes that it sleeps.
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

    /// The position of the next request. All pushed requests are before it.
    #[must_use]
    #[inline]
    pub fn pushed(&self) -> u64 {
        self.memory.head().load(Ordering::Relaxed)
    }

    /// Every request before this position is delivered, and the effects of the engine's work for it are visible to the
    /// caller.
    #[must_use]
    #[inline]
    pub fn completed(&self) -> u64 {
        self.memory.completed().load(Ordering::Acquire)
    }

    /// The number of the channel's failed requests so far. Read after [`completed`](Self::completed), it includes those
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
