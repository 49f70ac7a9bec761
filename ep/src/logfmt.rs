//! Rows of a low-latency combine in 10 bits for each element (LogFMT-10): a sign, and the logarithm of the magnitude
//! between the smallest and the largest one of a group of elements.
//!
//! As DeepEP's, a group is encoded if all its magnitudes are below 1 and not all are equal. Logarithms more than 32 below
//! the largest one are cut off. Other groups travel as they are.
//!
//! `cu/logfmt.cuh` computes the same for bfloat16, with the same bits: logarithms and powers are sums and products here,
//! each rounded to FP32, in a fixed order.

use std::f32::consts::{LN_2, LOG2_E};

use symrail_core::DataType;

use crate::element;

/// The number of elements of a group.
pub const GROUP: usize = 128;
/// The range of logarithms (of base 2) of a group.
const RANGE: f32 = 32.0;
/// The largest code of a magnitude; 0 is the code of 0.
const LARGEST: u64 = 511;
/// The series of powers of 2, from that of the fifth power on.
const POWERS: [f32; 6] = [1.333_355_8e-3, 9.618_129e-3, 5.550_411e-2, 0.240_226_5, LN_2, 1.0];

/// The magnitudes of an encoded group: 0, and `smallest` times powers of 2 to the `step`.
struct Scale {
    log_of_smallest: f32,
    step: f32,
}

/// The logarithm (of base 2) of a magnitude. Of one that is not finite it is above 127.
fn log2(value: f32) -> f32 {
    if value == 0.0 {
        return f32::NEG_INFINITY;
    }
    let (value, shift) = if value < f32::MIN_POSITIVE { (value * (1 << 23) as f32, 23) } else { (value, 0) };
    let exponent = (value.to_bits() >> 23 & 0xFF) as i32 - 127 - shift;
    let mantissa = f32::from_bits(value.to_bits() & 0x7F_FFFF | 1f32.to_bits());
    // The series of the inverse hyperbolic tangent.
    let part = (mantissa - 1.0) / (mantissa + 1.0);
    let square = part * part;
    let sum = [13.0, 11.0, 9.0, 7.0, 5.0, 3.0, 1.0].iter().fold(1.0 / 15.0, |sum, of| sum * square + 1.0 / of);
    exponent as f32 + part * sum * (2.0 * LOG2_E)
}

/// 2 to a power that is at most 0.
fn exp2(power: f32) -> f32 {
    let whole = power.round_ties_even();
    let part = power - whole;
    let sum = POWERS.iter().fold(1.540_353e-4, |sum, of| sum * part + of);
    // In two steps, because the least results are below the least power that is a normal number.
    let (all, some) = (whole as i32, (whole as i32).max(-100));
    let power_of_two = |to: i32| f32::from_bits(((to + 127) as u32) << 23);
    sum * power_of_two(some) * power_of_two(all - some)
}

impl Scale {
    /// The scale of a group, from its largest and its smallest magnitude; `None` if the group is not encoded.
    fn of([largest, smallest]: [f32; 2]) -> Option<Scale> {
        let log = log2(largest);
        let log_of_smallest = log2(smallest).max(log - RANGE);
        // Also for a group of zeros, and for one that is not finite.
        let is_encoded = log < 0.0 && log_of_smallest < log;
        is_encoded.then(|| Scale { log_of_smallest, step: (log - log_of_smallest) / (LARGEST - 1) as f32 })
    }

    fn encode(&self, value: f32) -> u64 {
        // Of two neighbours the nearer one, by magnitude and not by logarithm.
        let (inverse, nearer) = (1.0 / self.step, 1.5 - LN_2 / 8.0 * self.step);
        let code = ((log2(value.abs()) - self.log_of_smallest) * inverse + nearer).max(0.0) as u64;
        code.min(LARGEST) << 1 | u64::from(value.is_sign_negative())
    }

    fn decode(&self, code: u64) -> f32 {
        let magnitude = match code >> 1 & LARGEST {
            0 => 0.0,
            code => exp2((code - 1) as f32 * self.step + self.log_of_smallest),
        };
        if code & 1 == 0 { magnitude } else { -magnitude }
    }
}

/// The largest and the smallest magnitude.
fn limits(values: &[f32]) -> [f32; 2] {
    let [largest, smallest] = values.iter().fold([0.0f32, f32::INFINITY], |[largest, smallest], value| {
        [largest.max(value.abs()), smallest.min(value.abs())]
    });
    // The functions above leave out what is no number.
    if values.iter().any(|value| value.is_nan()) { [f32::NAN; 2] } else { [largest, smallest] }
}

/// Appends a row: for each group its limits, then 10 bits for each element, or the elements.
pub fn encode(row: &[u8], element: DataType, to: &mut Vec<u8>) {
    for group in row.chunks(GROUP * element.size()) {
        let mut values = [0.0; GROUP];
        element::add(element, &mut values, group, None);
        let values = &values[..group.len() / element.size()];
        let limits = limits(values);
        element::round(element, &limits, to);
        let Some(scale) = Scale::of(limits) else {
            to.extend_from_slice(group);
            continue;
        };
        for four in values.chunks(4) {
            let codes = four.iter().rev().fold(0, |codes, &value| codes << 10 | scale.encode(value));
            to.extend_from_slice(&codes.to_le_bytes()[..(10 * four.len()).div_ceil(8)]);
        }
    }
}

/// Reads a row from the start of `from`. Returns the rest; `None` if `from` is too short.
pub fn decode<'a>(mut from: &'a [u8], element: DataType, row: &mut [u8]) -> Option<&'a [u8]> {
    for group in row.chunks_mut(GROUP * element.size()) {
        let mut limits = [0.0; 2];
        let its_limits;
        (its_limits, from) = from.split_at_checked(2 * element.size())?;
        element::add(element, &mut limits, its_limits, None);
        let Some(scale) = Scale::of(limits) else {
            let its_bytes;
            (its_bytes, from) = from.split_at_checked(group.len())?;
            group.copy_from_slice(its_bytes);
            continue;
        };
        let mut values = Vec::with_capacity(GROUP);
        let mut left = group.len() / element.size();
        while left > 0 {
            let (some, its_codes);
            some = left.min(4);
            (its_codes, from) = from.split_at_checked((10 * some).div_ceil(8))?;
            let mut bytes = [0; 8];
            bytes[..its_codes.len()].copy_from_slice(its_codes);
            let codes = u64::from_le_bytes(bytes);
            values.extend((0..some).map(|i| scale.decode(codes >> (10 * i))));
            left -= some;
        }
        let mut rounded = Vec::with_capacity(group.len());
        element::round(element, &values, &mut rounded);
        group.copy_from_slice(&rounded);
    }
    Some(from)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    fn there_and_back(values: &[f32], element: DataType) -> (Vec<f32>, Vec<f32>, usize) {
        let mut row = Vec::new();
        element::round(element, values, &mut row);
        let mut encoded = vec![7];
        encode(&row, element, &mut encoded);
        let mut back = vec![0; row.len()];
        assert_eq!(decode(&encoded[1..], element, &mut back), Some(&[][..]));
        assert!((1..encoded.len()).all(|end| decode(&encoded[1..end], element, &mut back.clone()).is_none()));
        let floats = |row: &[u8]| {
            let mut found = vec![0.0; values.len()];
            element::add(element, &mut found, row, None);
            found
        };
        (floats(&row), floats(&back), encoded.len() - 1)
    }

    proptest! {
        #[test]
        fn magnitudes_are_near_and_signs_and_zeros_exact(
            values in proptest::collection::vec((-1f32..1.0, 0i32..40), 1..400), f32s in any::<bool>(),
        ) {
            let element = if f32s { DataType::Float32 } else { DataType::Bfloat16 };
            let values: Vec<f32> = values.iter().map(|(value, down)| 0.99 * value * (-*down as f32 / 4.0).exp2()).collect();
            let (given, found, _) = there_and_back(&values, element);
            for (given, found) in given.chunks(GROUP).zip(found.chunks(GROUP)) {
                let [largest, smallest] = limits(given);
                let Some(scale) = Scale::of([largest, smallest]) else {
                    prop_assert_eq!(given, found);
                    continue;
                };
                // Half of a step, and the rounding of bfloat16.
                let apart = (scale.step.exp2() - 1.0) / 2.0 + 0.005;
                for (given, found) in given.iter().zip(found) {
                    prop_assert!((given - found).abs() <= apart * given.abs() + largest * 3e-10, "{} {}", given, found);
                    prop_assert!(*found == 0.0 || given.signum() == found.signum());
                }
            }
        }
    }

    #[test]
    fn logarithms_and_powers_are_near() {
        for bits in (1..f32::INFINITY.to_bits()).step_by(99_991) {
            let value = f32::from_bits(bits);
            let wanted = f64::from(value).log2();
            assert!((f64::from(log2(value)) - wanted).abs() <= 2e-7 * wanted.abs().max(1.0), "{value}");
        }
        for power in (0..1_650_000).map(|i| i as f32 / -1e4) {
            let wanted = f64::from(power).exp2();
            assert!((f64::from(exp2(power)) - wanted).abs() <= 3e-7 * wanted + 1e-45, "{power}");
        }
        assert!(log2(f32::NAN) > 127.0 && log2(f32::INFINITY) > 127.0 && exp2(0.0) == 1.0);
    }

    #[test]
    fn groups_with_large_equal_or_no_numbers_travel_as_they_are() {
        for odd in [1.0, -700.0, f32::INFINITY, f32::NAN] {
            let mut values: Vec<f32> = (0..300).map(|i| i as f32 / 512.0).collect();
            values[130] = odd;
            let (given, found, bytes) = there_and_back(&values, DataType::Bfloat16);
            assert_eq!(
                given[128..256].iter().map(|v| v.to_bits()).collect::<Vec<_>>(),
                found[128..256].iter().map(|v| v.to_bits()).collect::<Vec<_>>()
            );
            // Two groups of 10 bits each, of which one has 44 elements.
            assert_eq!(bytes, (4 + 160) + (4 + 256) + (4 + 55));
        }
        for same in [0.0, -0.25] {
            let (given, found, _) = there_and_back(&[same; 128], DataType::Float32);
            assert_eq!(given, found);
        }
    }
}
