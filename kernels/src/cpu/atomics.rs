//! Atomic memory operations, and signals without data.

use symrail_proxy::channel::{Request, SignalOp};
use symrail_transport::amo::{self, AmoOp};
use symrail_transport::{Operation, Pe};

use super::element::{AmoInteger, AmoWord};
use super::error::DeviceError;
use super::symmetric::Symmetric;
use super::thread::{Route, Thread, What};

impl Thread<'_> {
    /// Performs `op` on the word at `pe`; it is complete after [`quiet`](Thread::quiet).
    fn amo<T: AmoWord>(&self, word: Symmetric<T>, op: AmoOp, operand: u64, pe: Pe) -> Result<(), DeviceError> {
        let what = What { operation: Operation::Amo, pe, bytes: T::TYPE.size() as u64 };
        match self.route(what, word, self.parts().direct_amos)? {
            Route::Mapped(address) => {
                // SAFETY: a word of a mapped heap, aligned as its name was checked to be. Everyone accesses it by
                // atomics of one kind, as the view's creator promises with `direct_amos`.
                unsafe { amo::apply(address, T::TYPE, op, operand, 0) };
                Ok(())
            }
            Route::Channel(channel) => {
                let request = Request::Amo { pe, offset: word.offset(), ty: T::TYPE, op, operand, compare: 0 };
                self.issue(what, channel, &request).map(drop)
            }
        }
    }

    /// Performs `op` on the word at `pe` and returns the old value.
    fn fetch_amo<T: AmoWord>(
        &self,
        word: Symmetric<T>,
        op: AmoOp,
        operand: u64,
        compare: u64,
        pe: Pe,
    ) -> Result<T, DeviceError> {
        let what = What { operation: Operation::Amo, pe, bytes: T::TYPE.size() as u64 };
        let old = match self.route(what, word, self.parts().direct_amos)? {
            // SAFETY: as in `amo`.
            Route::Mapped(address) => unsafe { amo::apply(address, T::TYPE, op, operand, compare) },
            Route::Channel(channel) => {
                let (offset, ty) = (word.offset(), T::TYPE);
                self.ask(what, channel, |reply| Request::FetchAmo { pe, offset, ty, op, operand, compare, reply })?
            }
        };
        Ok(T::of_bits(old))
    }

    /// Updates a signal word at `pe`. Not ordered behind earlier puts: see [`fence`](Thread::fence) and
    /// [`put_signal`](Thread::put_signal).
    ///
    /// # Errors
    /// Wrong arguments, or no room in the channel in time.
    pub fn signal_op(&self, signal: Symmetric<u64>, value: u64, op: SignalOp, pe: Pe) -> Result<(), DeviceError> {
        self.amo(signal, op.into(), value, pe)
    }
}

/// The operations with one operand, each without and with the old value as its result.
macro_rules! with_operand {
    ($($name:ident, $fetch_name:ident, $bound:ident, $op:ident, $does:literal;)*) => {
        impl Thread<'_> {$(
            #[doc = concat!($does, " at `pe`. Complete after [`quiet`](Thread::quiet).")]
            ///
            /// # Errors
            /// Wrong arguments, or no room in the channel in time.
            pub fn $name<T: $bound>(&self, word: Symmetric<T>, operand: T, pe: Pe) -> Result<(), DeviceError> {
                self.amo(word, AmoOp::$op, operand.bits(), pe)
            }

            #[doc = concat!($does, " at `pe` and returns the old value.")]
            ///
            /// # Errors
            /// Wrong arguments, a failure of the proxy, or no answer in time.
            pub fn $fetch_name<T: $bound>(&self, word: Symmetric<T>, operand: T, pe: Pe) -> Result<T, DeviceError> {
                self.fetch_amo(word, AmoOp::$op, operand.bits(), 0, pe)
            }
        )*}
    };
}

with_operand! {
    atomic_set, atomic_swap, AmoWord, Set, "Stores the operand in the word";
    atomic_add, atomic_fetch_add, AmoWord, Add, "Adds the operand to the word (integers wrap)";
    atomic_and, atomic_fetch_and, AmoInteger, And, "Ands the word with the operand";
    atomic_or, atomic_fetch_or, AmoInteger, Or, "Ors the word with the operand";
    atomic_xor, atomic_fetch_xor, AmoInteger, Xor, "Exclusive-ors the word with the operand";
}

impl Thread<'_> {
    /// The word at `pe`, read atomically.
    ///
    /// # Errors
    /// Wrong arguments, a failure of the proxy, or no answer in time.
    pub fn atomic_fetch<T: AmoWord>(&self, word: Symmetric<T>, pe: Pe) -> Result<T, DeviceError> {
        self.fetch_amo(word, AmoOp::Fetch, 0, 0, pe)
    }

    /// Adds one to the word at `pe`. Complete after [`quiet`](Thread::quiet).
    ///
    /// # Errors
    /// As for [`atomic_add`](Thread::atomic_add).
    pub fn atomic_inc<T: AmoWord>(&self, word: Symmetric<T>, pe: Pe) -> Result<(), DeviceError> {
        self.atomic_add(word, T::ONE, pe)
    }

    /// Adds one to the word at `pe` and returns the old value.
    ///
    /// # Errors
    /// As for [`atomic_fetch_add`](Thread::atomic_fetch_add).
    pub fn atomic_fetch_inc<T: AmoWord>(&self, word: Symmetric<T>, pe: Pe) -> Result<T, DeviceError> {
        self.atomic_fetch_add(word, T::ONE, pe)
    }

    /// Stores `value` in the word at `pe` if it equals `expected`; returns the old value.
    ///
    /// # Errors
    /// Wrong arguments, a failure of the proxy, or no answer in time.
    pub fn atomic_compare_swap<T: AmoInteger>(
        &self,
        word: Symmetric<T>,
        expected: T,
        value: T,
        pe: Pe,
    ) -> Result<T, DeviceError> {
        self.fetch_amo(word, AmoOp::CompareSwap, value.bits(), expected.bits(), pe)
    }
}
