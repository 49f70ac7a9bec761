//! Small writes to a GPU's memory that a waiting kernel makes for the CPU.
//!
//! The CPU can access a GPU's memory only through the driver, which costs microseconds for a word. A waiting kernel is
//! otherwise idle, so it polls host memory for writes from the CPU, and performs them.
//!
//! One waiting thread at a time is the *reader*. It announces itself in a word that it alone writes: whether it is
//! present, the number of its turn (*epoch*), and the number of entries taken since the start. The CPU makes entries
//! only for the epoch that it observes. When it observes another epoch, or an absent reader, the entries that are not
//! counted as taken will never be taken, and return to the caller. So no word is written by both sides, exactly one
//! side performs each entry, and neither waits for the other.
//!
//! | bytes | content |
//! |---|---|
//! | 0 | the reader's word: bit 63 is its presence, then the epoch, then the number of the last entry taken |
//! | 128 … | 16 entries of two halves: address, tag; value, tag |
//!
//! An entry's tag has the size of the value, the epoch and the entry's number. It is stored twice, so that each half of
//! an entry, which is read at once, shows whether it is there. Each half begins a line of its own, since a GPU loads
//! from one line of host memory serially, and from different lines in parallel. `kernels/include/symrail/mail.cuh`
//! implements the reader.

use std::any::Any;
use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::copy::copy;
use crate::copy_engine::Copy;

/// Size of a mailbox in bytes.
pub const MAILBOX_BYTES: usize = ENTRIES_AT + 2 * ENTRIES * HALF_BYTES;
/// Position and number of entries, and the distance of their halves.
pub const ENTRIES_AT: usize = 128;
/// See [`ENTRIES_AT`].
pub const ENTRIES: usize = 16;
/// See [`ENTRIES_AT`].
pub const HALF_BYTES: usize = 128;
/// The bit for the reader's presence.
pub const PRESENT: u64 = 1 << 63;
/// The lowest bit of the epoch, and the bits of epoch and number together.
pub const EPOCH_SHIFT: u32 = 38;
/// See [`EPOCH_SHIFT`].
pub const POSITION: u64 = (1 << 62) - 1;
/// The lowest bit of the size in a tag, a power of two.
pub const SIZE_SHIFT: u32 = 62;
const NUMBER: u64 = (1 << EPOCH_SHIFT) - 1;
/// No entry has this tag, because no number is so high.
const BLANK: u64 = u64::MAX;

/// The CPU's side of a mailbox.
pub struct Mailbox {
    base: NonNull<u8>,
    /// The owner of the memory.
    _memory: Arc<dyn Any + Send + Sync>,
    /// The newest value of the reader's word that the CPU has observed.
    said: u64,
    /// The reader's epoch for which there are entries, and the number of the last entry that it has taken.
    epoch: u64,
    taken: u64,
    /// Entries that are not known to be taken, the oldest first.
    offered: VecDeque<(Copy, u64)>,
}

// SAFETY: the pointers are to memory that is kept alive and belongs to the process; only the mailbox's owner uses them.
unsafe impl Send for Mailbox {}

impl Mailbox {
    /// A mailbox in zeroed memory.
    ///
    /// # Safety
    /// [`MAILBOX_BYTES`] bytes at `base`, aligned to [`HALF_BYTES`], are `memory`'s as long as that lives, and are
    /// accessed only by atomics.
    #[must_use]
    pub unsafe fn new(base: NonNull<u8>, memory: Arc<dyn Any + Send + Sync>) -> Self {
        Mailbox { base, _memory: memory, said: 0, epoch: 0, taken: 0, offered: VecDeque::with_capacity(ENTRIES) }
    }

    /// The number of entries that were neither taken nor returned.
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
        // SAFETY: inside of the mailbox and aligned, as all offsets here are; others access it by atomics, as the
        // creator promised.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().wrapping_add(at).cast()) }
    }

    /// The newest state of readers: whether one is present, its epoch, and the number of entries it has taken. The
    /// earlier of two consecutive readers may write its word later; the position shows that.
    fn reader(&mut self) -> (bool, u64, u64) {
        let word = self.word(0).load(Ordering::Acquire);
        // Positions wrap. The shift moves the difference's highest bit to the sign.
        if ((word & POSITION).wrapping_sub(self.said & POSITION) << 2) as i64 >= 0 {
            self.said = word;
        }
        (self.said & PRESENT != 0, self.said & POSITION & !NUMBER, self.said & NUMBER)
    }

    /// The number of writes that the reader would accept now.
    pub fn room(&mut self) -> usize {
        let (present, epoch, _) = self.reader();
        let here = present && (self.offered.is_empty() || epoch == self.epoch);
        if here { ENTRIES - self.offered.len() } else { 0 }
    }

    fn entry(&self, number: u64) -> usize {
        ENTRIES_AT + 2 * (number as usize % ENTRIES) * HALF_BYTES
    }

    /// Passes a write of one aligned value of 1 to 8 bytes to the reader. Returns `false` where it is not such a write,
    /// no reader is present, or no entry is free.
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

    /// Reports the tickets of entries that have been taken, and returns, in order, those that no reader will take.
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

/// The memory of a mailbox without a device.
#[repr(align(128))]
struct Place([AtomicU64; MAILBOX_BYTES / 8]);

/// A mailbox and its reader in memory of their own, for tests.
#[must_use]
pub fn pair() -> (Mailbox, Reader) {
    let place = Arc::new(Place([const { AtomicU64::new(0) }; MAILBOX_BYTES / 8]));
    let base = NonNull::from(&place.0).cast();
    // SAFETY: zeroed memory of its own, which consists of atomics.
    let mailbox = unsafe { Mailbox::new(base, Arc::clone(&place) as _) };
    (mailbox, Reader { base, _memory: place, position: 0, there: false })
}

/// The reader's side, for the stand-in of a kernel in tests. It is not present at first.
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

    /// Whether it is present.
    #[must_use]
    pub fn is_there(&self) -> bool {
        self.there
    }

    /// Makes the reader present or absent.
    pub fn set_present(&mut self, there: bool) {
        if there && !self.there {
            self.position = (self.position + (1 << EPOCH_SHIFT)) & POSITION;
        }
        self.there = there;
        self.publish();
    }

    fn publish(&self) {
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
        self.publish();
        true
    }
}
