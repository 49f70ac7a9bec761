//! The types that symmetric slices hold.

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

mod sealed {
    pub trait Sealed {}
}

/// Plain integers and floats: every bit pattern is a value, and one access reads or writes it.
///
/// Peers write to symmetric memory at any time, so any bytes that they leave there must be a value of the type.
pub trait Symmetric: Copy + Default + Send + Sync + 'static + sealed::Sealed {
    /// Reads a value in one access.
    ///
    /// # Safety
    /// `at` is valid for reads and aligned, and no reference to it exists.
    #[doc(hidden)]
    unsafe fn load(at: *mut Self) -> Self;

    /// Writes a value in one access.
    ///
    /// # Safety
    /// `at` is valid for writes and aligned, and no reference to it exists.
    #[doc(hidden)]
    unsafe fn store(at: *mut Self, value: Self);
}

macro_rules! symmetric {
    ($($t:ty: $atomic:ident, $bits:ty;)*) => {$(
        impl sealed::Sealed for $t {}
        impl Symmetric for $t {
            #[inline]
            unsafe fn load(at: *mut $t) -> $t {
                // SAFETY: the caller's promise.
                let bits = unsafe { $atomic::from_ptr(at.cast()) }.load(Ordering::Relaxed);
                <$t>::from_ne_bytes(bits.to_ne_bytes())
            }
            #[inline]
            unsafe fn store(at: *mut $t, value: $t) {
                let bits = <$bits>::from_ne_bytes(value.to_ne_bytes());
                // SAFETY: the caller's promise.
                unsafe { $atomic::from_ptr(at.cast()) }.store(bits, Ordering::Relaxed);
            }
        }
    )*};
}
symmetric! {
    i8: AtomicU8, u8; u8: AtomicU8, u8;
    i16: AtomicU16, u16; u16: AtomicU16, u16;
    i32: AtomicU32, u32; u32: AtomicU32, u32; f32: AtomicU32, u32;
    i64: AtomicU64, u64; u64: AtomicU64, u64; f64: AtomicU64, u64;
}
#[cfg(target_pointer_width = "64")]
symmetric! { isize: AtomicU64, u64; usize: AtomicU64, u64; }
