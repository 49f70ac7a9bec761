//! Arithmetic of C's `long double` by x87: 80 bits.

use std::arch::asm;
use std::cmp::Ordering;

/// The bits of a `long double`.
type Bits = [u8; 16];

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

/// `a + b`.
pub(super) fn plus(a: Bits, b: Bits) -> Bits {
    binary!("faddp", a, b)
}

/// `a * b`.
pub(super) fn times(a: Bits, b: Bits) -> Bits {
    binary!("fmulp", a, b)
}

/// The order of two numbers, if neither is a NaN. Zeros of both signs are equal.
pub(super) fn compare(a: Bits, b: Bits) -> Option<Ordering> {
    let (above, below, unordered): (u8, u8, u8);
    // SAFETY: as for the others; two values are loaded and two are dropped.
    unsafe {
        asm!(
            "fld tbyte ptr [{b}]", "fld tbyte ptr [{a}]", "fucomip st, st(1)", "fstp st(0)",
            "seta {above}", "setb {below}", "setp {unordered}",
            a = in(reg) &raw const a, b = in(reg) &raw const b,
            above = out(reg_byte) above, below = out(reg_byte) below, unordered = out(reg_byte) unordered,
            out("st(0)") _, out("st(1)") _, out("st(2)") _, out("st(3)") _,
            out("st(4)") _, out("st(5)") _, out("st(6)") _, out("st(7)") _,
            options(nostack),
        );
    }
    (unordered == 0).then(|| above.cmp(&below))
}
