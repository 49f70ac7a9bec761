//! The host library's numbers of operations and AMOs, and their transport equivalents.

use std::ffi::c_int;

use symrail_transport::amo::{AmoOp, AmoType};

/// Remote accesses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rma {
    /// Writes.
    Put,
    /// Writes a value; the caller may reuse its memory at once.
    P,
    /// Reads.
    Get,
}

impl Rma {
    /// The operation for the host library's number.
    pub fn from_number(number: c_int) -> Option<Rma> {
        Some(match number {
            1 => Rma::Put,
            2 => Rma::P,
            4 | 5 => Rma::Get,
            _ => return None,
        })
    }
}

/// The AMO verb of 3.4 to 3.6.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct AmoVerb16 {
    pub desc: c_int,
    pub is_fetch: c_int,
    pub is_val: c_int,
    pub is_cmp: c_int,
}

/// The AMO verb since 3.7, which is passed in memory instead of in registers.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct AmoVerb20 {
    pub desc: c_int,
    pub is_fetch: c_int,
    pub is_val: c_int,
    pub is_cmp: c_int,
    pub is_float: c_int,
}

/// The common accessors of both.
pub trait AmoVerb: Copy {
    fn number(&self) -> c_int;
    fn is_float(&self) -> bool;
}

impl AmoVerb for AmoVerb16 {
    fn number(&self) -> c_int {
        self.desc
    }
    fn is_float(&self) -> bool {
        false
    }
}

impl AmoVerb for AmoVerb20 {
    fn number(&self) -> c_int {
        self.desc
    }
    fn is_float(&self) -> bool {
        self.is_float != 0
    }
}

/// A decoded AMO.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Amo {
    pub op: AmoOp,
    pub ty: AmoType,
    /// Replaces the caller's operand.
    pub operand: Option<u64>,
    /// Whether the old value is wanted.
    pub fetch: bool,
}

impl Amo {
    /// The AMO for the host library's number, the word's size in bytes, and whether it is a floating-point number.
    pub fn from_number(number: c_int, bytes: c_int, is_float: bool) -> Option<Amo> {
        // Only sums depend on the type; all other AMOs move bits.
        let (op, one, fetch) = match number {
            2 => (AmoOp::Add, true, false),
            3 | 8 | 9 => (AmoOp::Set, false, false),
            4 | 10 => (AmoOp::Add, false, false),
            5 => (AmoOp::And, false, false),
            6 => (AmoOp::Or, false, false),
            7 => (AmoOp::Xor, false, false),
            12 => (AmoOp::Fetch, false, true),
            13 => (AmoOp::Add, true, true),
            14 => (AmoOp::Add, false, true),
            15 => (AmoOp::And, false, true),
            16 => (AmoOp::Or, false, true),
            17 => (AmoOp::Xor, false, true),
            18 => (AmoOp::Set, false, true),
            19 => (AmoOp::CompareSwap, false, true),
            _ => return None,
        };
        let float = is_float && op == AmoOp::Add;
        let (ty, unit) = match (bytes, float) {
            (4, false) => (AmoType::U32, 1),
            (8, false) => (AmoType::U64, 1),
            (4, true) => (AmoType::F32, u64::from(1f32.to_bits())),
            (8, true) => (AmoType::F64, 1f64.to_bits()),
            _ => return None,
        };
        Some(Amo { op, ty, operand: one.then_some(unit), fetch })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_understood_or_refused() {
        assert_eq!((size_of::<AmoVerb16>(), size_of::<AmoVerb20>()), (16, 20));
        let known: Vec<_> = (0..30).filter(|&n| Amo::from_number(n, 8, false).is_some()).collect();
        assert_eq!(known, [2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 13, 14, 15, 16, 17, 18, 19]);
        let fetching: Vec<_> = (0..30).filter(|&n| Amo::from_number(n, 4, false).is_some_and(|a| a.fetch)).collect();
        assert_eq!(fetching, (12..=19).collect::<Vec<_>>());
        assert!(Amo::from_number(4, 2, false).is_none());
        let inc = Amo { op: AmoOp::Add, ty: AmoType::F64, operand: Some(1f64.to_bits()), fetch: true };
        assert_eq!(Amo::from_number(13, 8, true), Some(inc));
        assert_eq!(Amo::from_number(19, 8, true).map(|a| a.ty), Some(AmoType::U64));
        let rma: Vec<_> = (0..10).filter(|&n| Rma::from_number(n).is_some()).collect();
        assert_eq!(rma, [1, 2, 4, 5]);
    }
}
