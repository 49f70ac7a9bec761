//! Operations on the default context, and the creation of further contexts.

use symrail_transport::Pe;
use symrail_transport::amo::{AmoOp, AmoType};

use super::Runtime;
use crate::atomics::AmoInteger;
use crate::context::Context;
use crate::delivery::Delivery;
use crate::error::Result;
use crate::rma::{SignalOp, SignalUpdate, Strided};

impl Runtime {
    /// Makes a context. Not collective: each PE may have its own number of contexts.
    ///
    /// # Errors
    /// [`Error::TooManyContexts`](crate::Error::TooManyContexts).
    pub fn create_context(&self) -> Result<Context> {
        Context::new(self)
    }

    /// As [`Runtime::put_signal_nbi`], with a completion that can be tested while other operations are in flight.
    ///
    /// # Safety
    /// As there, until the delivery is complete.
    ///
    /// # Errors
    /// As there.
    pub unsafe fn put_signal_tracked(
        &self,
        dest: *mut u8,
        source: *const u8,
        len: usize,
        signal: SignalUpdate<*mut u64>,
        pe: Pe,
    ) -> Result<Delivery> {
        // SAFETY: the caller's promise.
        let tracked = unsafe { self.operations().put_signal_tracked(dest, source, len, signal, pe) }?;
        Ok(Delivery::new(self, None, tracked))
    }

    /// Copies `len` bytes to `dest` on `pe`, and adds 1 to a word there when all have arrived. Over a rail whose target
    /// can count arrivals this is one message without a reply; elsewhere it is a put-signal. Only the PE that waits for
    /// the count detects the arrival; no quiet or fence of this PE waits for it.
    ///
    /// # Safety
    /// As for [`Runtime::put_signal_nbi`], until the delivery is done.
    ///
    /// # Errors
    /// As there.
    pub unsafe fn put_counted(
        &self,
        dest: *mut u8,
        source: *const u8,
        len: usize,
        word: *mut u64,
        pe: Pe,
    ) -> Result<Delivery> {
        // SAFETY: the caller's promise.
        let sent = unsafe { self.operations().put_and_count(dest, source, len, word, pe) }?;
        Ok(Delivery::of_counted(self, None, sent))
    }
}

/// The methods of handles that call operations: a runtime's on the default context, a context's on that one.
macro_rules! operations_of {
    ($($handle:ident: $on:literal),*; $methods:tt) => { $(operations_of!(@ $handle, $on, $methods);)* };
    (@ $handle:ident, $on:literal, {
        unsafe { $($unsafe_name:ident($($unsafe_arg:ident: $unsafe_ty:ty),*);)* }
        safe { $($name:ident$(<$t:ident: $bound:ident>)?($($arg:ident: $ty:ty),*) -> $value:ty;)* }
    }) => {
        impl $handle {
            $(
                #[doc = concat!("[`Operations::", stringify!($unsafe_name), "`](crate::Operations::", stringify!($unsafe_name), ") on ", $on, ".")]
                ///
                /// # Safety
                /// As there.
                ///
                /// # Errors
                /// As there.
                #[inline]
                #[allow(clippy::too_many_arguments)] // an AMO has these parts
                pub unsafe fn $unsafe_name(&self, $($unsafe_arg: $unsafe_ty),*) -> Result<()> {
                    // SAFETY: the caller's promise.
                    unsafe { self.operations().$unsafe_name($($unsafe_arg),*) }
                }
            )*
            $(
                #[doc = concat!("[`Operations::", stringify!($name), "`](crate::Operations::", stringify!($name), ") on ", $on, ".")]
                ///
                /// # Errors
                /// As there.
                #[inline]
                pub fn $name$(<$t: $bound>)?(&self, $($arg: $ty),*) -> Result<$value> {
                    self.operations().$name($($arg),*)
                }
            )*
        }
    };
}

operations_of! { Runtime: "the default context", Context: "this context"; {
    unsafe {
        put(dest: *mut u8, source: *const u8, len: usize, pe: Pe);
        put_nbi(dest: *mut u8, source: *const u8, len: usize, pe: Pe);
        get(dest: *mut u8, source: *const u8, len: usize, pe: Pe);
        get_nbi(dest: *mut u8, source: *const u8, len: usize, pe: Pe);
        iput(dest: *mut u8, source: *const u8, shape: Strided, pe: Pe);
        iget(dest: *mut u8, source: *const u8, shape: Strided, pe: Pe);
        put_signal(dest: *mut u8, source: *const u8, len: usize, signal: SignalUpdate<*mut u64>, pe: Pe);
        put_signal_nbi(dest: *mut u8, source: *const u8, len: usize, signal: SignalUpdate<*mut u64>, pe: Pe);
        fetch_amo_nbi(result: *mut u8, dest: *mut u8, ty: AmoType, op: AmoOp, operand: u64, compare: u64, pe: Pe);
    }
    safe {
        fence() -> ();
        quiet() -> ();
        amo(dest: *mut u8, ty: AmoType, op: AmoOp, operand: u64, compare: u64, pe: Pe) -> ();
        fetch_amo(dest: *mut u8, ty: AmoType, op: AmoOp, operand: u64, compare: u64, pe: Pe) -> u64;
        fetch_add<T: AmoInteger>(dest: *mut T, value: T, pe: Pe) -> T;
        signal_op(signal: *mut u64, value: u64, op: SignalOp, pe: Pe) -> ();
    }
}}
