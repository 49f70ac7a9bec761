//! The types of transferred values, and of the words of atomics.

use symrail_proxy::channel::Width;
use symrail_transport::amo::AmoType;

mod sealed {
    pub trait Sealed {}
}

/// A value of 1, 2, 4 or 8 bytes for which every bit pattern is valid.
pub trait Element: sealed::Sealed + Copy + Send + Sync + PartialEq + PartialOrd + std::fmt::Debug + 'static {
    /// Its size.
    const WIDTH: Width;
    /// Its bits, zero-extended.
    fn bits(self) -> u64;
    /// The value with these low bits.
    fn of_bits(bits: u64) -> Self;
}

/// A word for atomics.
pub trait AmoWord: Element {
    /// Its type in requests.
    const TYPE: AmoType;
    /// One, for increments.
    const ONE: Self;
}

/// A word for bitwise atomics and compare-swap.
pub trait AmoInteger: AmoWord {}

macro_rules! element {
    ($($ty:ty: $width:ident, $unsigned:ty;)*) => {$(
        impl sealed::Sealed for $ty {}
        impl Element for $ty {
            const WIDTH: Width = Width::$width;
            fn bits(self) -> u64 { u64::from(<$unsigned>::from_ne_bytes(self.to_ne_bytes())) }
            fn of_bits(bits: u64) -> Self { Self::from_ne_bytes((bits as $unsigned).to_ne_bytes()) }
        }
    )*};
}

macro_rules! word {
    ($($ty:ty: $amo:ident, $one:literal;)*) => {$(
        impl AmoWord for $ty {
            const TYPE: AmoType = AmoType::$amo;
            const ONE: Self = $one;
        }
    )*};
}

element! {
    u8: W1, u8; i8: W1, u8; u16: W2, u16; i16: W2, u16; u32: W4, u32; i32: W4, u32; u64: W8, u64; i64: W8, u64;
    f32: W4, u32; f64: W8, u64;
}
word! { i32: I32, 1; u32: U32, 1; i64: I64, 1; u64: U64, 1; f32: F32, 1.0; f64: F64, 1.0; }

impl AmoInteger for i32 {}
impl AmoInteger for u32 {}
impl AmoInteger for i64 {}
impl AmoInteger for u64 {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_zero_extended_and_read_back() {
        assert_eq!((-1i8).bits(), 0xff);
        assert_eq!((-2i32).bits(), 0xffff_fffe);
        assert_eq!(1.5f32.bits(), 0x3fc0_0000);
        assert_eq!(i32::of_bits(0xdead_beef_ffff_fffe), -2);
        assert_eq!(f64::of_bits(2.25f64.bits()), 2.25);
        assert_eq!(i16::of_bits((-7i16).bits()), -7);
    }
}
