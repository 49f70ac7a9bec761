//! Small writes to a GPU's memory that a waiting kernel makes for the CPU.
//!
//! The CPU reaches a GPU's memory through the driver only, which takes microseconds for a word. A kernel that waits for
//! something has nothing else to do: it polls host memory for writes that it is to make, and makes them.
//!
//! Who waits says so, one *reader* at a time, in a word that it alone writes: whether it is there, the number of its
//! turn (*epoch*), and how many entries have been taken since the start. The CPU makes entries for the epoch that it
//! sees, and for no other. When it sees another one, or that nobody is there, then what has not been counted will never
//! be taken, and comes back. So no word is written by both, each entry is done by one of them, and nobody waits for the
//! other.
//!
//! | bytes | what |
//! |---|---|
//! | 0 | the reader's word: bit 63 it is there, epoch, number of the last entry taken |
//! | 128 … | 16 entries of two halves: address, tag; value, tag |
//!
//! An entry's tag has the size of the value, the epoch and the entry's number, twice, so that each half of an entry,
//! which is read at once, tells whether it is there. Each half begins a line of its own, since a GPU's loads of one
//! line of host memory go one behind the other, and those into different ones at the same time.
//! `kernels/include/symrail/mail.cuh` is the reader's side.

use std::any::Any;
use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::copy::copy;
use crate::copy_engine::Copy;

/// Bytes of a mailbox.
pub const MAILBOX_BYTES: usize = ENTRIES_AT + 2 * ENTRIES * HALF_BYTES;
/// Position and number of entries, and the distance of their halves.
pub const ENTRIES_AT: usize = 128;
/// See [`ENTRIES_AT`].
pub const ENTRIES: usize = 16;
/// See [`ENTRIES_AT`].
pub const HALF_BYTES: usize = 128;
/// The reader is there.
pub const PRESENT: u64 = 1 << 63;
/// The lowest bit of the epoch, and the bits of epoch and number together.
pub const EPOCH_SHIFT: u32 = 38;
/// See [`EPOCH_SHIFT`].
pub const POSITION: u64 = (1 << 62) - 1;
/// The lowest bit of the size in a tag, a power of two.
pub const SIZE_SHIFT: u32 = 62;
const NUMBER: u64 = (1 << EPOCH_SHIFT) - 1;
/// No entry has this tag: no number is so high.
const BLANK: u64 = u64::MAX;

/// The CPU's side.
pub struct Mailbox {
    base: NonNull<u8>,
    /// The owner of the memory.
    _memory: Arc<dyn Any + Send + Sync>,
    /// The reader's word, as it was seen last.
    said: u64,
    /// The reader's epoch for which there are entries, and the number of the last one that it has taken.
    epoch: u64,
    taken: u64,
    /// Entries that have not been counted, the oldest first.
    offered: VecDeque<(Copy, u64)>,
}

// SAFETY: the pointers are to memory that is kept, and that belongs to the process; whoever has the mailbox uses them.
unsafe impl Send for Mailbox {}

impl Mailbox {
    /// A mailbox in zeroed memory.
    ///
    /// # Safety
    /// [`MAILBOX_BYTES`] bytes at `base`, aligned to [`HALF_BYTES`], are `memory`'s as long as that lives, and reached
    /// through atomics only.
    #[must_use]
    pub unsafe fn new(base: NonNull<u8>, memory: Arc<dyn Any + Send + Sync>) -> Self {
        Mailbox { base, _memory: memory, said: 0, epoch: 0, taken: 0, offered: VecDeque::with_capacity(ENTRIES) }
    }

    /// The number of entries that were neither taken nor given back.
    #[must_use]
    pub fn len(&self) -> usize {
        self.offered.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.offered.is_empty()
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        // SAFETY: inside of the mailbox and aligned, as all places here are; others reach it through atomics, as
        // promised.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().wrapping_add(at).cast()) }
    }

    /// What readers have said last: whether one is there, its epoch, what it has taken. Of two that follow one another
    /// closely the earlier one's words may arrive later: the position tells.
    fn reader(&mut self) -> (bool, u64, u64) {
        let word = self.word(0).load(Ordering::Acquire);
        // Positions wrap; the shift makes the difference's highest bit its sign.
        if ((word & POSITION).wrapping_sub(self.said & POSITION) << 2) as i64 >= 0 {
            self.said = word;
        }
        (self.said & PRESENT != 0, self.said & POSITION & !NUMBER, self.said & NUMBER)
    }

    /// The number of writes that the reader would take now.
    pub fn room(&mut self) -> usize {
        let (present, epoch, _) = self.reader();
        let here = present && (self.offered.is_empty() || epoch == self.epoch);
        if here { ENTRIES - self.offered.len() } else { 0 }
    }

    fn entry(&self, number: u64) -> usize {
        ENTRIES_AT + 2 * (number as usize % ENTRIES) * HALF_BYTES
    }

    /// Leaves a write of one aligned value of 1 to 8 bytes to the reader. `false` where it is none, nobody is there or
    /// no entry free.
    ///
    /// # Safety
    /// `write.host` can be read; `write.memory` is memory that the reader's device may write.
    pub unsafe fn offer(&mut self, write: Copy, ticket: u64) -> bool {
        let len = write.len;
        if !len.is_power_of_two() || len > 8 || !write.memory.is_multiple_of(len) || self.offered.len() == ENTRIES {
            return false;
        }
        let (present, epoch, taken) = self.reader();
        if self.offered.is_empty() {
            (self.epoch, self.taken) = (epoch, taken);
        }
        if !present || epoch != self.epoch {
            return false;
        }
        let mut value = [0u8; 8];
        // SAFETY: the caller's promise; at most 8 bytes, as was checked.
        unsafe { copy(value.as_mut_ptr(), write.host, len) };
        let number = (self.taken + self.offered.len() as u64 + 1) & NUMBER;
        let tag = u64::from(len.trailing_zeros()) << SIZE_SHIFT | epoch | number;
        let at = self.entry(number);
        for (at, what) in [(at, write.memory as u64), (at + HALF_BYTES, u64::from_le_bytes(value))] {
            self.word(at).store(what, Ordering::Relaxed);
            self.word(at + 8).store(tag, Ordering::Release);
        }
        self.offered.push_back((write, ticket));
        true
    }

    /// Tells whose writes have been taken, and gives back, in order, those that nobody will take.
    pub fn poll(&mut self, taken: &mut dyn FnMut(u64), back: &mut dyn FnMut(Copy, u64)) {
        if self.offered.is_empty() {
            return;
        }
        let (present, epoch, number) = self.reader();
        while self.taken != number {
            let Some((_, ticket)) = self.offered.pop_front() else { break };
            self.taken = (self.taken + 1) & NUMBER;
            taken(ticket);
        }
        if present && epoch == self.epoch {
            return;
        }
        let mut number = self.taken;
        while let Some((write, ticket)) = self.offered.pop_front() {
            number = (number + 1) & NUMBER;
            let at = self.entry(number);
            self.word(at + 8).store(BLANK, Ordering::Relaxed);
            self.word(at + HALF_BYTES + 8).store(BLANK, Ordering::Relaxed);
            back(write, ticket);
        }
    }
}

/// Memory of a mailbox that no device reaches.
#[repr(align(128))]
struct Place([AtomicU64; MAILBOX_BYTES / 8]);

/// A mailbox and its reader in memory of their own, for tests.
#[must_use]
pub fn pair() -> (Mailbox, Reader) {
    let place = Arc::new(Place([const { AtomicU64::new(0) }; MAILBOX_BYTES / 8]));
    let base = NonNull::from(&place.0).cast();
    // SAFETY: zeroed memory of its own, which is made of atomics.
    let mailbox = unsafe { Mailbox::new(base, Arc::clone(&place) as _) };
    (mailbox, Reader { base, _memory: place, position: 0, there: false })
}

/// The reader's side, for what stands in for a kernel in tests. It is not there yet.
pub struct Reader {
    base: NonNull<u8>,
    _memory: Arc<dyn Any + Send + Sync>,
    position: u64,
    there: bool,
}

// SAFETY: as for the mailbox.
unsafe impl Send for Reader {}

impl Reader {
    fn word(&self, at: usize) -> &AtomicU64 {
        // SAFETY: as for the mailbox.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().wrapping_add(at).cast()) }
    }

    /// Whether it is there.
    #[must_use]
    pub fn is_there(&self) -> bool {
        self.there
    }

    /// Comes, or goes.
    pub fn set_present(&mut self, there: bool) {
        if there && !self.there {
            self.position = (self.position + (1 << EPOCH_SHIFT)) & POSITION;
        }
        self.there = there;
        self.tell();
    }

    fn tell(&self) {
        let present = if self.there { PRESENT } else { 0 };
        self.word(0).store(present | self.position, Ordering::Release);
    }

    /// Takes the next entry, if it has arrived: `write` gets the address and the value's bytes.
    pub fn take(&mut self, write: impl FnOnce(usize, &[u8])) -> bool {
        let next = self.position & !NUMBER | (self.position + 1) & NUMBER;
        let at = ENTRIES_AT + 2 * ((next & NUMBER) as usize % ENTRIES) * HALF_BYTES;
        let tags = [at + 8, at + HALF_BYTES + 8].map(|at| self.word(at).load(Ordering::Acquire));
        if !self.there || tags.iter().any(|tag| tag & POSITION != next) {
            return false;
        }
        let value = self.word(at + HALF_BYTES).load(Ordering::Relaxed).to_le_bytes();
        let bytes = value.get(..1 << (tags[0] >> SIZE_SHIFT)).unwrap_or_default();
        write(self.word(at).load(Ordering::Relaxed) as usize, bytes);
        self.position = next;
        self.tell();
        true
    }
}
