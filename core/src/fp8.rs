//! Floating-point numbers of eight bits, on the host; `kernels/include/symrail/number.cuh` has them on GPUs.
//!
//! Every code has one value, which an `f32` holds exactly. The reverse conversion rounds to the nearest code, and a tie
//! to the even one. A value that is too large becomes the largest finite number, as in GPUs' saturating conversions.
//! [`f32_to_e4m3b15`] has its own rule.

/// A format with IEEE's layout: bits of mantissa, bias, and the code of the largest finite number.
struct Format {
    mantissa_bits: u32,
    bias: i32,
    largest: u8,
    nan: u8,
}

const E4M3: Format = Format { mantissa_bits: 3, bias: 7, largest: 0x7e, nan: 0x7f };
const E5M2: Format = Format { mantissa_bits: 2, bias: 15, largest: 0x7b, nan: 0x7e };

impl Format {
    /// The value of a finite code.
    fn decode(&self, code: u8) -> f32 {
        let magnitude = i32::from(code & 0x7f);
        let (exponent, mantissa) = (magnitude >> self.mantissa_bits, magnitude & ((1 << self.mantissa_bits) - 1));
        // Subnormal numbers have the smallest exponent and no hidden bit.
        let significand = if exponent == 0 { mantissa } else { mantissa | 1 << self.mantissa_bits };
        let value = significand as f32 * 2f32.powi(exponent.max(1) - self.bias - self.mantissa_bits as i32);
        if code & 0x80 == 0 { value } else { -value }
    }

    fn encode(&self, value: f32) -> u8 {
        let sign = if value.is_sign_negative() { 0x80 } else { 0 };
        if value.is_nan() {
            return sign | self.nan;
        }
        let size = value.abs().min(self.decode(self.largest));
        let dropped = f32::MANTISSA_DIGITS - 1 - self.mantissa_bits;
        let unit = 2f32.powi(1 - self.bias - self.mantissa_bits as i32);
        let normal = unit * (1 << self.mantissa_bits) as f32;
        if size < normal {
            // The sum's unit is that of these codes, so the addition rounds to them, and the sum's last bits are the
            // code.
            return sign | (size + unit * (1 << (f32::MANTISSA_DIGITS - 1)) as f32).to_bits() as u8;
        }
        // Half a unit, less one if the last bit is even: then a tie does not carry.
        let rounded = size.to_bits() + (1 << (dropped - 1)) - 1 + (size.to_bits() >> dropped & 1);
        sign | ((rounded >> dropped) - ((127 - self.bias as u32) << self.mantissa_bits)) as u8
    }
}

/// The value of an e4m3 code: bias 7; 0x7f and 0xff are NaN.
#[must_use]
pub fn e4m3_to_f32(code: u8) -> f32 {
    if code & 0x7f == 0x7f { f32::NAN.copysign(if code < 0x80 { 1.0 } else { -1.0 }) } else { E4M3.decode(code) }
}

/// The e4m3 code of a number; at most ±448.
#[must_use]
pub fn f32_to_e4m3(value: f32) -> u8 {
    E4M3.encode(value)
}

/// The value of an e5m2 code: bias 15, infinities and NaNs as in IEEE.
#[must_use]
pub fn e5m2_to_f32(code: u8) -> f32 {
    half::f16::from_bits(u16::from(code) << 8).to_f32()
}

/// The e5m2 code of a number; at most ±57344.
#[must_use]
pub fn f32_to_e5m2(value: f32) -> u8 {
    E5M2.encode(value)
}

/// The largest e4m3b15, as a half-precision number: 1.875.
const E4M3B15_LARGEST: u16 = 0x3f80;

/// The value of an e4m3b15 code: the bits of a half-precision number without the upper exponent bit.
#[must_use]
pub fn e4m3b15_to_f32(code: u8) -> f32 {
    let wide = u16::from(code) << 8;
    half::f16::from_bits(wide & 0x8000 | (wide & 0x7f00) >> 1).to_f32()
}

/// The e4m3b15 code of a number, rounded to half precision first, and then half up in magnitude. A value that is too
/// large, infinite or NaN becomes ±1.875; -0 stays -0.
#[must_use]
pub fn f32_to_e4m3b15(value: f32) -> u8 {
    let bits = half::f16::from_f32(value).to_bits();
    let magnitude = (bits & 0x7fff).min(E4M3B15_LARGEST);
    (((magnitude * 2 + 0x80).min(0x7f80) | bits & 0x8000) >> 8) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    type Codec = (&'static str, fn(u8) -> f32, fn(f32) -> u8);
    const CODECS: [Codec; 3] = [
        ("e4m3", e4m3_to_f32, f32_to_e4m3),
        ("e5m2", e5m2_to_f32, f32_to_e5m2),
        ("e4m3b15", e4m3b15_to_f32, f32_to_e4m3b15),
    ];

    #[test]
    fn every_code_comes_back() {
        for (name, decode, encode) in CODECS {
            for code in 0..=255 {
                let value = decode(code);
                if value.is_finite() {
                    assert_eq!(encode(value), code, "{name} {code:#x} is {value}");
                    assert_eq!(value.is_sign_negative(), code >= 0x80, "{name} {code:#x}");
                } else if value.is_nan() {
                    assert!(decode(encode(value)).is_nan(), "{name} {code:#x}");
                } else {
                    assert_eq!(decode(encode(value)), 57344f32.copysign(value), "infinity is the largest number");
                }
            }
        }
    }

    /// Values from the formats' definitions.
    #[test]
    fn golden_values() {
        for (code, value) in [(0x00, 0.0), (0x01, 2f32.powi(-9)), (0x08, 2f32.powi(-6)), (0x38, 1.0), (0x7e, 448.0)] {
            assert_eq!(e4m3_to_f32(code), value, "e4m3 {code:#x}");
            assert_eq!(e4m3_to_f32(code | 0x80), -value, "e4m3 {code:#x}");
        }
        for (code, value) in [(0x01, 2f32.powi(-16)), (0x04, 2f32.powi(-14)), (0x3c, 1.0), (0x7b, 57344.0)] {
            assert_eq!(e5m2_to_f32(code), value, "e5m2 {code:#x}");
        }
        assert!(e5m2_to_f32(0x7c).is_infinite() && e5m2_to_f32(0x7d).is_nan());
        for (code, value) in [(0x01, 2f32.powi(-17)), (0x08, 2f32.powi(-14)), (0x78, 1.0), (0x7f, 1.875)] {
            assert_eq!(e4m3b15_to_f32(code), value, "e4m3b15 {code:#x}");
        }
        assert!(e4m3b15_to_f32(0x80) == 0.0 && e4m3b15_to_f32(0x80).is_sign_negative());
        for special in [f32::NAN, f32::INFINITY, 3e38] {
            assert_eq!((f32_to_e4m3b15(special), f32_to_e4m3b15(-special)), (0x7f, 0xff));
        }
        assert_eq!((f32_to_e4m3(1e9), f32_to_e4m3(-f32::INFINITY)), (0x7e, 0xfe));
        assert_eq!((f32_to_e5m2(1e9), f32_to_e5m2(f32::MIN_POSITIVE)), (0x7b, 0));
    }

    /// Between two neighbours: half way, and just below and above.
    #[test]
    fn halves_go_to_the_even_code_or_up() {
        for (name, decode, encode) in CODECS {
            for code in 0..0x7f {
                let (low, high) = (decode(code), decode(code + 1));
                if !low.is_finite() || !high.is_finite() {
                    continue;
                }
                let middle = (low + high) / 2.0;
                // e4m3b15 rounds to half precision first, so values next to the middle must differ by more than its
                // precision.
                let step = if name == "e4m3b15" { 2f32.powi(-10) } else { f32::EPSILON };
                let near = |factor: f32| middle * factor;
                let even = code + code % 2;
                let expected = if name == "e4m3b15" { code + 1 } else { even };
                for sign in [0, 0x80] {
                    let signed = |value: f32| if sign == 0 { value } else { -value };
                    assert_eq!(encode(signed(middle)), expected | sign, "{name}: half way from {low} to {high}");
                    if high >= 2f32.powi(-13) {
                        assert_eq!(encode(signed(near(1.0 - step))), code | sign, "{name}: below {middle}");
                    }
                    assert_eq!(encode(signed(near(1.0 + step))), (code + 1) | sign, "{name}: above {middle}");
                }
            }
        }
    }
}
