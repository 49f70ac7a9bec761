//! Casts of rows to FP8 (e4m3, finite only) with a scale for each 128 elements.

use symrail_core::DataType;
use symrail_core::fp8::f32_to_e4m3;

use crate::element;
use crate::error::Result;

/// The number of elements that share a scale.
pub const GROUP: usize = 128;
/// The largest value of e4m3.
const LARGEST: f32 = 448.0;
/// A group whose values are all smaller gets the scale of this value.
const SMALLEST: f32 = 1e-4;

/// The number of scales of a row with this many elements.
#[must_use]
pub fn scales(elements: usize) -> usize {
    elements.div_ceil(GROUP)
}

/// Casts a row. It appends a byte for each element to `to`. For each group it appends to `scales` the factor that
/// restores the values; `power_of_two` rounds factors up to a power of two.
///
/// # Errors
/// Elements that are neither float32 nor bfloat16.
pub fn cast(row: &[u8], element: DataType, power_of_two: bool, to: &mut Vec<u8>, scales: &mut Vec<f32>) -> Result<()> {
    element::must_be_summed(element)?;
    for group in row.chunks(GROUP * element.size()) {
        let mut values = [0.0; GROUP];
        element::add(element, &mut values, group, None);
        let values = &values[..group.len() / element.size()];
        let largest = values.iter().fold(SMALLEST, |most, value| value.abs().max(most));
        let factor = if power_of_two { round_up(largest / LARGEST) } else { largest / LARGEST };
        let inverse = if power_of_two { 1.0 / factor } else { LARGEST / largest };
        to.extend(values.iter().map(|value| f32_to_e4m3(value * inverse)));
        scales.push(factor);
    }
    Ok(())
}

/// The smallest power of two that is not below a positive value.
fn round_up(value: f32) -> f32 {
    let bits = value.to_bits();
    f32::from_bits((bits + 0x7f_ffff) & !0x7f_ffff)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;
    use symrail_core::fp8::e4m3_to_f32;

    use super::*;

    proptest! {
        #[test]
        fn scaled_values_are_near(values in proptest::collection::vec(-1000f32..1000.0, 1..400), power in any::<bool>()) {
            let row: Vec<u8> = values.iter().flat_map(|value| value.to_ne_bytes()).collect();
            let (mut cast_row, mut factors) = (Vec::new(), Vec::new());
            cast(&row, DataType::Float32, power, &mut cast_row, &mut factors).unwrap();
            prop_assert_eq!((cast_row.len(), factors.len()), (values.len(), scales(values.len())));
            for (i, value) in values.iter().enumerate() {
                let factor = factors[i / GROUP];
                prop_assert!(!power || factor.log2().fract() == 0.0);
                let most = if power { 2.0 } else { 1.001 };
                let error = (e4m3_to_f32(cast_row[i]) * factor - value).abs();
                prop_assert!(error <= (value.abs() / 16.0).max(factor / 512.0) * most, "{} {}", value, error);
            }
        }
    }
}
