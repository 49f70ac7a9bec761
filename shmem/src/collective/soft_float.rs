//! Arithmetic of C's `long double` in software, for processors without x87: IEEE's binary128, and on x86-64, where
//! tests compare it with the processor's, 80 bits with an explicit leading bit. Results are rounded to nearest, ties to
//! even.

use std::cmp::Ordering;

/// The bits of a `long double`.
type Bits = [u8; 16];

/// Bits of a mantissa, the leading one included.
const PRECISION: u32 = if cfg!(target_arch = "x86_64") { 64 } else { 113 };
const LEADING: u128 = 1 << (PRECISION - 1);
const BIAS: i32 = 16_383;
/// The exponent of infinities and NaNs.
const SPECIAL: i32 = 0x7fff;
/// Bits below a mantissa while a result is rounded: guard, round and sticky.
const EXTRA: u32 = 3;

/// A number: `mantissa` · 2^(`exponent` - BIAS - PRECISION + 1).
#[derive(Clone, Copy)]
struct Parts {
    negative: bool,
    exponent: i32,
    mantissa: u128,
}

impl Parts {
    fn of(bits: Bits) -> Parts {
        let all = u128::from_le_bytes(bits);
        let explicit = PRECISION == 64;
        let head = if explicit { all >> 64 } else { all >> 112 };
        let stored = (head & 0x7fff) as i32;
        let fraction = if explicit { all & u128::from(u64::MAX) } else { all & (LEADING - 1) };
        let mantissa = if explicit || stored == 0 { fraction } else { fraction | LEADING };
        Parts { negative: head >> 15 & 1 == 1, exponent: stored.max(1), mantissa }
    }

    fn bits(self) -> Bits {
        let stored = if self.mantissa & LEADING == 0 { 0 } else { self.exponent as u128 };
        let head = stored | u128::from(self.negative) << 15;
        let all =
            if PRECISION == 64 { self.mantissa | head << 64 } else { self.mantissa & (LEADING - 1) | head << 112 };
        all.to_le_bytes()
    }

    fn special(negative: bool, mantissa: u128) -> Parts {
        Parts { negative, exponent: SPECIAL, mantissa: mantissa | LEADING }
    }

    fn is_nan(self) -> bool {
        self.exponent == SPECIAL && self.mantissa & (LEADING - 1) != 0
    }

    fn is_infinite(self) -> bool {
        self.exponent == SPECIAL && self.mantissa & (LEADING - 1) == 0
    }

    /// The quiet NaN of an operand.
    fn quiet(self) -> Parts {
        Parts { mantissa: self.mantissa | LEADING >> 1, ..self }
    }

    /// The same number with its leading bit set, if it is not 0.
    fn normal(self) -> Parts {
        let shift = (self.mantissa.leading_zeros() - LEADING.leading_zeros()) * u32::from(self.mantissa != 0);
        Parts { exponent: self.exponent - shift as i32, mantissa: self.mantissa << shift, ..self }
    }

    /// Rounds a number whose mantissa has EXTRA more bits than its exponent says.
    fn rounded(negative: bool, mut exponent: i32, mut mantissa: u128) -> Parts {
        if mantissa == 0 {
            return Parts { negative, exponent: 1, mantissa };
        }
        let highest = 127 - mantissa.leading_zeros() as i32;
        let wanted = (PRECISION - 1 + EXTRA) as i32;
        // Denormal results keep the smallest exponent.
        let up = (wanted - highest).min(exponent - 1);
        exponent -= up;
        mantissa = if up >= 0 { mantissa << up } else { shifted_down(mantissa, up.unsigned_abs()) };
        let below = mantissa & 7;
        mantissa >>= EXTRA;
        if below > 4 || below == 4 && mantissa & 1 == 1 {
            mantissa += 1;
        }
        if mantissa == LEADING << 1 {
            (mantissa, exponent) = (LEADING, exponent + 1);
        }
        if exponent >= SPECIAL { Parts::special(negative, 0) } else { Parts { negative, exponent, mantissa } }
    }
}

/// The mantissa without its `by` lowest bits; the lowest bit that stays tells whether one of them was set.
fn shifted_down(mantissa: u128, by: u32) -> u128 {
    match by {
        0 => mantissa,
        1..=127 => mantissa >> by | u128::from(mantissa << (128 - by) != 0),
        _ => u128::from(mantissa != 0),
    }
}

/// The product of two numbers of 128 bits: its high and its low half.
fn product(a: u128, b: u128) -> (u128, u128) {
    let half = u128::from(u64::MAX);
    let (a_high, a_low, b_high, b_low) = (a >> 64, a & half, b >> 64, b & half);
    let low = a_low * b_low;
    let middle = a_high * b_low + (low >> 64);
    let other = a_low * b_high + (middle & half);
    (a_high * b_high + (middle >> 64) + (other >> 64), other << 64 | low & half)
}

/// `a + b`.
pub(super) fn plus(a: Bits, b: Bits) -> Bits {
    let (a, b) = (Parts::of(a), Parts::of(b));
    let sum = if a.is_nan() {
        a.quiet()
    } else if b.is_nan() {
        b.quiet()
    } else if a.is_infinite() {
        if b.is_infinite() && a.negative != b.negative { Parts::special(true, LEADING >> 1) } else { a }
    } else if b.is_infinite() {
        b
    } else {
        let (big, small) = if (a.exponent, a.mantissa) >= (b.exponent, b.mantissa) { (a, b) } else { (b, a) };
        let aligned = shifted_down(small.mantissa << EXTRA, (big.exponent - small.exponent).unsigned_abs());
        let mantissa = big.mantissa << EXTRA;
        if a.negative == b.negative {
            Parts::rounded(a.negative, big.exponent, mantissa + aligned)
        } else {
            let difference = mantissa - aligned;
            Parts::rounded(big.negative && difference != 0, big.exponent, difference)
        }
    };
    sum.bits()
}

/// `a * b`.
pub(super) fn times(a: Bits, b: Bits) -> Bits {
    let (a, b) = (Parts::of(a), Parts::of(b));
    let negative = a.negative != b.negative;
    let product = if a.is_nan() {
        a.quiet()
    } else if b.is_nan() {
        b.quiet()
    } else if a.is_infinite() || b.is_infinite() {
        let zero = a.mantissa == 0 || b.mantissa == 0;
        if zero { Parts::special(true, LEADING >> 1) } else { Parts::special(negative, 0) }
    } else {
        let (a, b) = (a.normal(), b.normal());
        let (high, low) = product(a.mantissa, b.mantissa);
        let by = PRECISION - 1 - EXTRA;
        let mantissa = high << (128 - by) | shifted_down(low, by);
        let exponent = a.exponent + b.exponent - BIAS;
        // Below the smallest exponent all bits are lost but the one that says so.
        let deeper = (1 - exponent).max(0).unsigned_abs();
        Parts::rounded(negative, exponent.max(1), shifted_down(mantissa, deeper))
    };
    product.bits()
}

/// The order of two numbers, if neither is a NaN. Zeros of both signs are equal.
pub(super) fn compare(a: Bits, b: Bits) -> Option<Ordering> {
    let (a, b) = (Parts::of(a), Parts::of(b));
    if a.is_nan() || b.is_nan() {
        return None;
    }
    if a.mantissa == 0 && b.mantissa == 0 {
        return Some(Ordering::Equal);
    }
    let size = (a.exponent, a.mantissa).cmp(&(b.exponent, b.mantissa));
    Some(match (a.negative, b.negative) {
        (false, false) => size,
        (true, true) => size.reverse(),
        (false, true) => Ordering::Greater,
        (true, false) => Ordering::Less,
    })
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;
    use crate::collective::x87;

    /// Zeros, denormals, numbers of all sizes and close to one another, infinities and NaNs.
    fn any_number(random: &mut impl FnMut() -> u64) -> Bits {
        let exponent = match random() % 16 {
            0 => 0,
            1 => 0x7fff,
            2 => random() % 70,
            3 => 0x7ffe - random() % 70,
            4 => 8191 + random() % 80,
            5 => 8191 - random() % 40,
            _ => 16_313 + random() % 140,
        };
        let fraction = match random() % 6 {
            0 => 0,
            1 => 1 << (random() % 64),
            2 => u64::MAX,
            3 => random() >> (random() % 64),
            _ => random(),
        };
        let mantissa = if exponent == 0 { fraction & !(1 << 63) } else { fraction | 1 << 63 };
        (u128::from(mantissa) | u128::from(exponent | (random() % 2) << 15) << 64).to_le_bytes()
    }

    #[test]
    fn results_are_those_of_the_processor() {
        let mut state = 0x2545_f491_4f6c_dd1d_u64;
        let mut random = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        for _ in 0..200_000 {
            let (a, b) = (any_number(&mut random), any_number(&mut random));
            let shown = |bits| format!("{:x}", u128::from_le_bytes(bits));
            // NaNs differ in their signs and payloads.
            let same = |a: Bits, b: Bits| Parts::of(a).is_nan() && Parts::of(b).is_nan() || a[..10] == b[..10];
            assert!(same(plus(a, b), x87::plus(a, b)), "{} + {}", shown(a), shown(b));
            assert!(same(times(a, b), x87::times(a, b)), "{} * {}", shown(a), shown(b));
            assert_eq!(compare(a, b), x87::compare(a, b), "{} and {}", shown(a), shown(b));
        }
    }
}
