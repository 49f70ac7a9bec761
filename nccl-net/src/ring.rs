//! The memory at each end of a connection into which the other end puts.
//!
//! A message that is put into its buffer has a number, and uses the slot with this number modulo [`SLOTS`] in both
//! rings. A slot of the sender's ring is a word, the number plus one, and behind it a descriptor. A slot of the
//! receiver's ring is a word: the size, and the number's [`stamp`] in the lowest 16 bits.
//!
//! A small message whose descriptor has not arrived goes into one of [`EAGER_SLOTS`] of the receiver's ring, from which
//! the receiver copies it. Such messages have numbers of their own, and take the slots in turn. Each has a word, its
//! number plus one, and behind it which receive of which tag it is for, its size, and its bytes.

use std::cell::UnsafeCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use symrail_proxy::session::memory::{HANDLE_SIZE, Memory};

use crate::network::Network;
use crate::report::Result;

/// The number of slots: twice the requests that NCCL has under way, so that those that end out of order block nothing.
pub const SLOTS: usize = 64;
/// The words of a descriptor before the handle: size, offset in the registered memory, tag and length of the handle, and
/// how many messages in eager slots the receiver has taken.
pub const HEAD_WORDS: usize = 4;
/// The words of a descriptor, and those of a slot of the sender's ring.
pub const DESCRIPTOR_WORDS: usize = HEAD_WORDS + HANDLE_SIZE / 8;
pub const SLOT_WORDS: usize = 1 + DESCRIPTOR_WORDS;
/// Messages of up to so many bytes need no descriptor, and so many may be under way.
pub const EAGER_BYTES: usize = 32 << 10;
pub const EAGER_SLOTS: usize = 8;
/// The words of such a message before its bytes, without its number: the receive's number among those of its tag and the
/// tag, and the size.
pub const EAGER_HEAD: usize = 2;
pub const EAGER_WORDS: usize = 1 + EAGER_HEAD + EAGER_BYTES / 8;
/// In place of a size: the message was larger than the buffer.
pub const REFUSED: u64 = (1 << 48) - 1;

/// What the lowest 16 bits of a size's word are for a message; never 0.
pub fn stamp(number: u64) -> u64 {
    number % 0xffff + 1
}

/// The word of a message's size.
pub fn size_word(number: u64, size: u64) -> u64 {
    size << 16 | stamp(number)
}

/// Registered memory of this process. Peers write to it at any time, so it is only accessed by words.
pub struct Ring {
    words: Box<[UnsafeCell<u64>]>,
    memory: Memory,
    network: Arc<Network>,
}

// SAFETY: the words are accessed atomically, or by the one owner of a slot that the protocol names.
unsafe impl Send for Ring {}
// SAFETY: as above.
unsafe impl Sync for Ring {}

impl Ring {
    pub fn new(network: &Arc<Network>, words: usize) -> Result<Ring> {
        let words: Box<[UnsafeCell<u64>]> = (0..words).map(|_| UnsafeCell::new(0)).collect();
        let base = words.as_ptr().cast_mut().cast::<u8>();
        // SAFETY: it is deregistered before it is freed.
        let memory = unsafe { network.session.register(base, size_of_val(&*words)) }?;
        Ok(Ring { words, memory, network: Arc::clone(network) })
    }

    /// The handle for the other end, without the zeros at its end.
    pub fn handle(&self) -> Vec<u8> {
        self.memory.encode()[..self.memory.encoded_len()].to_vec()
    }

    /// A word that the other end writes with or behind data, or one of data behind such a word.
    pub fn load(&self, at: usize) -> u64 {
        // SAFETY: an aligned word of this memory, which only atomic accesses and rails touch.
        self.words.get(at).map_or(0, |word| unsafe { AtomicU64::from_ptr(word.get()) }.load(Ordering::Acquire))
    }

    /// Stores a word of a slot of which the other end does not know.
    pub fn store(&self, at: usize, value: u64) {
        if let Some(word) = self.words.get(at) {
            // SAFETY: as above.
            unsafe { AtomicU64::from_ptr(word.get()) }.store(value, Ordering::Release);
        }
    }

    /// Copies bytes into the words of a slot of which the other end does not know.
    ///
    /// # Safety
    /// The bytes are valid.
    pub unsafe fn fill(&self, at: usize, from: *const u8, len: usize) {
        if len <= 8 * self.words.len().saturating_sub(at) {
            // SAFETY: the caller's promise; inside of this memory, and not of what rails write.
            unsafe { from.copy_to_nonoverlapping(self.address(at).cast_mut(), len) };
        }
    }

    /// Copies bytes out of the words of a slot that the other end has put and leaves alone now.
    ///
    /// # Safety
    /// The destination is valid and not in use.
    pub unsafe fn read(&self, at: usize, to: *mut u8, len: usize) {
        if len <= 8 * self.words.len().saturating_sub(at) {
            // SAFETY: the caller's promise; inside of this memory.
            unsafe { self.address(at).copy_to_nonoverlapping(to, len) };
        }
    }

    /// The address of a word.
    pub fn address(&self, at: usize) -> *const u8 {
        self.words.get(at).map_or(std::ptr::null(), |word| word.get().cast_const().cast())
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        self.network.session.deregister(&self.memory);
    }
}
