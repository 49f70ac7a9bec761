//! Waiting for words of this PE's memory, and testing them.

use std::sync::Arc;
use std::time::Duration;

use symrail_transport::Pe;

use super::Runtime;
use crate::error::Result;
use crate::wait::{Cmp, WaitWord};
use crate::wait_many::WordSet;
use crate::waiting::{Among, BoundedWait};

impl Runtime {
    /// Reads a word of this PE's memory once.
    ///
    /// # Safety
    /// `word` is valid for reads and aligned.
    ///
    /// # Errors
    /// Those of a get from this PE's own memory, if the CPU cannot access it.
    #[inline]
    pub unsafe fn peek<T: WaitWord>(&self, word: *const T) -> Result<T> {
        // SAFETY: the caller's promise.
        unsafe { self.operations().peek(word) }
    }

    /// Lets the program end waits: each thread that has waited for a millisecond calls `go_on`, which returns the time
    /// until the next call, or `None` to end the wait with [`Error::Interrupted`](crate::Error::Interrupted). The first
    /// call of this function counts; later ones are ignored.
    /// [`Bootstrap::set_interrupt`](crate::bootstrap::Bootstrap::set_interrupt) does the same for joining.
    ///
    /// An interrupted collective is not complete, and this PE must make no other one with those PEs. An interrupted
    /// operation counts as abandoned: see the note of [`Operations`](crate::Operations) on buffers. After an
    /// interrupted quiet, operations may still be in flight; another quiet waits for them.
    pub fn set_interrupt(&self, go_on: impl Fn() -> Option<Duration> + Send + Sync + 'static) {
        let _ = self.comm().job.interrupt.set(Arc::new(go_on));
    }

    /// How long waits for a late PE last: `SYMRAIL_TIMEOUT_S`.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        Duration::from_secs(self.comm().job.settings.timeout_s)
    }

    /// For a caller's own wait that begins now, and lasts at most `limit`, if there is one.
    #[must_use]
    pub fn bounded_wait(&self, limit: impl Into<Option<Duration>>) -> BoundedWait<'_> {
        BoundedWait::new(self.comm().job.interrupt.get(), limit)
    }

    /// The PEs that may write an awaited word: all of them.
    fn anybody(&self) -> Among {
        Among::Any(self.comm().job.everybody())
    }

    /// Waits until the word at `word` compares to `value` as asked. Data that the peer put before it changed the word
    /// is then visible.
    ///
    /// # Safety
    /// `word` is valid for reads and aligned.
    ///
    /// # Errors
    /// [`Error::NotAllocated`](crate::Error::NotAllocated).
    /// [`Error::PeerLost`](crate::Error::PeerLost) if a peer has died or left. This is known within seconds if the
    /// bootstrap reports it; otherwise after `TIMEOUT_S` of waiting, when a peer's proxy does not answer either. The
    /// wait for a peer that is only slow is unlimited, with one warning.
    pub unsafe fn wait_until<T: WaitWord>(&self, word: *const T, cmp: Cmp, value: T) -> Result<T> {
        // SAFETY: the caller's promise.
        unsafe { self.wait_in("wait_until", word, cmp, value) }
    }

    /// As [`Runtime::wait_until`], inside another call: `what` is its name in errors and warnings.
    ///
    /// # Safety
    /// As for [`Runtime::wait_until`].
    ///
    /// # Errors
    /// As for [`Runtime::wait_until`].
    pub unsafe fn wait_in<T: WaitWord>(&self, what: &'static str, word: *const T, cmp: Cmp, value: T) -> Result<T> {
        // SAFETY: the caller's promise.
        unsafe { self.wait_among(what, self.anybody(), word, cmp, value) }
    }

    /// As [`Runtime::wait_in`], for a word that PE `from` alone writes: the wait ends if that PE is lost, goes on if
    /// another one is, and names that PE if it is interrupted.
    ///
    /// # Safety
    /// As for [`Runtime::wait_until`].
    ///
    /// # Errors
    /// As for [`Runtime::wait_until`]; [`symrail_transport::Error::NoSuchPe`].
    pub unsafe fn wait_in_from<T: WaitWord>(
        &self,
        what: &'static str,
        word: *const T,
        cmp: Cmp,
        value: T,
        from: Pe,
    ) -> Result<T> {
        let among = Among::All(self.comm().job.with_other(from)?);
        // SAFETY: the caller's promise.
        unsafe { self.wait_among(what, among, word, cmp, value) }
    }

    /// As [`Runtime::wait_in`]: `among` holds the PEs that may write the word.
    ///
    /// # Safety
    /// As for [`Runtime::wait_until`].
    unsafe fn wait_among<T: WaitWord>(
        &self,
        what: &'static str,
        among: Among,
        word: *const T,
        cmp: Cmp,
        value: T,
    ) -> Result<T> {
        let ops = self.operations();
        self.must_hold(what, word.cast(), size_of::<T>())?;
        ops.wait_for(what, among, || {
            // SAFETY: the caller's promise.
            let now = unsafe { ops.test_once(word) }?;
            cmp.holds(now, value).then_some(now)
        })
    }

    /// As [`Runtime::wait_in`], for any of these words: returns the index of a word that compares as asked, the first
    /// of several.
    ///
    /// # Safety
    /// As for [`Runtime::wait_until`], for each word.
    ///
    /// # Errors
    /// As for [`Runtime::wait_until`].
    pub unsafe fn wait_in_any<T: WaitWord>(&self, what: &'static str, words: &[(*const T, Cmp, T)]) -> Result<usize> {
        let ops = self.operations();
        words.iter().try_for_each(|(word, ..)| self.must_hold(what, word.cast(), size_of::<T>()))?;
        ops.wait_for(what, self.anybody(), || {
            words.iter().position(|&(word, cmp, value)| {
                // SAFETY: the caller's promise.
                unsafe { ops.test_once(word) }.is_some_and(|now| cmp.holds(now, value))
            })
        })
    }

    /// Whether the word compares as asked now. Makes progress if not.
    ///
    /// # Safety
    /// As for [`Runtime::wait_until`].
    pub unsafe fn test<T: WaitWord>(&self, word: *const T, cmp: Cmp, value: T) -> bool {
        // SAFETY: the caller's promise.
        let holds = unsafe { self.operations().test_once(word) }.is_some_and(|now| cmp.holds(now, value));
        if !holds {
            self.progress();
        }
        holds
    }

    /// Makes progress once, for loops that test. Returns whether there was any.
    pub fn progress(&self) -> bool {
        self.operations().progress()
    }

    /// Waits until all words of the set have compared as asked; returns at once if none is included.
    ///
    /// It waits for each word in turn, so a word may have changed again when this returns.
    ///
    /// # Errors
    /// As for [`Runtime::wait_until`].
    pub fn wait_until_all<T: WaitWord>(&self, set: &WordSet<'_, T>) -> Result<()> {
        let ops = self.operations();
        for i in set.included() {
            ops.wait_for("wait_until_all", self.anybody(), || set.holds(&ops, i).then_some(()))?;
        }
        Ok(())
    }

    /// Waits until a word of the set compares as asked and returns its index; if several do, calls return them in turn.
    /// `None` at once if none is included.
    ///
    /// # Errors
    /// As for [`Runtime::wait_until`].
    pub fn wait_until_any<T: WaitWord>(&self, set: &WordSet<'_, T>) -> Result<Option<usize>> {
        if set.included().next().is_none() {
            return Ok(None);
        }
        self.operations().wait_for("wait_until_any", self.anybody(), || set.find(&self.operations())).map(Some)
    }

    /// Waits until at least one word of the set compares as asked. Writes the indexes of those that do, in order, to
    /// `found` (as many as fit) and returns how many it wrote. 0 at once if none is included or `found` is empty.
    ///
    /// # Errors
    /// As for [`Runtime::wait_until`].
    pub fn wait_until_some<T: WaitWord>(&self, set: &WordSet<'_, T>, found: &mut [usize]) -> Result<usize> {
        // SAFETY: a slice has room for as many indexes.
        unsafe { self.wait_until_some_at(set, found.as_mut_ptr(), found.len()) }
    }

    /// As [`Runtime::wait_until_some`], with space for `room` indexes in memory that others may read.
    ///
    /// # Safety
    /// `found` is aligned and valid for writes.
    ///
    /// # Errors
    /// As there.
    pub unsafe fn wait_until_some_at<T: WaitWord>(
        &self,
        set: &WordSet<'_, T>,
        found: *mut usize,
        room: usize,
    ) -> Result<usize> {
        if set.included().next().is_none() || room == 0 {
            return Ok(0);
        }
        let ops = self.operations();
        ops.wait_for("wait_until_some", self.anybody(), || {
            // SAFETY: the caller's promise.
            let count = unsafe { set.find_some(&ops, found, room) };
            (count > 0).then_some(count)
        })
    }

    /// Whether all words of the set compare as asked now. Makes progress if not.
    pub fn test_all<T: WaitWord>(&self, set: &WordSet<'_, T>) -> bool {
        let holds = set.all_hold(&self.operations());
        if !holds {
            self.progress();
        }
        holds
    }

    /// A word of the set that compares as asked now; if several do, calls return them in turn. Makes progress if there
    /// is none.
    pub fn test_any<T: WaitWord>(&self, set: &WordSet<'_, T>) -> Option<usize> {
        let found = set.find(&self.operations());
        if found.is_none() {
            self.progress();
        }
        found
    }

    /// Writes the indexes of the words that compare as asked now to `found`, and returns how many it wrote. Makes
    /// progress if there are none.
    pub fn test_some<T: WaitWord>(&self, set: &WordSet<'_, T>, found: &mut [usize]) -> usize {
        // SAFETY: a slice has room for as many indexes.
        unsafe { self.test_some_at(set, found.as_mut_ptr(), found.len()) }
    }

    /// As [`Runtime::test_some`], with space for `room` indexes in memory that others may read.
    ///
    /// # Safety
    /// `found` is aligned and valid for writes.
    pub unsafe fn test_some_at<T: WaitWord>(&self, set: &WordSet<'_, T>, found: *mut usize, room: usize) -> usize {
        // SAFETY: the caller's promise.
        let count = unsafe { set.find_some(&self.operations(), found, room) };
        if count == 0 {
            self.progress();
        }
        count
    }
}
