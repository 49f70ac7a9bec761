//! The reduction of several arrays to one.

use half::{bf16, f16};
use serde::{Deserialize, Serialize};
use symrail_core::{fp8, order};

use super::DataType::{self, *};

/// The operation on the elements. Its text is its name, as plans have it.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    Hash,
    Serialize,
    Deserialize,
    strum::VariantArray,
    strum::Display,
    strum::EnumString,
)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum ReduceOp {
    /// The sum; integers wrap.
    Sum,
    /// The product; integers wrap.
    Prod,
    /// The minimum.
    Min,
    /// The maximum.
    Max,
    /// All bits that are set in all elements; of integers and booleans, as the next two.
    And,
    /// All bits that are set in any.
    Or,
    /// All bits that are set in an odd number of them.
    Xor,
}

impl ReduceOp {
    /// All of them.
    pub const ALL: &[ReduceOp] = <ReduceOp as strum::VariantArray>::VARIANTS;
}

/// The type in which elements of less than 32 bits are accumulated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Accumulate {
    /// An `f32`, rounded once for each array that is written.
    #[default]
    F32,
    /// The elements' own type: rounded after every step.
    Own,
}

/// Elements processed at a time: those of all sources are read before the destination is written, which may be one of
/// the sources.
const AT_ONCE: usize = 128;

/// A type of elements: its form in memory, and the type for arithmetic.
trait Number {
    type Worked: Copy;
    const BYTES: usize;
    fn load(bytes: &[u8]) -> Self::Worked;
    fn store(value: Self::Worked, bytes: &mut [u8]);
    fn apply(op: ReduceOp, a: Self::Worked, b: Self::Worked) -> Self::Worked;
    fn divide(value: Self::Worked, by: u32) -> Self::Worked;
}

macro_rules! integer {
    ($($ty:ty)*) => {$(
        impl Number for $ty {
            type Worked = $ty;
            const BYTES: usize = size_of::<$ty>();
            fn load(bytes: &[u8]) -> $ty { <$ty>::from_ne_bytes(array(bytes)) }
            fn store(value: $ty, bytes: &mut [u8]) { bytes.copy_from_slice(&value.to_ne_bytes()); }
            fn apply(op: ReduceOp, a: $ty, b: $ty) -> $ty {
                match op {
                    ReduceOp::Sum => a.wrapping_add(b),
                    ReduceOp::Prod => a.wrapping_mul(b),
                    ReduceOp::Min => order::least(a, b),
                    ReduceOp::Max => order::greatest(a, b),
                    ReduceOp::And => a & b,
                    ReduceOp::Or => a | b,
                    ReduceOp::Xor => a ^ b,
                }
            }
            fn divide(value: $ty, by: u32) -> $ty { (i128::from(value) / i128::from(by)) as $ty }
        }
    )*};
}

integer! { i8 u8 i16 u16 i32 u32 i64 u64 }

macro_rules! float {
    ($($name:ty, $worked:ty, $stored:ty, $load:expr, $store:expr;)*) => {$(
        impl Number for $name {
            type Worked = $worked;
            const BYTES: usize = size_of::<$stored>();
            fn load(bytes: &[u8]) -> $worked { $load(<$stored>::from_ne_bytes(array(bytes))) }
            fn store(value: $worked, bytes: &mut [u8]) {
                let stored: $stored = $store(value);
                bytes.copy_from_slice(&stored.to_ne_bytes());
            }
            fn apply(op: ReduceOp, a: $worked, b: $worked) -> $worked {
                match op {
                    ReduceOp::Sum => a + b,
                    ReduceOp::Prod => a * b,
                    ReduceOp::Min => order::least(a, b),
                    ReduceOp::Max => order::greatest(a, b),
                    ReduceOp::And | ReduceOp::Or | ReduceOp::Xor => a, // refused before
                }
            }
            fn divide(value: $worked, by: u32) -> $worked { value / by as $worked }
        }
    )*};
}

/// The sum of booleans is whether any is true, and their product whether all are, as NumPy has it.
impl Number for bool {
    type Worked = bool;
    const BYTES: usize = 1;
    fn load(bytes: &[u8]) -> bool {
        bytes[0] != 0
    }
    fn store(value: bool, bytes: &mut [u8]) {
        bytes[0] = value.into();
    }
    fn apply(op: ReduceOp, a: bool, b: bool) -> bool {
        match op {
            ReduceOp::Sum | ReduceOp::Max | ReduceOp::Or => a | b,
            ReduceOp::Prod | ReduceOp::Min | ReduceOp::And => a & b,
            ReduceOp::Xor => a ^ b,
        }
    }
    fn divide(value: bool, _by: u32) -> bool {
        value
    }
}

/// A complex number, by its real and its imaginary part.
struct Complex<T>(T);

macro_rules! complex {
    ($($part:ty)*) => {$(
        impl Number for Complex<$part> {
            type Worked = ($part, $part);
            const BYTES: usize = 2 * size_of::<$part>();
            fn load(bytes: &[u8]) -> Self::Worked {
                let (real, imaginary) = bytes.split_at(Self::BYTES / 2);
                (<$part>::from_ne_bytes(array(real)), <$part>::from_ne_bytes(array(imaginary)))
            }
            fn store(value: Self::Worked, bytes: &mut [u8]) {
                let (real, imaginary) = bytes.split_at_mut(Self::BYTES / 2);
                real.copy_from_slice(&value.0.to_ne_bytes());
                imaginary.copy_from_slice(&value.1.to_ne_bytes());
            }
            fn apply(op: ReduceOp, a: Self::Worked, b: Self::Worked) -> Self::Worked {
                match op {
                    ReduceOp::Prod => (a.0 * b.0 - a.1 * b.1, a.0 * b.1 + a.1 * b.0),
                    _ => (a.0 + b.0, a.1 + b.1), // others are refused before
                }
            }
            fn divide(value: Self::Worked, by: u32) -> Self::Worked { (value.0 / by as $part, value.1 / by as $part) }
        }
    )*};
}

complex! { f32 f64 }

struct E4M3;
struct E5M2;
struct E4M3B15;

float! {
    f32, f32, f32, std::convert::identity, std::convert::identity;
    f64, f64, f64, std::convert::identity, std::convert::identity;
    f16, f32, u16, |bits| f16::from_bits(bits).to_f32(), |value| f16::from_f32(value).to_bits();
    bf16, f32, u16, |bits| bf16::from_bits(bits).to_f32(), |value| bf16::from_f32(value).to_bits();
    E4M3, f32, u8, fp8::e4m3_to_f32, fp8::f32_to_e4m3;
    E5M2, f32, u8, fp8::e5m2_to_f32, fp8::f32_to_e5m2;
    E4M3B15, f32, u8, fp8::e4m3b15_to_f32, fp8::f32_to_e4m3b15;
}

fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(bytes);
    array
}

/// Runs a generic function for the type of the elements.
macro_rules! for_type {
    ($ty:expr, $function:ident($($argument:expr),*)) => {
        match $ty {
            Int8 => $function::<i8>($($argument),*),
            Uint8 => $function::<u8>($($argument),*),
            Int32 => $function::<i32>($($argument),*),
            Uint32 => $function::<u32>($($argument),*),
            Int64 => $function::<i64>($($argument),*),
            Uint64 => $function::<u64>($($argument),*),
            Float16 => $function::<f16>($($argument),*),
            Bfloat16 => $function::<bf16>($($argument),*),
            Float32 => $function::<f32>($($argument),*),
            Float64 => $function::<f64>($($argument),*),
            Float8E4m3 => $function::<E4M3>($($argument),*),
            Float8E5m2 => $function::<E5M2>($($argument),*),
            Float8E4m3b15 => $function::<E4M3B15>($($argument),*),
            Bool => $function::<bool>($($argument),*),
            Int16 => $function::<i16>($($argument),*),
            Uint16 => $function::<u16>($($argument),*),
            Complex64 => $function::<Complex<f32>>($($argument),*),
            Complex128 => $function::<Complex<f64>>($($argument),*),
        }
    };
}

/// Reduces the sources into `dest`, in the sources' order. If a source is shorter, the other sources alone determine
/// the rest of `dest`; bytes beyond the last whole element stay unchanged.
pub(crate) fn reduce(ty: DataType, op: ReduceOp, accumulate: Accumulate, dest: &mut [u8], sources: &[&[u8]]) {
    for_type!(ty, reduce_as(op, accumulate, dest, sources));
}

/// Divides all elements by a number of PEs.
pub(crate) fn divide(ty: DataType, elements: &mut [u8], by: u32) {
    for_type!(ty, divide_as(elements, by));
}

fn reduce_as<N: Number>(op: ReduceOp, accumulate: Accumulate, dest: &mut [u8], sources: &[&[u8]]) {
    let Some((first, rest)) = sources.split_first() else { return };
    let step = AT_ONCE * N::BYTES;
    for start in (0..dest.len()).step_by(step) {
        let dest = &mut dest[start..];
        let len = dest.len().min(step);
        let mut worked: [Option<N::Worked>; AT_ONCE] = [None; AT_ONCE];
        let elements = |source: &&[u8]| source.get(start..).map_or(0, |source| source.len().min(len) / N::BYTES);
        let at = |i: usize| start + i * N::BYTES..start + (i + 1) * N::BYTES;
        for (i, slot) in worked.iter_mut().enumerate().take(elements(first)) {
            *slot = Some(N::load(&first[at(i)]));
        }
        for source in rest {
            for (i, slot) in worked.iter_mut().enumerate().take(elements(source)) {
                let value = N::load(&source[at(i)]);
                let so_far = match *slot {
                    Some(so_far) => N::apply(op, so_far, value),
                    None => value,
                };
                *slot = Some(if accumulate == Accumulate::Own { rounded::<N>(so_far) } else { so_far });
            }
        }
        for (value, bytes) in worked.iter().zip(dest[..len].chunks_exact_mut(N::BYTES)) {
            if let Some(value) = value {
                N::store(*value, bytes);
            }
        }
    }
}

fn rounded<N: Number>(value: N::Worked) -> N::Worked {
    let mut bytes = [0; 16];
    N::store(value, &mut bytes[..N::BYTES]);
    N::load(&bytes[..N::BYTES])
}

fn divide_as<N: Number>(elements: &mut [u8], by: u32) {
    for bytes in elements.chunks_exact_mut(N::BYTES) {
        let divided = N::divide(N::load(bytes), by);
        N::store(divided, bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of<T: Copy, const N: usize>(values: &[T], bytes: impl Fn(T) -> [u8; N]) -> Vec<u8> {
        values.iter().flat_map(|&value| bytes(value)).collect()
    }

    fn reduced(ty: DataType, op: ReduceOp, accumulate: Accumulate, sources: &[Vec<u8>]) -> Vec<u8> {
        let mut dest = vec![0; sources[0].len()];
        let sources: Vec<&[u8]> = sources.iter().map(Vec::as_slice).collect();
        reduce(ty, op, accumulate, &mut dest, &sources);
        dest
    }

    #[test]
    fn integers_wrap_and_compare_by_sign() {
        let sources = [of(&[-5i8, 127, 3], i8::to_ne_bytes), of(&[7i8, 1, -4], i8::to_ne_bytes)];
        for (op, result) in [
            (ReduceOp::Sum, [2i8, -128, -1]),
            (ReduceOp::Prod, [-35, 127, -12]),
            (ReduceOp::Min, [-5, 1, -4]),
            (ReduceOp::Max, [7, 127, 3]),
        ] {
            let found = reduced(Int8, op, Accumulate::F32, &sources);
            assert_eq!(found, of(&result, i8::to_ne_bytes), "{op:?}");
        }
        let large = [of(&[u64::MAX; 200], u64::to_ne_bytes), of(&[2u64; 200], u64::to_ne_bytes)];
        assert_eq!(reduced(Uint64, ReduceOp::Sum, Accumulate::F32, &large), of(&[1u64; 200], u64::to_ne_bytes));
    }

    /// 2048 + 1 + 1 is 2048 in half precision if it is rounded after each step, and 2050 if it is rounded once.
    #[test]
    fn narrow_types_accumulate_as_asked() {
        let halves = [2048.0, 1.0, 1.0].map(|v| of(&[f16::from_f32(v)], f16::to_ne_bytes));
        for (accumulate, sum) in [(Accumulate::F32, 2050.0), (Accumulate::Own, 2048.0)] {
            let found = reduced(Float16, ReduceOp::Sum, accumulate, &halves);
            assert_eq!(f16::from_ne_bytes(array(&found)).to_f32(), sum, "{accumulate:?}");
        }
        let bytes = [16.0, 1.0, 1.0].map(|v| vec![fp8::f32_to_e4m3(v)]);
        for (accumulate, sum) in [(Accumulate::F32, 18.0), (Accumulate::Own, 16.0)] {
            let found = reduced(Float8E4m3, ReduceOp::Sum, accumulate, &bytes);
            assert_eq!(fp8::e4m3_to_f32(found[0]), sum, "{accumulate:?}");
        }
    }

    #[test]
    fn a_nan_wins_on_either_side() {
        for values in [[1.0, f32::NAN], [f32::NAN, 1.0]] {
            let sources = values.map(|v| of(&[v], f32::to_ne_bytes));
            for op in [ReduceOp::Min, ReduceOp::Max] {
                let found = reduced(Float32, op, Accumulate::F32, &sources);
                assert!(f32::from_ne_bytes(array(&found)).is_nan(), "{op:?} of {values:?}");
            }
        }
    }

    #[test]
    fn complex_numbers_are_added_and_multiplied() {
        let complex = |parts: [f32; 4]| of(&parts, f32::to_ne_bytes);
        let sources = [complex([1.0, 2.0, 0.0, 1.0]), complex([3.0, -1.0, 0.0, 1.0])];
        for (op, result) in [(ReduceOp::Sum, [4.0, 1.0, 0.0, 2.0]), (ReduceOp::Prod, [5.0, 5.0, -1.0, 0.0])] {
            for accumulate in [Accumulate::F32, Accumulate::Own] {
                assert_eq!(reduced(Complex64, op, accumulate, &sources), complex(result), "{op}");
            }
        }
        let wide = [of(&[1.0, 2.0], f64::to_ne_bytes), of(&[3.0, -1.0], f64::to_ne_bytes)];
        let found = reduced(Complex128, ReduceOp::Prod, Accumulate::Own, &wide);
        assert_eq!(found, of(&[5.0, 5.0], f64::to_ne_bytes));
    }

    #[test]
    fn bits_of_integers_and_booleans() {
        let sources = [of(&[0b1100u16, 3], u16::to_ne_bytes), of(&[0b1010u16, 3], u16::to_ne_bytes)];
        for (op, result) in [(ReduceOp::And, [0b1000u16, 3]), (ReduceOp::Or, [0b1110, 3]), (ReduceOp::Xor, [0b0110, 0])]
        {
            assert_eq!(reduced(Uint16, op, Accumulate::F32, &sources), of(&result, u16::to_ne_bytes), "{op}");
        }
        // Any byte but 0 is true, and results are 0 and 1.
        let booleans = [vec![0, 0, 7, 1], vec![0, 9, 0, 255]];
        for (op, result) in [
            (ReduceOp::Sum, [0, 1, 1, 1]),
            (ReduceOp::Prod, [0, 0, 0, 1]),
            (ReduceOp::Min, [0, 0, 0, 1]),
            (ReduceOp::Max, [0, 1, 1, 1]),
            (ReduceOp::And, [0, 0, 0, 1]),
            (ReduceOp::Or, [0, 1, 1, 1]),
            (ReduceOp::Xor, [0, 1, 1, 0]),
        ] {
            assert_eq!(reduced(Bool, op, Accumulate::F32, &booleans), result, "{op}");
        }
    }

    #[test]
    fn what_elements_do_not_have_is_refused_by_name() {
        let text = |op: ReduceOp, ty| op.suits(ty).map_or_else(|error| error.to_string(), |()| String::new());
        assert_eq!(text(ReduceOp::Min, Complex64), "elements of complex64 have no min; there are sum, prod");
        assert!(text(ReduceOp::Xor, Bfloat16).contains("elements of bfloat16 have no xor"));
        for &ty in DataType::ALL {
            let there = ReduceOp::ALL.iter().filter(|op| op.suits(ty).is_ok()).count();
            let expected = match ty {
                Complex64 | Complex128 => 2,
                _ if super::super::has_bits(ty) => 7,
                _ => 4,
            };
            assert_eq!(there, expected, "{ty}");
        }
        let on_gpus = |op: ReduceOp, ty| op.suits_gpus(ty).map_or_else(|error| error.to_string(), |()| String::new());
        assert!(on_gpus(ReduceOp::Sum, Int16).contains("int16 are reduced on the host alone"));
        assert!(on_gpus(ReduceOp::Or, Int32).contains("or is an operation of the host alone"));
        assert_eq!(on_gpus(ReduceOp::Max, Float8E4m3b15), "");
    }

    #[test]
    fn division_by_the_number_of_pes() {
        let mut integers = of(&[-7i32, 9], i32::to_ne_bytes);
        divide(Int32, &mut integers, 2);
        assert_eq!(integers, of(&[-3i32, 4], i32::to_ne_bytes));
        let mut floats = of(&[-7.0f64, 9.0], f64::to_ne_bytes);
        divide(Float64, &mut floats, 4);
        assert_eq!(floats, of(&[-1.75f64, 2.25], f64::to_ne_bytes));
    }
}
