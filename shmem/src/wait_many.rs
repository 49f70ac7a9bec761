//! Waiting for, and testing, several words at once.
//!
//! A [`WordSet`] says which words, what each is compared with, and which are left out. Whatever a peer had put before it
//! changed a word is visible once that word has been found to hold.

use std::cell::Cell;

use crate::operations::Operations;
use crate::wait::{Cmp, WaitWord};

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
    pub(crate) unsafe fn holds(&self, ops: &Operations<'_>, i: usize) -> bool {
        let value = match self.wanted {
            Wanted::One(value) => value,
            Wanted::Each(values) => match values.get(i) {
                Some(&value) => value,
                None => return false,
            },
        };
        // SAFETY: the caller's promise; `i` is below the count.
        unsafe { ops.glance(self.words.add(i)) }.is_some_and(|now| self.cmp.holds(now, value))
    }

    /// # Safety
    /// As for [`WordSet::holds`].
    pub(crate) unsafe fn all_hold(&self, ops: &Operations<'_>) -> bool {
        // SAFETY: the caller's promise.
        self.included().all(|i| unsafe { self.holds(ops, i) })
    }

    /// # Safety
    /// As for [`WordSet::holds`].
    pub(crate) unsafe fn find(&self, ops: &Operations<'_>) -> Option<usize> {
        // From another word on each time, so that one that always holds does not hide the others.
        let start = TURN.replace(TURN.get().wrapping_add(1)) % self.count.max(1);
        let skip = self.skip.unwrap_or(&[]);
        let mut in_turn = (start..self.count).chain(0..start).filter(|&i| skip.get(i).is_none_or(|&s| s == 0));
        // SAFETY: the caller's promise.
        in_turn.find(|&i| unsafe { self.holds(ops, i) })
    }

    /// # Safety
    /// As for [`WordSet::holds`].
    pub(crate) unsafe fn find_some(&self, ops: &Operations<'_>, found: &mut [usize]) -> usize {
        // SAFETY: the caller's promise.
        let holding = self.included().filter(|&i| unsafe { self.holds(ops, i) });
        found.iter_mut().zip(holding).map(|(to, i)| *to = i).count()
    }
}
