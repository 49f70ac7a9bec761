//! Reductions: how two elements are combined.

/// An operation on elements of one type.
#[derive(Clone, Copy)]
pub struct Reduction {
    size: usize,
    /// Its name in the comparison of PEs' calls.
    call: &'static str,
    /// One function with the other elements as second operands, and one with them as first operands.
    combine: [unsafe fn(*mut u8, *const u8, usize); 2],
}

impl std::fmt::Debug for Reduction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Reduction of elements of {} bytes", self.size)
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

    pub(super) fn call(&self) -> &'static str {
        self.call
    }

    const fn of<T: Copy>(call: &'static str, combine: [unsafe fn(*mut u8, *const u8, usize); 2]) -> Reduction {
        Reduction { size: size_of::<T>(), call, combine }
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
    /// The minimum.
    min: Ordered::least;
    /// The maximum.
    max: Ordered::greatest;
    /// Bitwise and.
    and: Bits::and;
    /// Bitwise or.
    or: Bits::or;
    /// Bitwise exclusive or.
    xor: Bits::xor;
}

/// Types that can be added and multiplied.
pub trait Arithmetic: Copy {
    /// The sum.
    #[must_use]
    fn plus(self, other: Self) -> Self;
    /// The product.
    #[must_use]
    fn times(self, other: Self) -> Self;
}

/// Types with an order.
pub trait Ordered: Copy {
    /// The smaller one.
    #[must_use]
    fn least(self, other: Self) -> Self;
    /// The greater one.
    #[must_use]
    fn greatest(self, other: Self) -> Self;
}

/// Types with bitwise operations.
pub trait Bits: Copy {
    /// Bitwise and.
    #[must_use]
    fn and(self, other: Self) -> Self;
    /// Bitwise or.
    #[must_use]
    fn or(self, other: Self) -> Self;
    /// Bitwise exclusive or.
    #[must_use]
    fn xor(self, other: Self) -> Self;
}

macro_rules! integers {
    ($($t:ty)*) => {$(
        impl Arithmetic for $t {
            #[inline]
            fn plus(self, other: $t) -> $t { self.wrapping_add(other) }
            #[inline]
            fn times(self, other: $t) -> $t { self.wrapping_mul(other) }
        }
        impl Ordered for $t {
            #[inline]
            fn least(self, other: $t) -> $t { self.min(other) }
            #[inline]
            fn greatest(self, other: $t) -> $t { self.max(other) }
        }
        impl Bits for $t {
            #[inline]
            fn and(self, other: $t) -> $t { self & other }
            #[inline]
            fn or(self, other: $t) -> $t { self | other }
            #[inline]
            fn xor(self, other: $t) -> $t { self ^ other }
        }
    )*};
}
integers! { i8 u8 i16 u16 i32 u32 i64 u64 isize usize }

macro_rules! floats {
    ($($t:ty)*) => {$(
        impl Arithmetic for $t {
            #[inline]
            fn plus(self, other: $t) -> $t { self + other }
            #[inline]
            fn times(self, other: $t) -> $t { self * other }
        }
        impl Ordered for $t {
            #[inline]
            fn least(self, other: $t) -> $t { if other < self { other } else { self } }
            #[inline]
            fn greatest(self, other: $t) -> $t { if other > self { other } else { self } }
        }
    )*};
}
floats! { f32 f64 }

/// C's complex numbers.
#[derive(Debug, Clone, Copy, PartialEq)]
#[repr(C)]
pub struct Complex<T> {
    /// The real part.
    pub re: T,
    /// The imaginary part.
    pub im: T,
}

macro_rules! complex {
    ($($t:ty)*) => {$(
        impl Arithmetic for Complex<$t> {
            #[inline]
            fn plus(self, other: Self) -> Self { Complex { re: self.re + other.re, im: self.im + other.im } }
            #[inline]
            fn times(self, other: Self) -> Self {
                let re = self.re * other.re - self.im * other.im;
                Complex { re, im: self.re * other.im + self.im * other.re }
            }
        }
    )*};
}
complex! { f32 f64 }

/// C's `long double`: 80 bits in 16 bytes on x86-64.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(16))]
pub struct LongDouble([u8; 16]);

#[cfg(target_arch = "x86_64")]
mod extended {
    use super::{Arithmetic, LongDouble, Ordered};
    use std::arch::asm;

    macro_rules! binary {
        ($instruction:literal, $a:expr, $b:expr) => {{
            let (mut a, b) = ($a, $b);
            // SAFETY: loads and stores ten bytes of 16-byte values; the floating-point stack ends as it was.
            unsafe {
                asm!(
                    "fld tbyte ptr [{b}]", "fld tbyte ptr [{a}]", $instruction, "fstp tbyte ptr [{a}]",
                    a = in(reg) &raw mut a, b = in(reg) &raw const b,
                    out("st(0)") _, out("st(1)") _, out("st(2)") _, out("st(3)") _,
                    out("st(4)") _, out("st(5)") _, out("st(6)") _, out("st(7)") _,
                    options(nostack),
                );
            }
            a
        }};
    }

    impl Arithmetic for LongDouble {
        fn plus(self, other: Self) -> Self {
            binary!("faddp", self, other)
        }

        fn times(self, other: Self) -> Self {
            binary!("fmulp", self, other)
        }
    }

    /// Whether `a` is greater than `b`.
    fn above(a: LongDouble, b: LongDouble) -> bool {
        let result: u8;
        // SAFETY: as for the others; two values are loaded and two are dropped.
        unsafe {
            asm!(
                "fld tbyte ptr [{b}]", "fld tbyte ptr [{a}]", "fucomip st, st(1)", "fstp st(0)", "seta {result}",
                a = in(reg) &raw const a, b = in(reg) &raw const b, result = lateout(reg_byte) result,
                out("st(0)") _, out("st(1)") _, out("st(2)") _, out("st(3)") _,
                out("st(4)") _, out("st(5)") _, out("st(6)") _, out("st(7)") _,
                options(nostack),
            );
        }
        result != 0
    }

    impl Ordered for LongDouble {
        fn least(self, other: Self) -> Self {
            if above(self, other) { other } else { self }
        }

        fn greatest(self, other: Self) -> Self {
            if above(other, self) { other } else { self }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn long_doubles_keep_all_their_bits() {
        // Explicit leading bit, exponent bias 16383: 1 + 2^-63, which no double can hold, and 3.
        let number = |mantissa: u64, exponent: u16| {
            let mut bytes = [0; 16];
            bytes[..8].copy_from_slice(&mantissa.to_le_bytes());
            bytes[8..10].copy_from_slice(&exponent.to_le_bytes());
            LongDouble(bytes)
        };
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
