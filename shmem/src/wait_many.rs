//! Waiting for, and testing, several words at once.
//!
//! A [`WordSet`] names the words, the value for each comparison, and the words that are left out. Data that a peer put
//! before it changed a word is visible once the word compares as asked.

use std::cell::Cell;
use std::marker::PhantomData;

use crate::operations::Operations;
use crate::space::load;
use crate::wait::{Cmp, WaitWord};

/// The values that the words of a [`WordSet`] are compared with.
#[derive(Debug, Clone, Copy)]
enum Wanted<T> {
    /// All words with one value.
    One(T),
    /// Word `i` with value `i`.
    Each(*const T),
}

/// Consecutive words of this PE's memory, each with a comparison. Who makes a set vouches for its memory, so that waits
/// for it are safe.
///
/// ```
/// use symrail::{Cmp, WordSet};
/// let words = [3u64, 0, 7];
/// // SAFETY: three words, which live as long as the set.
/// let set = unsafe { WordSet::all_of(words.as_ptr(), 3, Cmp::Gt, 1) }.without(&[0, 0, 1]);
/// assert_eq!(set.included().collect::<Vec<_>>(), [0, 1]);
/// ```
#[derive(Debug, Clone, Copy)]
pub struct WordSet<'a, T> {
    words: *const T,
    count: usize,
    /// The first status, and the number of statuses.
    status: (*const i32, usize),
    cmp: Cmp,
    wanted: Wanted<T>,
    /// Statuses and values are raw pointers because they may be in memory that peers write.
    arrays: PhantomData<&'a [T]>,
}

thread_local! {
    /// The word at which the next search starts.
    static TURN: Cell<usize> = const { Cell::new(0) };
}

impl<'a, T: WaitWord> WordSet<'a, T> {
    /// `count` words from `words` on, all compared with `value`.
    ///
    /// # Safety
    /// The words are aligned and valid for atomic reads as long as the set is used.
    #[must_use]
    pub unsafe fn all_of(words: *const T, count: usize, cmp: Cmp, value: T) -> Self {
        Self::new(words, count, cmp, Wanted::One(value))
    }

    /// As many words as there are values, each compared with its own value.
    ///
    /// # Safety
    /// As for [`WordSet::all_of`].
    #[must_use]
    pub unsafe fn each_of(words: *const T, cmp: Cmp, values: &'a [T]) -> Self {
        Self::new(words, values.len(), cmp, Wanted::Each(values.as_ptr()))
    }

    /// As [`WordSet::each_of`], with `count` values that others may change meanwhile.
    ///
    /// # Safety
    /// As for [`WordSet::all_of`], of the words and the values.
    #[must_use]
    pub unsafe fn each_of_shared(words: *const T, count: usize, cmp: Cmp, values: *const T) -> Self {
        Self::new(words, count, cmp, Wanted::Each(values))
    }

    fn new(words: *const T, count: usize, cmp: Cmp, wanted: Wanted<T>) -> Self {
        WordSet { words, count, status: (std::ptr::null(), 0), cmp, wanted, arrays: PhantomData }
    }

    /// Leaves out the words whose `status` is not 0, as OpenSHMEM's status arrays do. Words without a status stay.
    #[must_use]
    pub fn without(self, status: &'a [i32]) -> Self {
        WordSet { status: (status.as_ptr(), status.len()), ..self }
    }

    /// As [`WordSet::without`], with a status for every word, which others may change meanwhile.
    ///
    /// # Safety
    /// The statuses are aligned and valid for atomic reads as long as the set is used.
    #[must_use]
    pub unsafe fn without_shared(self, status: *const i32) -> Self {
        WordSet { status: (status, self.count), ..self }
    }

    /// Whether word `i` is included.
    fn includes(&self, i: usize) -> bool {
        let (status, count) = self.status;
        // SAFETY: there are so many statuses; the caller that made the set keeps them valid and aligned.
        i >= count || unsafe { load(status.wrapping_add(i).cast(), 4) } == 0
    }

    /// The indexes of the included words.
    pub fn included(&self) -> impl Iterator<Item = usize> + use<'a, T> {
        let set = *self;
        (0..self.count).filter(move |&i| set.includes(i))
    }

    /// Whether word `i`, one of [`WordSet::included`], compares as asked now.
    pub(crate) fn holds(&self, ops: &Operations<'_>, i: usize) -> bool {
        let value = match self.wanted {
            Wanted::One(value) => value,
            // SAFETY: there are as many values as words; the caller that made the set keeps them valid and aligned.
            Wanted::Each(values) => T::from_low(unsafe { load(values.wrapping_add(i).cast(), size_of::<T>()) }),
        };
        // SAFETY: one of the words, which the caller that made the set keeps valid and aligned.
        unsafe { ops.test_once(self.words.add(i)) }.is_some_and(|now| self.cmp.holds(now, value))
    }

    pub(crate) fn all_hold(&self, ops: &Operations<'_>) -> bool {
        self.included().all(|i| self.holds(ops, i))
    }

    pub(crate) fn find(&self, ops: &Operations<'_>) -> Option<usize> {
        // Each search starts at another word, so that a word that always holds does not hide the others.
        let start = TURN.replace(TURN.get().wrapping_add(1)) % self.count.max(1);
        let mut in_turn = (start..self.count).chain(0..start).filter(|&i| self.includes(i));
        in_turn.find(|&i| self.holds(ops, i))
    }

    /// Writes the indexes of words that hold to `found`, and returns how many: at most `room`.
    ///
    /// # Safety
    /// `found` is aligned and valid for writes of `room` indexes.
    pub(crate) unsafe fn find_some(&self, ops: &Operations<'_>, found: *mut usize, room: usize) -> usize {
        let holding = self.included().filter(|&i| self.holds(ops, i));
        // SAFETY: the caller's promise.
        holding.take(room).enumerate().map(|(n, i)| unsafe { found.add(n).write(i) }).count()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI32, Ordering};

    use super::*;

    #[test]
    fn statuses_that_others_change_are_read_each_time() {
        let (words, status) = ([0u64; 2], [const { AtomicI32::new(0) }; 2]);
        // SAFETY: words and as many statuses, which live as long as the set.
        let set = unsafe { WordSet::all_of(words.as_ptr(), 2, Cmp::Eq, 0).without_shared(status.as_ptr().cast()) };
        assert_eq!(set.included().collect::<Vec<_>>(), [0, 1]);
        status[0].store(1, Ordering::Relaxed);
        assert_eq!(set.included().collect::<Vec<_>>(), [1]);
    }
}
