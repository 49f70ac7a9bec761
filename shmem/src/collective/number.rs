//! The elements of reductions: their types, and what can be done with them.

use std::cmp::Ordering;

use half::{bf16, f16};
use symrail_core::{DataType, order};

use super::element::ElementType;
#[cfg(any(symrail_portable, not(target_arch = "x86_64")))]
use super::soft_float as long_double;
#[cfg(all(target_arch = "x86_64", not(symrail_portable)))]
use super::x87 as long_double;

/// Types of elements.
pub trait Element: Copy {
    /// The type, as PEs compare it.
    const TYPE: ElementType;
}

/// Types that can be added and multiplied.
pub trait Arithmetic: Element {
    /// The sum.
    #[must_use]
    fn plus(self, other: Self) -> Self;
    /// The product.
    #[must_use]
    fn times(self, other: Self) -> Self;
}

/// Types whose sums can be divided by a number of PEs.
pub trait Divide: Arithmetic {
    /// The quotient.
    #[must_use]
    fn over(self, pes: u32) -> Self;
}

/// Types with an order.
pub trait Ordered: Element + PartialOrd {
    /// The smaller one; a NaN if one of them is a NaN.
    #[inline]
    #[must_use]
    fn least(self, other: Self) -> Self {
        order::least(self, other)
    }
    /// The greater one; a NaN if one of them is a NaN.
    #[inline]
    #[must_use]
    fn greatest(self, other: Self) -> Self {
        order::greatest(self, other)
    }
}

/// Types with bitwise operations.
pub trait Bits: Element {
    /// Bitwise and.
    #[must_use]
    fn and(self, other: Self) -> Self;
    /// Bitwise or.
    #[must_use]
    fn or(self, other: Self) -> Self;
    /// Bitwise exclusive or.
    #[must_use]
    fn xor(self, other: Self) -> Self;
}

macro_rules! elements {
    ($($t:ty: $ty:ident;)*) => {$(
        impl Element for $t {
            const TYPE: ElementType = ElementType::Of(DataType::$ty);
        }
    )*};
}
elements! {
    i8: Int8; i16: Int16; i32: Int32; i64: Int64; isize: Int64;
    u8: Uint8; u16: Uint16; u32: Uint32; u64: Uint64; usize: Uint64;
    f16: Float16; bf16: Bfloat16; f32: Float32; f64: Float64;
    Bool: Bool; Complex<f32>: Complex64; Complex<f64>: Complex128;
}
impl Element for LongDouble {
    const TYPE: ElementType = ElementType::LongDouble;
}

macro_rules! integers {
    ($($t:ty)*) => {$(
        impl Arithmetic for $t {
            #[inline]
            fn plus(self, other: $t) -> $t { self.wrapping_add(other) }
            #[inline]
            fn times(self, other: $t) -> $t { self.wrapping_mul(other) }
        }
        impl Divide for $t {
            #[inline]
            fn over(self, pes: u32) -> $t { (self as i128 / i128::from(pes)) as $t }
        }
        impl Ordered for $t {}
        impl Bits for $t {
            #[inline]
            fn and(self, other: $t) -> $t { self & other }
            #[inline]
            fn or(self, other: $t) -> $t { self | other }
            #[inline]
            fn xor(self, other: $t) -> $t { self ^ other }
        }
    )*};
}
integers! { i8 u8 i16 u16 i32 u32 i64 u64 isize usize }

macro_rules! floats {
    ($($t:ty, $over:expr;)*) => {$(
        impl Arithmetic for $t {
            #[inline]
            fn plus(self, other: $t) -> $t { self + other }
            #[inline]
            fn times(self, other: $t) -> $t { self * other }
        }
        impl Divide for $t {
            #[inline]
            fn over(self, pes: u32) -> $t { $over(self, pes) }
        }
        impl Ordered for $t {}
    )*};
}
// Numbers of 16 bits are rounded after each step.
floats! {
    f16, |sum: f16, pes: u32| f16::from_f32(sum.to_f32() / pes as f32);
    bf16, |sum: bf16, pes: u32| bf16::from_f32(sum.to_f32() / pes as f32);
    f32, |sum, pes: u32| sum / pes as f32;
    f64, |sum, pes: u32| sum / f64::from(pes);
}

/// A truth value in a byte: false if it is 0. A sum is true if one of the values is, a product if both are.
#[derive(Debug, Clone, Copy)]
#[repr(transparent)]
pub struct Bool(pub(super) u8);

impl Bool {
    pub(super) fn get(self) -> bool {
        self.0 != 0
    }
}

impl From<bool> for Bool {
    fn from(value: bool) -> Bool {
        Bool(value.into())
    }
}

impl PartialEq for Bool {
    fn eq(&self, other: &Bool) -> bool {
        self.get() == other.get()
    }
}

impl PartialOrd for Bool {
    fn partial_cmp(&self, other: &Bool) -> Option<Ordering> {
        self.get().partial_cmp(&other.get())
    }
}

impl Ordered for Bool {}

impl Arithmetic for Bool {
    #[inline]
    fn plus(self, other: Bool) -> Bool {
        self.or(other)
    }
    #[inline]
    fn times(self, other: Bool) -> Bool {
        self.and(other)
    }
}

impl Bits for Bool {
    #[inline]
    fn and(self, other: Bool) -> Bool {
        (self.get() & other.get()).into()
    }
    #[inline]
    fn or(self, other: Bool) -> Bool {
        (self.get() | other.get()).into()
    }
    #[inline]
    fn xor(self, other: Bool) -> Bool {
        (self.get() ^ other.get()).into()
    }
}

/// C's complex numbers.
#[derive(Debug, Clone, Copy, PartialEq)]
#[repr(C)]
pub struct Complex<T> {
    /// The real part.
    pub re: T,
    /// The imaginary part.
    pub im: T,
}

macro_rules! complex {
    ($($t:ty)*) => {$(
        impl Arithmetic for Complex<$t> {
            #[inline]
            fn plus(self, other: Self) -> Self { Complex { re: self.re + other.re, im: self.im + other.im } }
            #[inline]
            fn times(self, other: Self) -> Self {
                let re = self.re * other.re - self.im * other.im;
                Complex { re, im: self.re * other.im + self.im * other.re }
            }
        }
        impl Divide for Complex<$t> {
            #[inline]
            fn over(self, pes: u32) -> Self { Complex { re: self.re.over(pes), im: self.im.over(pes) } }
        }
    )*};
}
complex! { f32 f64 }

/// C's `long double`: 80 bits in 16 bytes on x86-64, IEEE's binary128 elsewhere.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(16))]
pub struct LongDouble(pub(super) [u8; 16]);

impl Arithmetic for LongDouble {
    fn plus(self, other: Self) -> Self {
        LongDouble(long_double::plus(self.0, other.0))
    }

    fn times(self, other: Self) -> Self {
        LongDouble(long_double::times(self.0, other.0))
    }
}

impl PartialOrd for LongDouble {
    fn partial_cmp(&self, other: &LongDouble) -> Option<Ordering> {
        long_double::compare(self.0, other.0)
    }
}

impl PartialEq for LongDouble {
    fn eq(&self, other: &LongDouble) -> bool {
        self.partial_cmp(other) == Some(Ordering::Equal)
    }
}

impl Ordered for LongDouble {}
