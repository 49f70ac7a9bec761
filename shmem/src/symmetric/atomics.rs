//! AMOs on typed elements. AMOs without a result are complete after [`Runtime::quiet`](crate::Runtime::quiet); AMOs
//! that return the old value are complete when they return.

use symrail_transport::Pe;
use symrail_transport::amo::AmoOp;

use super::{SymView, Symmetric};
use crate::atomics::{AmoInteger, AmoValue};
use crate::error::Result;

macro_rules! amos {
    ($($(#[$doc:meta])* $name:ident, $op:ident, $what:literal;)*) => {$(
        $(#[$doc])*
        ///
        /// # Errors
        /// [`Error::OutOfBounds`](crate::Error::OutOfBounds), a PE that does not exist, or what the fabric says.
        #[inline]
        pub fn $name(&self, index: usize, value: T, pe: Pe) -> Result<()> {
            self.amo($what, index, AmoOp::$op, value.bits(), pe)
        }
    )*};
}

macro_rules! fetching_amos {
    ($($(#[$doc:meta])* $name:ident, $op:ident, $what:literal;)*) => {$(
        $(#[$doc])*
        ///
        /// # Errors
        /// [`Error::OutOfBounds`](crate::Error::OutOfBounds), a PE that does not exist, or what the fabric says.
        #[inline]
        pub fn $name(&self, index: usize, value: T, pe: Pe) -> Result<T> {
            self.fetch_amo($what, index, AmoOp::$op, value.bits(), 0, pe)
        }
    )*};
}

impl<T: Symmetric + AmoValue> SymView<'_, T> {
    /// Reads the element atomically.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`](crate::Error::OutOfBounds), a PE that does not exist, or what the fabric says.
    pub fn atomic_fetch(&self, index: usize, pe: Pe) -> Result<T> {
        self.fetch_amo("atomic_fetch", index, AmoOp::Fetch, 0, 0, pe)
    }

    amos! {
        /// Sets the element atomically.
        atomic_set, Set, "atomic_set";
        /// Adds to the element; integers wrap.
        atomic_add, Add, "atomic_add";
    }

    fetching_amos! {
        /// Sets the element and returns the old value.
        atomic_swap, Set, "atomic_swap";
        /// Adds to the element and returns the old value; integers wrap.
        atomic_fetch_add, Add, "atomic_fetch_add";
    }

    fn amo(&self, what: &'static str, index: usize, op: AmoOp, operand: u64, pe: Pe) -> Result<()> {
        let word = self.range(what, pe, index, 1)?;
        self.ops().amo(word.cast(), T::TYPE, op, operand, 0, pe)
    }

    fn fetch_amo(&self, what: &'static str, index: usize, op: AmoOp, operand: u64, compare: u64, pe: Pe) -> Result<T> {
        let word = self.range(what, pe, index, 1)?;
        self.ops().fetch_amo(word.cast(), T::TYPE, op, operand, compare, pe).map(T::from_bits)
    }
}

impl<T: Symmetric + AmoInteger> SymView<'_, T> {
    /// Adds 1 to the element; wraps.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`](crate::Error::OutOfBounds), a PE that does not exist, or what the fabric says.
    pub fn atomic_inc(&self, index: usize, pe: Pe) -> Result<()> {
        self.amo("atomic_inc", index, AmoOp::Add, 1, pe)
    }

    /// Adds 1 to the element and returns the old value; wraps.
    ///
    /// # Errors
    /// As for [`SymView::atomic_inc`].
    pub fn atomic_fetch_inc(&self, index: usize, pe: Pe) -> Result<T> {
        self.fetch_amo("atomic_fetch_inc", index, AmoOp::Add, 1, 0, pe)
    }

    amos! {
        /// Ands the element with the value.
        atomic_and, And, "atomic_and";
        /// Ors the element with the value.
        atomic_or, Or, "atomic_or";
        /// Exclusive-ors the element with the value.
        atomic_xor, Xor, "atomic_xor";
    }

    fetching_amos! {
        /// Ands the element with the value and returns the old one.
        atomic_fetch_and, And, "atomic_fetch_and";
        /// Ors the element with the value and returns the old one.
        atomic_fetch_or, Or, "atomic_fetch_or";
        /// Exclusive-ors the element with the value and returns the old one.
        atomic_fetch_xor, Xor, "atomic_fetch_xor";
    }

    /// Sets the element to `value` if it is `expected`; returns what it was.
    ///
    /// # Errors
    /// As for [`SymView::atomic_inc`].
    pub fn atomic_compare_swap(&self, index: usize, expected: T, value: T, pe: Pe) -> Result<T> {
        self.fetch_amo("atomic_compare_swap", index, AmoOp::CompareSwap, value.bits(), expected.bits(), pe)
    }
}
