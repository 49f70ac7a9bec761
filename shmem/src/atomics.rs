//! Atomic memory operations, for mapped memory and over the wire.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use symrail_transport::amo::{self, AmoOp, AmoType};
use symrail_transport::endpoint::command::{Command, Fetch, Signal, Source};
use symrail_transport::{Operation, Pe};

use crate::error::Result;
use crate::operations::Operations;
use crate::rma::SignalOp;
use crate::space::Reached;

/// An integer that AMOs work on.
pub trait AmoInteger: AmoValue {}

/// A value that AMOs work on: 32 and 64-bit integers, integers of an address's size, and floats.
pub trait AmoValue: Copy + Send + Sync + 'static {
    /// Its type on the wire.
    const TYPE: AmoType;
    /// Its bits, zero-extended.
    fn bits(self) -> u64;
    /// The value with these bits.
    fn from_bits(bits: u64) -> Self;
}

macro_rules! amo_value {
    ($($t:ty: $name:ident, $unsigned:ty;)*) => {$(
        impl AmoValue for $t {
            const TYPE: AmoType = AmoType::$name;
            #[inline]
            fn bits(self) -> u64 { <$unsigned>::from_ne_bytes(self.to_ne_bytes()).into() }
            #[inline]
            fn from_bits(bits: u64) -> Self { <$t>::from_ne_bytes((bits as $unsigned).to_ne_bytes()) }
        }
    )*};
}
amo_value! {
    i32: I32, u32; u32: U32, u32; i64: I64, u64; u64: U64, u64; isize: I64, u64; usize: U64, u64;
    f32: F32, u32; f64: F64, u64;
}
impl AmoInteger for i32 {}
impl AmoInteger for u32 {}
impl AmoInteger for i64 {}
impl AmoInteger for u64 {}

impl Operations<'_> {
    /// Performs an AMO on the word at `dest` on `pe` and returns the old value's bits.
    ///
    /// # Errors
    /// The word is not symmetric or not aligned, the operation is not defined on the type, or the fabric fails.
    #[inline]
    pub fn fetch_amo(&self, dest: *mut u8, ty: AmoType, op: AmoOp, operand: u64, compare: u64, pe: Pe) -> Result<u64> {
        let word = self.amo_word(dest, ty, op, pe, std::ptr::null())?;
        if let Some(word) = self.for_cpu(word) {
            // SAFETY: the word is committed on every PE and aligned; all accesses to it are atomic.
            return Ok(unsafe { amo::apply(word, ty, op, operand, compare) });
        }
        let command = Command::Amo { offset: word.offset, ty, op, operand, compare, fetch: Fetch::Returned };
        // SAFETY: the command has no buffers.
        unsafe { self.on_wire()?.blocking(pe, command) }
    }

    /// Performs an AMO on the word at `dest` on `pe`, without the old value; complete after [`Operations::quiet`].
    ///
    /// # Errors
    /// As for [`Operations::fetch_amo`].
    #[inline]
    pub fn amo(&self, dest: *mut u8, ty: AmoType, op: AmoOp, operand: u64, compare: u64, pe: Pe) -> Result<()> {
        let word = self.amo_word(dest, ty, op, pe, std::ptr::null())?;
        if let Some(word) = self.for_cpu(word) {
            // SAFETY: as for `fetch_amo`.
            unsafe { amo::apply(word, ty, op, operand, compare) };
            return Ok(());
        }
        let command = Command::Amo { offset: word.offset, ty, op, operand, compare, fetch: Fetch::No };
        // SAFETY: the command has no buffers.
        unsafe { self.on_wire()?.nbi(pe, command) }
    }

    /// As [`Operations::fetch_amo`]; the old value is at `result` after [`Operations::quiet`].
    ///
    /// # Safety
    /// `result` is valid for writes of the type's size, and nothing else uses it until then.
    ///
    /// # Errors
    /// As for [`Operations::fetch_amo`].
    #[allow(clippy::too_many_arguments)] // an AMO has these parts
    pub unsafe fn fetch_amo_nbi(
        &self,
        result: *mut u8,
        dest: *mut u8,
        ty: AmoType,
        op: AmoOp,
        operand: u64,
        compare: u64,
        pe: Pe,
    ) -> Result<()> {
        let word = self.amo_word(dest, ty, op, pe, result)?;
        if let Some(word) = self.for_cpu(word) {
            // SAFETY: as for `fetch_amo`; the caller vouches for `result`.
            unsafe {
                let old = amo::apply(word, ty, op, operand, compare);
                match ty.size() {
                    4 => result.cast::<u32>().write_unaligned(old as u32),
                    _ => result.cast::<u64>().write_unaligned(old),
                }
            }
            return Ok(());
        }
        let command = Command::Amo { offset: word.offset, ty, op, operand, compare, fetch: Fetch::Stored(result) };
        // SAFETY: the caller's promise.
        unsafe { self.on_wire()?.nbi(pe, command) }
    }

    /// Updates a signal word on `pe`; complete after [`Operations::quiet`].
    ///
    /// The unit that performs AMOs performs signals and put-signals as well, so that all three can update one word.
    ///
    /// # Errors
    /// As for [`Operations::fetch_amo`].
    pub fn signal_op(&self, signal: *mut u64, value: u64, op: SignalOp, pe: Pe) -> Result<()> {
        let word = self.comm.space.reach_word(Operation::PutSignal, pe, signal.cast(), 8, std::ptr::null())?;
        if let Some(word) = self.for_cpu(word) {
            // SAFETY: the word is committed on every PE and aligned; all accesses to it are atomic.
            unsafe { amo::apply(word, AmoType::U64, op.into(), value, 0) };
            return Ok(());
        }
        self.wire_signal(word.offset, value, op, pe)
    }

    /// Updates a signal word over the wire.
    pub(crate) fn wire_signal(&self, offset: u64, value: u64, op: SignalOp, pe: Pe) -> Result<()> {
        let signal = Signal { offset, value, op: op.into() };
        let command = Command::PutSignal { dest: offset, source: Source::Stable(std::ptr::null()), len: 0, signal };
        // SAFETY: no bytes are put.
        unsafe { self.on_wire()?.nbi(pe, command) }
    }

    /// Adds to a word of type `T` and returns the old value.
    ///
    /// # Errors
    /// As for [`Operations::fetch_amo`].
    #[inline]
    pub fn fetch_add<T: AmoInteger>(&self, dest: *mut T, value: T, pe: Pe) -> Result<T> {
        let size = size_of::<T>();
        let word = self.comm.space.reach_word(Operation::Amo, pe, dest.cast(), size, std::ptr::null())?;
        if let Some(word) = self.for_cpu(word) {
            // SAFETY: the word is committed on every PE and aligned; all accesses to it are atomic.
            let old = unsafe {
                if size == 4 {
                    AtomicU32::from_ptr(word.cast()).fetch_add(value.bits() as u32, Ordering::SeqCst).into()
                } else {
                    AtomicU64::from_ptr(word.cast()).fetch_add(value.bits(), Ordering::SeqCst)
                }
            };
            return Ok(T::from_bits(old));
        }
        let (offset, ty, op, operand) = (word.offset, T::TYPE, AmoOp::Add, value.bits());
        let command = Command::Amo { offset, ty, op, operand, compare: 0, fetch: Fetch::Returned };
        // SAFETY: the command has no buffers.
        Ok(T::from_bits(unsafe { self.on_wire()?.blocking(pe, command) }?))
    }

    /// The location of a word, if the operation is defined on its type.
    #[inline(always)]
    fn amo_word(&self, dest: *mut u8, ty: AmoType, op: AmoOp, pe: Pe, local: *const u8) -> Result<Reached> {
        op.must_be_defined_on(ty)?;
        self.comm.space.reach_word(Operation::Amo, pe, dest, ty.size(), local)
    }

    /// The address of a mapped word, if CPUs perform AMOs on it.
    #[inline(always)]
    fn for_cpu(&self, word: Reached) -> Option<*mut u8> {
        word.here().filter(|_| self.comm.cpu_performs_amos())
    }
}
