//! Waiting for this PE's elements to change, and testing whether they have.
//!
//! Data that a peer put before it changed an element is visible once this PE observes the change. Sets of elements are
//! `count` elements from `start` on; elements whose `status` is not 0 are left out.

use symrail_transport::Pe;

use super::{SymView, Symmetric};
use crate::error::Result;
use crate::wait::{Cmp, WaitWord};
use crate::wait_many::WordSet;

/// A set of elements: which are included, and the values that they are compared with.
#[derive(Debug, Clone, Copy)]
pub struct Elements<'a, T> {
    start: usize,
    count: usize,
    status: &'a [i32],
    one: Option<T>,
    each: &'a [T],
    cmp: Cmp,
}

impl<'a, T: WaitWord> Elements<'a, T> {
    /// `count` elements from `start` on, all compared with `value`.
    pub fn all_of(start: usize, count: usize, cmp: Cmp, value: T) -> Self {
        Elements { start, count, status: &[], one: Some(value), each: &[], cmp }
    }

    /// As many elements as there are values, from `start` on, each compared with its own value.
    pub fn each_of(start: usize, cmp: Cmp, values: &'a [T]) -> Self {
        Elements { start, count: values.len(), status: &[], one: None, each: values, cmp }
    }

    /// Leaves out the elements whose `status` is not 0; those without a status stay.
    #[must_use]
    pub fn without(self, status: &'a [i32]) -> Self {
        Elements { status, ..self }
    }
}

impl<T: Symmetric + WaitWord> SymView<'_, T> {
    /// Waits until this PE's element compares as asked, and returns it.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`](crate::Error::OutOfBounds), and as for
    /// [`Runtime::wait_until`](crate::Runtime::wait_until).
    pub fn wait_until(&self, index: usize, cmp: Cmp, value: T) -> Result<T> {
        let word = self.own(index, 1)?;
        // SAFETY: the word is in this PE's committed heap and aligned.
        unsafe { self.runtime().wait_until(word, cmp, value) }
    }

    /// As [`SymView::wait_until`], inside another call, for an element that PE `from` alone writes: see
    /// [`Runtime::wait_in_from`](crate::Runtime::wait_in_from).
    ///
    /// # Errors
    /// [`Error::OutOfBounds`](crate::Error::OutOfBounds), and as there.
    pub fn wait_in_from(&self, what: &'static str, index: usize, cmp: Cmp, value: T, from: Pe) -> Result<T> {
        let word = self.own(index, 1)?;
        // SAFETY: the word is in this PE's committed heap and aligned.
        unsafe { self.runtime().wait_in_from(what, word, cmp, value, from) }
    }

    /// Whether this PE's element compares as asked now. Makes progress if not.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`](crate::Error::OutOfBounds).
    pub fn test(&self, index: usize, cmp: Cmp, value: T) -> Result<bool> {
        let word = self.own(index, 1)?;
        // SAFETY: the word is in this PE's committed heap and aligned.
        Ok(unsafe { self.runtime().test(word, cmp, value) })
    }

    /// Waits until all elements of the set have compared as asked; returns at once if there are none.
    ///
    /// # Errors
    /// As for [`SymView::wait_until`].
    pub fn wait_until_all(&self, elements: &Elements<'_, T>) -> Result<()> {
        self.runtime().wait_until_all(&self.words(elements)?)
    }

    /// Waits until an element of the set compares as asked and returns its index in the set; `None` if there are none.
    ///
    /// # Errors
    /// As for [`SymView::wait_until`].
    pub fn wait_until_any(&self, elements: &Elements<'_, T>) -> Result<Option<usize>> {
        self.runtime().wait_until_any(&self.words(elements)?)
    }

    /// Waits until at least one element of the set compares as asked and returns the indexes in the set of those that
    /// do; empty if there are none.
    ///
    /// # Errors
    /// As for [`SymView::wait_until`].
    pub fn wait_until_some(&self, elements: &Elements<'_, T>) -> Result<Vec<usize>> {
        let mut found = vec![0; elements.count];
        let count = self.runtime().wait_until_some(&self.words(elements)?, &mut found)?;
        found.truncate(count);
        Ok(found)
    }

    /// Whether all elements of the set compare as asked now. Makes progress if not.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`](crate::Error::OutOfBounds).
    pub fn test_all(&self, elements: &Elements<'_, T>) -> Result<bool> {
        Ok(self.runtime().test_all(&self.words(elements)?))
    }

    /// The index in the set of an element that compares as asked now. Makes progress if there is none.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`](crate::Error::OutOfBounds).
    pub fn test_any(&self, elements: &Elements<'_, T>) -> Result<Option<usize>> {
        Ok(self.runtime().test_any(&self.words(elements)?))
    }

    /// The indexes in the set of the elements that compare as asked now. Makes progress if there are none.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`](crate::Error::OutOfBounds).
    pub fn test_some(&self, elements: &Elements<'_, T>) -> Result<Vec<usize>> {
        let mut found = vec![0; elements.count];
        let count = self.runtime().test_some(&self.words(elements)?, &mut found);
        found.truncate(count);
        Ok(found)
    }

    fn words<'a>(&'a self, elements: &Elements<'a, T>) -> Result<WordSet<'a, T>> {
        let words = self.own(elements.start, elements.count)?;
        // SAFETY: so many aligned words of this PE's committed heap, which `self` keeps.
        let set = unsafe {
            match elements.one {
                Some(value) => WordSet::all_of(words, elements.count, elements.cmp, value),
                None => WordSet::each_of(words, elements.cmp, elements.each),
            }
        };
        Ok(set.without(elements.status))
    }
}
