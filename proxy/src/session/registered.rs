//! Owners of what a session knows about registered memory.

use std::cell::UnsafeCell;
use std::collections::hash_map::Entry;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use symrail_transport::Result;

use super::Session;
use super::memory::Memory;

/// A session's registered memory, or a share in its record of a peer's. Dropping it deregisters the memory, or drops the
/// record with its last owner. No operation on the memory may be under way then.
pub struct Registered {
    memory: Memory,
    /// `None` for a copy of a handle of the session's own memory, which the owner of its registration deregisters.
    session: Option<Arc<Session>>,
}

impl Registered {
    /// The owner of memory that the session has registered.
    #[must_use]
    pub fn own(session: &Arc<Session>, memory: Memory) -> Registered {
        Registered { memory, session: Some(Arc::clone(session)) }
    }

    /// An owner of the session's record of a peer's memory. The record is dropped with its last owner.
    #[must_use]
    pub fn of_peer(session: &Arc<Session>, memory: Memory) -> Registered {
        let session = (memory.pe() != session.me()).then(|| Arc::clone(session));
        if let Some(session) = &session {
            *symrail_core::lock(&session.owners).entry((memory.pe(), memory.offset())).or_default() += 1;
        }
        Registered { memory, session }
    }
}

impl Deref for Registered {
    type Target = Memory;

    fn deref(&self) -> &Memory {
        &self.memory
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        let Some(session) = &self.session else { return };
        if self.memory.pe() == session.me() {
            return session.deregister(&self.memory);
        }
        // Under the lock, so that a new owner's operations teach the session the memory again only afterwards.
        let mut owners = symrail_core::lock(&session.owners);
        if let Entry::Occupied(mut owner) = owners.entry((self.memory.pe(), self.memory.offset())) {
            *owner.get_mut() -= 1;
            if *owner.get() == 0 {
                owner.remove();
                session.deregister(&self.memory);
            }
        }
    }
}

/// Registered words of this process, which a peer may write at any time.
pub struct Words {
    // It is dropped before the words.
    memory: Registered,
    words: Box<[UnsafeCell<u64>]>,
}

// SAFETY: the words are accessed atomically, or by the one owner of some of them that the caller's protocol names.
unsafe impl Send for Words {}
// SAFETY: as above.
unsafe impl Sync for Words {}

impl Words {
    /// Registers `words` words of 0.
    ///
    /// # Errors
    /// The error of the provider.
    pub fn new(session: &Arc<Session>, words: usize) -> Result<Words> {
        Words::at(Session::take_next, session, words)
    }

    /// As [`Words::new`], for words in which the peer can count arrivals ([`Session::counts_in`]) as long as there are
    /// offsets for them.
    ///
    /// # Errors
    /// As for [`Words::new`].
    pub fn counting(session: &Arc<Session>, words: usize) -> Result<Words> {
        Words::at(Session::take_next_counted, session, words)
    }

    /// `place` gives them a number and an offset.
    fn at(
        place: impl FnOnce(&Session, *const u8, usize) -> Result<(u32, u64)>,
        session: &Arc<Session>,
        words: usize,
    ) -> Result<Words> {
        let words: Box<[UnsafeCell<u64>]> = (0..words).map(|_| UnsafeCell::new(0)).collect();
        let base = words.as_ptr().cast_mut().cast::<u8>();
        let place = place(session, base, size_of_val(&*words))?;
        // SAFETY: the owner deregisters them before they are freed.
        let memory = unsafe { session.register_as(place, base, size_of_val(&*words)) }?;
        Ok(Words { memory: Registered::own(session, memory), words })
    }

    /// The words' handle.
    #[must_use]
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// The word `at`, which the peer writes with or behind data, or one of data behind such a word; 0 if there is none.
    #[must_use]
    #[inline]
    pub fn load(&self, at: usize) -> u64 {
        // SAFETY: an aligned word of this memory, which only atomic accesses and rails touch.
        self.words.get(at).map_or(0, |word| unsafe { AtomicU64::from_ptr(word.get()) }.load(Ordering::Acquire))
    }

    /// Stores a word that the peer does not write now.
    #[inline]
    pub fn store(&self, at: usize, value: u64) {
        if let Some(word) = self.words.get(at) {
            // SAFETY: as above.
            unsafe { AtomicU64::from_ptr(word.get()) }.store(value, Ordering::Release);
        }
    }

    /// Copies bytes into words, if they are inside.
    ///
    /// # Safety
    /// The bytes are valid; the peer does not write these words now.
    pub unsafe fn write_bytes(&self, at: usize, from: *const u8, len: usize) {
        if len <= 8 * self.words.len().saturating_sub(at) {
            // SAFETY: the caller's promise; inside of this memory.
            unsafe { from.copy_to_nonoverlapping(self.address(at).cast_mut(), len) };
        }
    }

    /// Copies bytes out of words, if they are inside.
    ///
    /// # Safety
    /// The destination is valid and not in use; the peer does not write these words now.
    pub unsafe fn read_bytes(&self, at: usize, to: *mut u8, len: usize) {
        if len <= 8 * self.words.len().saturating_sub(at) {
            // SAFETY: the caller's promise; inside of this memory.
            unsafe { self.address(at).copy_to_nonoverlapping(to, len) };
        }
    }

    /// The address of the word `at`; null if there is none.
    #[must_use]
    pub fn address(&self, at: usize) -> *const u8 {
        self.words.get(at).map_or(std::ptr::null(), |word| word.get().cast_const().cast())
    }
}
