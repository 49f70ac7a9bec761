//! The memory through which one end of a connection gets notifications from the other.
//!
//! A notification is cut into fragments of at most [`FRAGMENT`] bytes. A fragment has a number, and uses the slot with
//! this number modulo [`SLOTS`]: a stamp, and behind it the bytes. The sender writes the bytes and then the stamp
//! ([`stamp`]), so a stamp with the right number shows that the bytes are there. In front of the slots is the word by
//! which the other end tells how many fragments it has taken out of *its* ring.

use std::cell::UnsafeCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use symrail_proxy::session::Session;
use symrail_proxy::session::memory::{HANDLE_SIZE, Memory};
use symrail_transport::Result;

/// The number of slots.
pub const SLOTS: u64 = 32;
/// The most bytes of a fragment.
pub const FRAGMENT: usize = 8 * (SLOT_WORDS - 1);
const SLOT_WORDS: usize = 64;
const WORDS: usize = 1 + SLOTS as usize * SLOT_WORDS;
/// Of a stamp: whether another fragment follows, and the bytes.
const MORE: u64 = 1 << 15;
const LEN: u64 = MORE - 1;

/// The stamp of fragment `number` with `len` bytes; never 0.
pub fn stamp(number: u64, len: usize, more: bool) -> u64 {
    (number + 1) << 16 | if more { MORE } else { 0 } | len as u64
}

/// The offset of a fragment's stamp in the ring, in bytes. Its bytes follow.
pub fn slot(number: u64) -> u64 {
    8 * (1 + (number % SLOTS) * SLOT_WORDS as u64)
}

/// Registered memory of this process. The peer writes to it at any time, so it is accessed by words only.
pub struct Ring {
    words: Box<[UnsafeCell<u64>]>,
    memory: Memory,
    session: Arc<Session>,
}

// SAFETY: the words are accessed atomically only.
unsafe impl Send for Ring {}
// SAFETY: as above.
unsafe impl Sync for Ring {}

impl Ring {
    pub fn new(session: &Arc<Session>) -> Result<Ring> {
        let words: Box<[UnsafeCell<u64>]> = (0..WORDS).map(|_| UnsafeCell::new(0)).collect();
        let base = words.as_ptr().cast_mut().cast::<u8>();
        // SAFETY: it is deregistered before it is freed.
        let memory = unsafe { session.register(base, size_of_val(&*words)) }?;
        Ok(Ring { words, memory, session: Arc::clone(session) })
    }

    /// The handle for the peer, without the zeros at its end.
    pub fn handle(&self) -> Vec<u8> {
        self.memory.encode()[..self.memory.encoded_len()].to_vec()
    }

    /// The number of fragments that the peer has taken out of its ring.
    pub fn taken_by_peer(&self) -> u64 {
        self.load(0)
    }

    /// The bytes of fragment `number`, if it has arrived, and whether another one follows.
    pub fn fragment(&self, number: u64) -> Option<(Vec<u8>, bool)> {
        let first = slot(number) as usize / 8;
        let found = self.load(first);
        if found & !(MORE | LEN) != stamp(number, 0, false) {
            return None;
        }
        let len = FRAGMENT.min((found & LEN) as usize);
        let mut bytes: Vec<u8> =
            (0..len.div_ceil(8)).flat_map(|word| self.load(first + 1 + word).to_ne_bytes()).collect();
        bytes.truncate(len);
        Some((bytes, found & MORE != 0))
    }

    fn load(&self, at: usize) -> u64 {
        // SAFETY: an aligned word of this memory, which only atomic accesses and rails touch.
        self.words.get(at).map_or(0, |word| unsafe { AtomicU64::from_ptr(word.get()) }.load(Ordering::Acquire))
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        self.session.deregister(&self.memory);
    }
}

/// The handle of the peer's ring. What the session knows about it is dropped with this.
pub struct Theirs {
    pub handle: Box<[u8; HANDLE_SIZE]>,
    session: Arc<Session>,
}

impl Theirs {
    pub fn new(session: &Arc<Session>, pe: u32, handle: &[u8]) -> Result<Theirs> {
        Ok(Theirs { handle: Box::new(Memory::of_peer(pe, handle)?), session: Arc::clone(session) })
    }
}

impl Drop for Theirs {
    fn drop(&mut self) {
        // Memory of this process is deregistered by its owner alone.
        if let Ok(memory) = Memory::decode(&self.handle)
            && memory.pe() != self.session.me()
        {
            self.session.deregister(&memory);
        }
    }
}
