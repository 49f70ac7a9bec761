//! The reduction of several arrays to one.

use half::{bf16, f16};
use serde::{Deserialize, Serialize};
use symrail_core::{fp8, order};

use super::DataType;

/// The operation on the elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ReduceOp {
    /// The sum; integers wrap.
    Sum,
    /// The product; integers wrap.
    Prod,
    /// The minimum.
    Min,
    /// The maximum.
    Max,
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
                }
            }
            fn divide(value: $ty, by: u32) -> $ty { (i128::from(value) / i128::from(by)) as $ty }
        }
    )*};
}

integer! { i8 u8 i32 u32 i64 u64 }

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
                }
            }
            fn divide(value: $worked, by: u32) -> $worked { value / by as $worked }
        }
    )*};
}

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
            DataType::I8 => $function::<i8>($($argument),*),
            DataType::U8 => $function::<u8>($($argument),*),
            DataType::I32 => $function::<i32>($($argument),*),
            DataType::U32 => $function::<u32>($($argument),*),
            DataType::I64 => $function::<i64>($($argument),*),
            DataType::U64 => $function::<u64>($($argument),*),
            DataType::F16 => $function::<f16>($($argument),*),
            DataType::BF16 => $function::<bf16>($($argument),*),
            DataType::F32 => $function::<f32>($($argument),*),
            DataType::F64 => $function::<f64>($($argument),*),
            DataType::E4M3 => $function::<E4M3>($($argument),*),
            DataType::E5M2 => $function::<E5M2>($($argument),*),
            DataType::E4M3B15 => $function::<E4M3B15>($($argument),*),
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
    let mut bytes = [0; 8];
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
            let found = reduced(DataType::I8, op, Accumulate::F32, &sources);
            assert_eq!(found, of(&result, i8::to_ne_bytes), "{op:?}");
        }
        let large = [of(&[u64::MAX; 200], u64::to_ne_bytes), of(&[2u64; 200], u64::to_ne_bytes)];
        assert_eq!(reduced(DataType::U64, ReduceOp::Sum, Accumulate::F32, &large), of(&[1u64; 200], u64::to_ne_bytes));
    }

    /// 2048 + 1 + 1 is 2048 in half precision if it is rounded after each step, and 2050 if it is rounded once.
    #[test]
    fn narrow_types_accumulate_as_asked() {
        let halves = [2048.0, 1.0, 1.0].map(|v| of(&[f16::from_f32(v)], f16::to_ne_bytes));
        for (accumulate, sum) in [(Accumulate::F32, 2050.0), (Accumulate::Own, 2048.0)] {
            let found = reduced(DataType::F16, ReduceOp::Sum, accumulate, &halves);
            assert_eq!(f16::from_ne_bytes(array(&found)).to_f32(), sum, "{accumulate:?}");
        }
        let bytes = [16.0, 1.0, 1.0].map(|v| vec![fp8::f32_to_e4m3(v)]);
        for (accumulate, sum) in [(Accumulate::F32, 18.0), (Accumulate::Own, 16.0)] {
            let found = reduced(DataType::E4M3, ReduceOp::Sum, accumulate, &bytes);
            assert_eq!(fp8::e4m3_to_f32(found[0]), sum, "{accumulate:?}");
        }
    }

    #[test]
    fn a_nan_wins_on_either_side() {
        for values in [[1.0, f32::NAN], [f32::NAN, 1.0]] {
            let sources = values.map(|v| of(&[v], f32::to_ne_bytes));
            for op in [ReduceOp::Min, ReduceOp::Max] {
                let found = reduced(DataType::F32, op, Accumulate::F32, &sources);
                assert!(f32::from_ne_bytes(array(&found)).is_nan(), "{op:?} of {values:?}");
            }
        }
    }

    #[test]
    fn division_by_the_number_of_pes() {
        let mut integers = of(&[-7i32, 9], i32::to_ne_bytes);
        divide(DataType::I32, &mut integers, 2);
        assert_eq!(integers, of(&[-3i32, 4], i32::to_ne_bytes));
        let mut floats = of(&[-7.0f64, 9.0], f64::to_ne_bytes);
        divide(DataType::F64, &mut floats, 4);
        assert_eq!(floats, of(&[-1.75f64, 2.25], f64::to_ne_bytes));
    }
}
