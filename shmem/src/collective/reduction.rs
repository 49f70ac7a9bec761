//! Reductions: how two elements are combined.

use super::element::{ElementType, Extent};
use super::number::{Arithmetic, Bits, Divide, Element, Ordered};

/// An operation on elements of one type.
#[derive(Clone, Copy)]
pub struct Reduction {
    size: usize,
    ty: ElementType,
    /// Its name in the comparison of PEs' calls.
    call: &'static str,
    /// One function with the other elements as second operands, and one with them as first operands.
    combine: [unsafe fn(*mut u8, *const u8, usize); 2],
    /// Divides so many elements by the number of PEs, for an average.
    divide: Option<unsafe fn(*mut u8, usize, u32)>,
}

impl std::fmt::Debug for Reduction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of {}", self.call, self.ty.name())
    }
}

impl Reduction {
    /// Bytes of an element.
    #[must_use]
    pub fn size(&self) -> usize {
        self.size
    }

    /// Combines each of `count` elements at `into` with the one at `from`.
    ///
    /// # Safety
    /// Both are aligned and have so many elements.
    pub(super) unsafe fn combine(&self, into: *mut u8, from: *const u8, count: usize) {
        // SAFETY: the caller's promise.
        unsafe { (self.combine[0])(into, from, count) }
    }

    /// As [`Reduction::combine`], with the element at `from` as the first operand if `from_first`.
    ///
    /// # Safety
    /// As for [`Reduction::combine`].
    pub(super) unsafe fn combine_ordered(&self, into: *mut u8, from: *const u8, count: usize, from_first: bool) {
        // SAFETY: the caller's promise.
        unsafe { (self.combine[usize::from(from_first)])(into, from, count) }
    }

    /// Makes the result of `count` combined elements of `pes` PEs: divides the sums of an average.
    ///
    /// # Safety
    /// `sums` is aligned and has so many elements.
    pub(super) unsafe fn finish(&self, sums: *mut u8, count: usize, pes: u32) {
        if let Some(divide) = self.divide {
            // SAFETY: the caller's promise.
            unsafe { divide(sums, count, pes) }
        }
    }

    pub(super) fn call(&self) -> &'static str {
        self.call
    }

    /// `count` elements.
    pub(super) fn extent(&self, count: usize) -> Extent {
        Extent { bytes: count.saturating_mul(self.size), ty: self.ty }
    }

    const fn of<T: Element>(call: &'static str, combine: [unsafe fn(*mut u8, *const u8, usize); 2]) -> Reduction {
        Reduction { size: size_of::<T>(), ty: T::TYPE, call, combine, divide: None }
    }

    /// The sum divided by the number of PEs; integers wrap, and their quotient is rounded towards 0.
    #[must_use]
    pub const fn average<T: Divide>() -> Reduction {
        unsafe fn divide<T: Divide>(sums: *mut u8, count: usize, pes: u32) {
            let sums = sums.cast::<T>();
            for i in 0..count {
                // SAFETY: the caller's promise.
                unsafe { sums.add(i).write(sums.add(i).read().over(pes)) };
            }
        }
        Reduction { call: "average reduction", divide: Some(divide::<T>), ..Reduction::sum::<T>() }
    }
}

macro_rules! reductions {
    ($($(#[$doc:meta])* $name:ident: $trait:ident::$method:ident;)*) => {
        impl Reduction {$(
            $(#[$doc])*
            #[must_use]
            pub const fn $name<T: $trait>() -> Reduction {
                unsafe fn combine<T: $trait, const FROM_FIRST: bool>(into: *mut u8, from: *const u8, count: usize) {
                    let (into, from) = (into.cast::<T>(), from.cast::<T>());
                    for i in 0..count {
                        // SAFETY: the caller's promise.
                        unsafe {
                            let (a, b) = (into.add(i).read(), from.add(i).read());
                            into.add(i).write(if FROM_FIRST { b.$method(a) } else { a.$method(b) });
                        }
                    }
                }
                let combine = [combine::<T, false> as unsafe fn(*mut u8, *const u8, usize), combine::<T, true>];
                Reduction::of::<T>(concat!(stringify!($name), " reduction"), combine)
            }
        )*}
    };
}

reductions! {
    /// The sum; integers wrap.
    sum: Arithmetic::plus;
    /// The product; integers wrap.
    product: Arithmetic::times;
    /// The minimum; a NaN if any element is a NaN.
    min: Ordered::least;
    /// The maximum; a NaN if any element is a NaN.
    max: Ordered::greatest;
    /// Bitwise and.
    and: Bits::and;
    /// Bitwise or.
    or: Bits::or;
    /// Bitwise exclusive or.
    xor: Bits::xor;
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::*;
    use crate::collective::number::{Bool, Complex, LongDouble};

    fn combined<T: Copy>(reduction: Reduction, mut a: Vec<T>, b: &[T]) -> Vec<T> {
        // SAFETY: both have as many elements as `b`.
        unsafe { reduction.combine(a.as_mut_ptr().cast(), b.as_ptr().cast(), b.len()) };
        a
    }

    #[test]
    fn integers_wrap_and_floats_compare() {
        assert_eq!(combined(Reduction::sum::<i8>(), vec![127i8, 1], &[1, 2]), [-128, 3]);
        assert_eq!(combined(Reduction::product::<u16>(), vec![40_000u16, 3], &[2, 3]), [14_464, 9]);
        assert_eq!(combined(Reduction::xor::<u64>(), vec![0b1100u64], &[0b1010]), [0b0110]);
        assert_eq!(combined(Reduction::min::<f64>(), vec![1.0, -2.0], &[-1.0, 5.0]), [-1.0, -2.0]);
        assert_eq!(combined(Reduction::max::<i32>(), vec![1i32, -2], &[-1, 5]), [1, 5]);
        let (a, b) = (Complex { re: 1.0, im: 2.0 }, Complex { re: 3.0, im: -1.0 });
        assert_eq!(combined(Reduction::product::<Complex<f64>>(), vec![a], &[b]), [Complex { re: 5.0, im: 5.0 }]);
    }

    #[test]
    fn a_nan_wins_on_either_side_in_all_types() {
        fn wins<T: Ordered>(nan: T, one: T, is_nan: impl Fn(&T) -> bool) {
            for reduction in [Reduction::min::<T>(), Reduction::max::<T>()] {
                let found = combined(reduction, vec![nan, one], &[one, nan]);
                assert!(found.iter().all(&is_nan), "{reduction:?}");
                let mut swapped = vec![one, nan];
                // SAFETY: two elements each.
                unsafe { reduction.combine_ordered(swapped.as_mut_ptr().cast(), [nan, one].as_ptr().cast(), 2, true) };
                assert!(swapped.iter().all(&is_nan), "{reduction:?}");
            }
        }
        wins(f32::NAN, 1.0, |value| value.is_nan());
        wins(f64::NAN, 1.0, |value| value.is_nan());
        wins(f16::NAN, f16::ONE, |value| value.is_nan());
        wins(bf16::NAN, bf16::ONE, |value| value.is_nan());
        #[cfg(target_arch = "x86_64")]
        wins(long_double(3 << 62, 0x7fff), long_double(1 << 63, 16_383), |value| {
            value.0[7] == 0xc0 && value.0[9] == 0x7f
        });
    }

    #[test]
    fn averages_are_sums_that_are_divided() {
        fn of_three<T: Divide>(values: [T; 3]) -> T {
            let reduction = Reduction::average::<T>();
            let mut sum = combined(reduction, vec![values[0]], &[values[1]]);
            sum = combined(reduction, sum, &[values[2]]);
            // SAFETY: one element.
            unsafe { reduction.finish(sum.as_mut_ptr().cast(), 1, 3) };
            sum[0]
        }
        assert_eq!(of_three([-1i32, -4, -3]), -2);
        assert_eq!(of_three([u64::MAX, 4, 0]), 1, "the sum wraps");
        assert_eq!(of_three([1.0f64, 2.0, 6.0]), 3.0);
        assert_eq!(of_three([1.0f32, 2.0, 6.0].map(f16::from_f32)), f16::from_f32(3.0));
        assert_eq!(of_three([1.0f32, 2.0, 6.0].map(bf16::from_f32)), bf16::from_f32(3.0));
        let complex = |re: f32| Complex { re, im: -re };
        assert_eq!(of_three([1.0, 2.0, 6.0].map(complex)), complex(3.0));
    }

    #[test]
    fn truth_values_stay_ones_and_zeros() {
        let (a, b) = (vec![Bool(0), Bool(2), Bool(0), Bool(2)], [Bool(0), Bool(0), Bool(4), Bool(4)]);
        let bytes = |reduction: Reduction| combined(reduction, a.clone(), &b).iter().map(|v| v.0).collect::<Vec<_>>();
        for reduction in [Reduction::or::<Bool>(), Reduction::sum::<Bool>()] {
            assert_eq!(bytes(reduction), [0, 1, 1, 1], "{reduction:?}");
        }
        for reduction in [Reduction::and::<Bool>(), Reduction::product::<Bool>()] {
            assert_eq!(bytes(reduction), [0, 0, 0, 1], "{reduction:?}");
        }
        assert_eq!(bytes(Reduction::xor::<Bool>()), [0, 1, 1, 0]);
        assert_eq!(combined(Reduction::max::<Bool>(), a.clone(), &b)[1..].iter().filter(|v| v.get()).count(), 3);
        assert_eq!(combined(Reduction::min::<Bool>(), a, &b).iter().filter(|v| v.get()).count(), 1);
    }

    /// Explicit leading bit, exponent bias 16383.
    #[cfg(target_arch = "x86_64")]
    fn long_double(mantissa: u64, exponent: u16) -> LongDouble {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&mantissa.to_le_bytes());
        bytes[8..10].copy_from_slice(&exponent.to_le_bytes());
        LongDouble(bytes)
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn long_doubles_keep_all_their_bits() {
        // 1 + 2^-63, which no double can hold, and 3.
        let number = long_double;
        let (a, b) = (number(1 << 63 | 1, 16_383), number(3 << 62, 16_384));
        let head = |n: &LongDouble| n.0[..10].to_vec();
        let sum = combined(Reduction::sum::<LongDouble>(), vec![a], &[b]);
        // 4 + 2^-63 rounds to even: 4.
        assert_eq!(head(&sum[0]), head(&number(1 << 63, 16_385)));
        let product = combined(Reduction::product::<LongDouble>(), vec![a], &[number(1 << 63, 16_384)]);
        assert_eq!(head(&product[0]), head(&number(1 << 63 | 1, 16_384)));
        for (x, y) in [(a, b), (b, a)] {
            assert_eq!(head(&combined(Reduction::min::<LongDouble>(), vec![x], &[y])[0]), head(&a));
            assert_eq!(head(&combined(Reduction::max::<LongDouble>(), vec![x], &[y])[0]), head(&b));
        }
    }
}
