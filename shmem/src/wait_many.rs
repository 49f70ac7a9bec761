//! Waiting for, and testing, several words at once.
//!
//! A [`WordSet`] says which words, what each is compared with, and which are left out. Whatever a peer had put before it
//! changed a word is visible once that word has been found to hold.

use std::cell::Cell;

use crate::error::Result;
use crate::runtime::Runtime;
use crate::wait::{Cmp, WaitWord};
use crate::waiting::Among;

/// What the words of a [`WordSet`] are compared with.
#[derive(Debug, Clone, Copy)]
pub enum Wanted<'a, T> {
    /// All with one value.
    One(T),
    /// Word `i` with value `i`; at least as many values as words.
    Each(&'a [T]),
}

/// Consecutive words of this PE's memory, each with a comparison.
///
/// ```
/// use symrail::{Cmp, WordSet};
/// let words = [3u64, 0, 7];
/// let set = WordSet::all_of(words.as_ptr(), 3, Cmp::Gt, 1).without(&[0, 0, 1]);
/// assert_eq!(set.included().collect::<Vec<_>>(), [0, 1]);
/// ```
#[derive(Debug, Clone, Copy)]
pub struct WordSet<'a, T> {
    words: *const T,
    count: usize,
    skip: Option<&'a [i32]>,
    cmp: Cmp,
    wanted: Wanted<'a, T>,
}

thread_local! {
    /// Which word a search starts at.
    static TURN: Cell<usize> = const { Cell::new(0) };
}

impl<'a, T: WaitWord> WordSet<'a, T> {
    /// `count` words from `words` on, all compared with `value`.
    #[must_use]
    pub fn all_of(words: *const T, count: usize, cmp: Cmp, value: T) -> Self {
        WordSet { words, count, skip: None, cmp, wanted: Wanted::One(value) }
    }

    /// As many words as there are values, each compared with its own.
    #[must_use]
    pub fn each_of(words: *const T, cmp: Cmp, values: &'a [T]) -> Self {
        WordSet { words, count: values.len(), skip: None, cmp, wanted: Wanted::Each(values) }
    }

    /// Leaves out the words whose `status` is not 0, as OpenSHMEM's status arrays do. Words without a status stay.
    #[must_use]
    pub fn without(self, status: &'a [i32]) -> Self {
        WordSet { skip: Some(status), ..self }
    }

    /// The indexes that are not left out.
    pub fn included(&self) -> impl Iterator<Item = usize> + use<'a, T> {
        let skip = self.skip.unwrap_or(&[]);
        (0..self.count).filter(move |&i| skip.get(i).is_none_or(|&s| s == 0))
    }

    /// Whether word `i` compares as wanted now.
    ///
    /// # Safety
    /// The words are valid for reads and aligned.
    unsafe fn holds(&self, runtime: &Runtime, i: usize) -> bool {
        let value = match self.wanted {
            Wanted::One(value) => value,
            Wanted::Each(values) => match values.get(i) {
                Some(&value) => value,
                None => return false,
            },
        };
        // SAFETY: the caller's promise; `i` is below the count.
        unsafe { runtime.glance(self.words.add(i)) }.is_some_and(|now| self.cmp.holds(now, value))
    }

    /// # Safety
    /// As for [`WordSet::holds`].
    unsafe fn all_hold(&self, runtime: &Runtime) -> bool {
        // SAFETY: the caller's promise.
        self.included().all(|i| unsafe { self.holds(runtime, i) })
    }

    /// # Safety
    /// As for [`WordSet::holds`].
    unsafe fn find(&self, runtime: &Runtime) -> Option<usize> {
        // From another word on each time, so that one that always holds does not hide the others.
        let start = TURN.replace(TURN.get().wrapping_add(1)) % self.count.max(1);
        let skip = self.skip.unwrap_or(&[]);
        let mut in_turn = (start..self.count).chain(0..start).filter(|&i| skip.get(i).is_none_or(|&s| s == 0));
        // SAFETY: the caller's promise.
        in_turn.find(|&i| unsafe { self.holds(runtime, i) })
    }

    /// # Safety
    /// As for [`WordSet::holds`].
    unsafe fn find_some(&self, runtime: &Runtime, found: &mut [usize]) -> usize {
        // SAFETY: the caller's promise.
        let holding = self.included().filter(|&i| unsafe { self.holds(runtime, i) });
        found.iter_mut().zip(holding).map(|(to, i)| *to = i).count()
    }
}

impl Runtime {
    /// Waits until all words of the set have compared as wanted; at once if none is included.
    ///
    /// Each word is waited for in turn, so a word may have changed again when this returns.
    ///
    /// # Safety
    /// The set's words are valid for reads and aligned.
    ///
    /// # Errors
    /// As for [`Runtime::wait_until`].
    pub unsafe fn wait_until_all<T: WaitWord>(&self, set: &WordSet<'_, T>) -> Result<()> {
        for i in set.included() {
            self.wait_for("wait_until_all", Among::Any(self.everybody()), || {
                // SAFETY: the caller's promise.
                unsafe { set.holds(self, i) }.then_some(())
            })?;
        }
        Ok(())
    }

    /// Waits until a word of the set compares as wanted and returns its index, another one in turn if several do; `None` at
    /// once if none is included.
    ///
    /// # Safety
    /// As for [`Runtime::wait_until_all`].
    ///
    /// # Errors
    /// As for [`Runtime::wait_until`].
    pub unsafe fn wait_until_any<T: WaitWord>(&self, set: &WordSet<'_, T>) -> Result<Option<usize>> {
        if set.included().next().is_none() {
            return Ok(None);
        }
        // SAFETY: the caller's promise.
        self.wait_for("wait_until_any", Among::Any(self.everybody()), || unsafe { set.find(self) }).map(Some)
    }

    /// Waits until at least one word of the set compares as wanted; writes the indexes of those that do, in order, to
    /// `found` (as many as it has room for) and returns how many it wrote. 0 at once if none is included or `found` is empty.
    ///
    /// # Safety
    /// As for [`Runtime::wait_until_all`].
    ///
    /// # Errors
    /// As for [`Runtime::wait_until`].
    pub unsafe fn wait_until_some<T: WaitWord>(&self, set: &WordSet<'_, T>, found: &mut [usize]) -> Result<usize> {
        if set.included().next().is_none() || found.is_empty() {
            return Ok(0);
        }
        self.wait_for("wait_until_some", Among::Any(self.everybody()), || {
            // SAFETY: the caller's promise.
            let count = unsafe { set.find_some(self, found) };
            (count > 0).then_some(count)
        })
    }

    /// Whether all words of the set compare as wanted now. Makes progress if not.
    ///
    /// # Safety
    /// As for [`Runtime::wait_until_all`].
    pub unsafe fn test_all<T: WaitWord>(&self, set: &WordSet<'_, T>) -> bool {
        // SAFETY: the caller's promise.
        let holds = unsafe { set.all_hold(self) };
        if !holds {
            self.progress();
        }
        holds
    }

    /// A word of the set that compares as wanted now, another one in turn if several do. Makes progress if there is none.
    ///
    /// # Safety
    /// As for [`Runtime::wait_until_all`].
    pub unsafe fn test_any<T: WaitWord>(&self, set: &WordSet<'_, T>) -> Option<usize> {
        // SAFETY: the caller's promise.
        let found = unsafe { set.find(self) };
        if found.is_none() {
            self.progress();
        }
        found
    }

    /// Writes the indexes of the words that compare as wanted now to `found` and returns how many it wrote. Makes
    /// progress if there are none.
    ///
    /// # Safety
    /// As for [`Runtime::wait_until_all`].
    pub unsafe fn test_some<T: WaitWord>(&self, set: &WordSet<'_, T>, found: &mut [usize]) -> usize {
        // SAFETY: the caller's promise.
        let count = unsafe { set.find_some(self, found) };
        if count == 0 {
            self.progress();
        }
        count
    }
}
