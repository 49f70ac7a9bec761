//! Active sets: PEs that meet through an array of the caller (`pSync`), as OpenSHMEM before teams had it.
//!
//! Unlike a team, an active set has no memory of what it did before: the same array may serve other PEs next. So its words
//! are back at 0 whenever a call returns, and everything goes through meetings.

use std::sync::atomic::{AtomicU64, Ordering};

use super::{Members, Reduction, direct};
use crate::error::Result;
use crate::rma::{SignalOp, Strided};
use crate::runtime::Runtime;
use crate::team::Group;

/// Words that the array must have.
pub const SYNC_WORDS: usize = 4;
/// Children of a PE in the tree by which a set meets.
const FAN: u32 = 4;

/// PEs and the symmetric array through which they meet, of [`SYNC_WORDS`] words, all 0 on all of them.
pub struct ActiveSet<'rt> {
    runtime: &'rt Runtime,
    group: Group,
    words: *mut u64,
}

impl Members for ActiveSet<'_> {
    fn runtime(&self) -> &Runtime {
        self.runtime
    }

    fn group(&self) -> Group {
        self.group
    }

    /// Arrivals are counted up a tree; the release comes down.
    fn meet(&self) -> Result<()> {
        let (me, size) = (self.group.me(), self.group.size());
        let children = (1..=FAN).map(|i| me * FAN + i).take_while(|&child| child < size);
        let arrivals = children.clone().count() as u64;
        if arrivals > 0 {
            self.take(0, arrivals)?;
        }
        if me > 0 {
            self.runtime.signal_op(self.word(0), 1, SignalOp::Add, self.group.pe((me - 1) / FAN))?;
            self.take(1, 1)?;
        }
        for child in children {
            self.runtime.signal_op(self.word(1), 1, SignalOp::Add, self.group.pe(child))?;
        }
        Ok(())
    }
}

impl<'rt> ActiveSet<'rt> {
    /// The PEs of `group`, meeting at `words`.
    ///
    /// # Safety
    /// `words` is aligned and valid for reads and writes of [`SYNC_WORDS`] words, and used for nothing else meanwhile.
    pub unsafe fn new(runtime: &'rt Runtime, group: Group, words: *mut u64) -> ActiveSet<'rt> {
        ActiveSet { runtime, group, words }
    }

    fn word(&self, index: usize) -> *mut u64 {
        self.words.wrapping_add(index)
    }

    /// Waits until a word has a value, and sets it to 0.
    fn take(&self, index: usize, value: u64) -> Result<()> {
        let word = self.word(index);
        self.runtime.wait_for("a collective of an active set", self.group, || {
            // SAFETY: `new`'s promise.
            (unsafe { Runtime::load(word.cast(), 8) } == value).then_some(())
        })?;
        // SAFETY: `new`'s promise. Nobody adds to it before everybody has met.
        unsafe { AtomicU64::from_ptr(word) }.store(0, Ordering::Release);
        Ok(())
    }

    /// Waits for all.
    ///
    /// # Errors
    /// Words that are not symmetric, or a peer that does not answer.
    pub fn sync(&self) -> Result<()> {
        self.meet()
    }

    /// Completes everything that this PE has issued, then waits for all.
    ///
    /// # Errors
    /// As for [`ActiveSet::sync`], or an operation that failed.
    pub fn barrier(&self) -> Result<()> {
        self.runtime.quiet()?;
        self.meet()
    }

    /// Copies `bytes` from `source` on the PE with index `root` to `dest` on all others.
    ///
    /// # Safety
    /// As for [`Team`](crate::Team)'s operations.
    ///
    /// # Errors
    /// As for [`Team`](crate::Team)'s operations.
    pub unsafe fn broadcast(&self, dest: *mut u8, source: *const u8, bytes: usize, root: u32) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { direct::broadcast(self, dest, source, bytes, root) }
    }

    /// As [`Team::fcollect`](crate::Team::fcollect).
    ///
    /// # Safety
    /// As for [`Team`](crate::Team)'s operations.
    ///
    /// # Errors
    /// As for [`Team`](crate::Team)'s operations.
    pub unsafe fn fcollect(&self, dest: *mut u8, source: *const u8, bytes: usize) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { direct::to_all(self, dest, source, bytes, bytes * self.group.me() as usize) }
    }

    /// As [`Team::collect`](crate::Team::collect). Each PE tells the next where its block starts.
    ///
    /// # Safety
    /// As for [`Team`](crate::Team)'s operations.
    ///
    /// # Errors
    /// As for [`Team`](crate::Team)'s operations.
    pub unsafe fn collect(&self, dest: *mut u8, source: *const u8, bytes: usize) -> Result<()> {
        let me = self.group.me();
        let mut before = 0;
        if me > 0 {
            let word = self.word(2);
            let seen = self.runtime.wait_for("a collect of an active set", self.group, || {
                // SAFETY: `new`'s promise.
                Some(unsafe { Runtime::load(word.cast(), 8) }).filter(|&seen| seen != 0)
            })?;
            // SAFETY: `new`'s promise. It is written again in the next collect only, after all have met.
            unsafe { AtomicU64::from_ptr(word) }.store(0, Ordering::Release);
            before = seen - 1;
        }
        if me + 1 < self.group.size() {
            let next = before + bytes as u64 + 1;
            self.runtime.signal_op(self.word(2), next, SignalOp::Set, self.group.pe(me + 1))?;
        }
        // SAFETY: the caller's promise.
        unsafe { direct::to_all(self, dest, source, bytes, before as usize) }
    }

    /// As [`Team::alltoalls`](crate::Team::alltoalls).
    ///
    /// # Safety
    /// As for [`Team`](crate::Team)'s operations.
    ///
    /// # Errors
    /// As for [`Team`](crate::Team)'s operations.
    pub unsafe fn alltoalls(&self, dest: *mut u8, source: *const u8, shape: Strided) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { direct::all_to_all_strided(self, dest, source, shape) }
    }

    /// As [`Team::reduce`](crate::Team::reduce), but that sources are symmetric whatever their size.
    ///
    /// # Safety
    /// As for [`Team`](crate::Team)'s operations.
    ///
    /// # Errors
    /// As for [`Team`](crate::Team)'s operations.
    pub unsafe fn reduce(&self, dest: *mut u8, source: *const u8, count: usize, reduction: Reduction) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { direct::reduce(self, dest, source, count, reduction) }
    }
}
