//! The smaller and the greater of two elements of a reduction.
//!
//! If one element is a NaN, so is the result, whichever operand it is. So the result does not depend on the order in
//! which PEs' elements are combined. NCCL has the same rule.

/// The smaller element; a NaN if one of them is a NaN.
#[inline]
#[must_use]
pub fn least<T: PartialOrd>(a: T, b: T) -> T {
    if b < a || is_nan(&b) { b } else { a }
}

/// The greater element; a NaN if one of them is a NaN.
#[inline]
#[must_use]
pub fn greatest<T: PartialOrd>(a: T, b: T) -> T {
    if b > a || is_nan(&b) { b } else { a }
}

/// Only a NaN differs from itself.
#[allow(clippy::eq_op)]
fn is_nan<T: PartialOrd>(value: &T) -> bool {
    value != value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nan_wins_on_either_side() {
        for (a, b) in [(1.0, f64::NAN), (f64::NAN, 1.0), (f64::NAN, f64::INFINITY), (f64::NEG_INFINITY, f64::NAN)] {
            assert!(least(a, b).is_nan() && greatest(a, b).is_nan(), "{a} and {b}");
        }
        assert_eq!((least(-1, 2), greatest(-1, 2)), (-1, 2));
        assert_eq!((least(0.5, -2.0), greatest(0.5, -2.0)), (-2.0, 0.5));
    }
}
