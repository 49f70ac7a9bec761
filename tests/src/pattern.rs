//! Bytes and values that identify their source.

use symrail::Symmetric;

/// The value of untouched bytes.
pub const GUARD: u8 = 0xee;

/// Mixes two numbers.
#[must_use]
pub fn mix(seed: u64, index: u64) -> u64 {
    let x = (index ^ seed.rotate_left(32)).wrapping_add(seed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (x ^ x >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) ^ x >> 32
}

/// `len` bytes of a seed.
#[must_use]
pub fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut all: Vec<u8> = (0..len.div_ceil(8) as u64).flat_map(|i| mix(seed, i).to_le_bytes()).collect();
    all.truncate(len);
    all
}

/// Checks that `found` is a guard, the seed's `len` bytes, and a guard again, where each guard is `guard` bytes.
///
/// # Panics
/// It is not.
pub fn check(found: &[u8], seed: u64, guard: usize, what: &dyn Fn() -> String) {
    let len = found.len() - 2 * guard;
    let expected = bytes(seed, len);
    let (before, rest) = found.split_at(guard);
    let (data, after) = rest.split_at(len);
    if data != expected {
        let wrong = data.iter().zip(&expected).filter(|(a, b)| a != b).count();
        let first = data.iter().zip(&expected).position(|(a, b)| a != b);
        panic!("{}: {wrong} of {len} bytes are wrong, the first at {first:?}", what());
    }
    assert!(before.iter().all(|&b| b == GUARD), "{}: bytes before it were touched", what());
    assert!(after.iter().all(|&b| b == GUARD), "{}: bytes behind it were touched", what());
}

/// An element type for which tests can make values.
pub trait Value: Symmetric + PartialEq + std::fmt::Debug {
    /// A value from random bits. Never a NaN.
    fn of(bits: u64) -> Self;
}

macro_rules! value {
    ($($t:ty),*) => {$(impl Value for $t {
        #[allow(clippy::cast_lossless)]
        fn of(bits: u64) -> $t { bits as $t }
    })*};
}
value!(i8, u8, i16, u16, i32, u32, i64, u64, isize, usize, f32, f64);
