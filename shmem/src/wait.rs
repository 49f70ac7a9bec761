//! The types of words that a PE can wait for, and looks at one; `waiting` has the loop of all waits.

use crate::error::Result;
use crate::operations::Operations;
use crate::space::load;

pub use symrail_core::Cmp;

/// An integer that a PE can wait for: 8 to 64 bits.
pub trait WaitWord: Copy + PartialOrd {
    /// The value with these low bits.
    fn from_low(bits: u64) -> Self;
}

macro_rules! wait_word {
    ($($t:ty),*) => {$(impl WaitWord for $t {
        #[inline]
        #[allow(clippy::cast_possible_wrap, clippy::cast_lossless)]
        fn from_low(bits: u64) -> Self { bits as $t }
    })*};
}
wait_word!(i8, u8, i16, u16, i32, u32, i64, u64, isize, usize);

impl Operations<'_> {
    /// Reads a word of this PE's memory once.
    ///
    /// # Safety
    /// `word` is valid for reads and aligned.
    ///
    /// # Errors
    /// Those of a get from this PE's own memory, if the CPU cannot access it.
    #[inline]
    pub(crate) unsafe fn peek<T: WaitWord>(&self, word: *const T) -> Result<T> {
        if self.comm.space.is_staged(word.cast()) {
            return self.read_staged(word);
        }
        // SAFETY: the caller's promise.
        Ok(T::from_low(unsafe { load(word.cast(), size_of::<T>()) }))
    }

    /// As [`Operations::peek`] for a caller that cannot return an error: the next quiet returns it, and so does the
    /// wait.
    ///
    /// # Safety
    /// As for [`Operations::peek`].
    #[inline]
    pub(crate) unsafe fn test_once<T: WaitWord>(&self, word: *const T) -> Option<T> {
        // SAFETY: the caller's promise.
        unsafe { self.peek(word) }.map_err(|error| self.comm.space.note(error)).ok()
    }
}
