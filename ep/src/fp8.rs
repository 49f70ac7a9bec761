//! Casting rows to FP8 (e4m3, finite only) with a scale for each 128 elements.

use crate::element::Element;

/// Elements that share a scale.
pub const GROUP: usize = 128;
/// The largest value of e4m3.
const LARGEST: f32 = 448.0;
/// Groups whose values are all smaller get the scale of this one.
const SMALLEST: f32 = 1e-4;

/// The scales of a row of so many elements.
#[must_use]
pub fn scales(elements: usize) -> usize {
    elements.div_ceil(GROUP)
}

/// Casts a row: appends a byte for each element to `to`, and to `scales` for each group the factor that gives the
/// values back. With `power_of_two` factors are rounded up to a power of two.
pub fn cast(row: &[u8], element: Element, power_of_two: bool, to: &mut Vec<u8>, scales: &mut Vec<f32>) {
    for group in row.chunks(GROUP * element.bytes()) {
        let mut values = [0.0; GROUP];
        element.add(&mut values, group, None);
        let values = &values[..group.len() / element.bytes()];
        let largest = values.iter().fold(SMALLEST, |most, value| value.abs().max(most));
        let factor = if power_of_two { round_up(largest / LARGEST) } else { largest / LARGEST };
        let inverse = if power_of_two { 1.0 / factor } else { LARGEST / largest };
        to.extend(values.iter().map(|value| to_e4m3(value * inverse)));
        scales.push(factor);
    }
}

/// The smallest power of two that is not below a positive value.
fn round_up(value: f32) -> f32 {
    let bits = value.to_bits();
    f32::from_bits((bits + 0x7f_ffff) & !0x7f_ffff)
}

/// The nearest e4m3 (of two that are as near, the even one); the largest for what is beyond it.
#[must_use]
pub fn to_e4m3(value: f32) -> u8 {
    let sign = ((value.to_bits() >> 24) & 0x80) as u8;
    if value.is_nan() {
        return sign | 0x7f;
    }
    let size = value.abs().min(LARGEST);
    // Values below 2^-6 are multiples of 2^-9; adding 2^14 rounds to those.
    if size < 0.015_625 {
        return sign | (((size + 16384.0).to_bits() & 0xff) as u8);
    }
    let bits = size.to_bits();
    // Three bits of the fraction stay. Exponents are biased by 7, not by 127.
    let rounded = bits + 0x7_ffff + (bits >> 20 & 1);
    sign | ((rounded >> 20) - (120 << 3)) as u8
}

/// The value of an e4m3.
#[must_use]
pub fn of_e4m3(bits: u8) -> f32 {
    let (exponent, fraction) = (u32::from(bits >> 3 & 15), u32::from(bits & 7));
    let size = match (exponent, fraction) {
        (15, 7) => f32::NAN,
        (0, _) => fraction as f32 / 512.0,
        _ => f32::from_bits((exponent + 120) << 23 | fraction << 20),
    };
    if bits & 0x80 == 0 { size } else { -size }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_e4m3_comes_back() {
        for bits in 0..=u8::MAX {
            let value = of_e4m3(bits);
            assert!(value.is_nan() || to_e4m3(value) == bits, "{bits:#x} is {value}");
        }
        assert_eq!(of_e4m3(0x7e), LARGEST);
        assert_eq!((to_e4m3(1e9), to_e4m3(f32::NEG_INFINITY)), (0x7e, 0xfe));
        assert!(of_e4m3(to_e4m3(f32::NAN)).is_nan());
    }

    #[test]
    fn halves_go_to_the_even_one() {
        for bits in 0..0x7e {
            let half = (of_e4m3(bits) + of_e4m3(bits + 1)) / 2.0;
            let even = bits + bits % 2;
            assert_eq!((to_e4m3(half), to_e4m3(-half)), (even, even | 0x80), "{half}");
            assert_eq!(to_e4m3(half * 0.999), bits, "below {half}");
            assert_eq!(to_e4m3(half * 1.001), bits + 1, "above {half}");
        }
    }

    proptest! {
        #[test]
        fn the_nearest_is_taken(value in prop_oneof![-500f32..500.0, -0.1f32..0.1, -0.02f32..0.02]) {
            let bits = to_e4m3(value);
            let far = |bits: u8| (of_e4m3(bits) - value.clamp(-LARGEST, LARGEST)).abs();
            let nearest = (0..=u8::MAX).filter(|&bits| !of_e4m3(bits).is_nan()).map(far).fold(f32::MAX, f32::min);
            prop_assert_eq!(far(bits), nearest);
            let as_near = (0..=u8::MAX).filter(|&other| far(other) == nearest && of_e4m3(other) != of_e4m3(bits)).count();
            prop_assert!(as_near == 0 || bits.is_multiple_of(2), "{} becomes {:#x}", value, bits);
        }

        #[test]
        fn scaled_values_are_near(values in proptest::collection::vec(-1000f32..1000.0, 1..400), power in any::<bool>()) {
            let row: Vec<u8> = values.iter().flat_map(|value| value.to_ne_bytes()).collect();
            let (mut cast_row, mut factors) = (Vec::new(), Vec::new());
            cast(&row, Element::F32, power, &mut cast_row, &mut factors);
            prop_assert_eq!((cast_row.len(), factors.len()), (values.len(), scales(values.len())));
            for (i, value) in values.iter().enumerate() {
                let factor = factors[i / GROUP];
                prop_assert!(!power || factor.log2().fract() == 0.0);
                let most = if power { 2.0 } else { 1.001 };
                let error = (of_e4m3(cast_row[i]) * factor - value).abs();
                prop_assert!(error <= (value.abs() / 16.0).max(factor / 512.0) * most, "{} {}", value, error);
            }
        }
    }
}
