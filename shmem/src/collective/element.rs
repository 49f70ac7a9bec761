//! Types of a collective's elements.

use symrail_core::DataType;

/// The type of elements, as far as PEs compare it (`SYMRAIL_CHECK_COLLECTIVES`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ElementType {
    /// Bytes of any type.
    Bytes,
    /// 32 bits of any type.
    Bits32,
    /// 64 bits of any type.
    Bits64,
    /// C's `long double`.
    LongDouble,
    /// Elements of this type.
    Of(DataType),
}

use DataType::*;
use ElementType::{Bits32, Bits64, Bytes, LongDouble, Of};

/// All of them. PEs exchange the index, so that new ones go to the end.
#[rustfmt::skip]
pub(super) const NUMBERED: [ElementType; 22] = [
    Bytes, Bits32, Bits64, Of(Bool), Of(Int8), Of(Int16), Of(Int32), Of(Int64), Of(Uint8), Of(Uint16), Of(Uint32),
    Of(Uint64), Of(Float16), Of(Bfloat16), Of(Float32), Of(Float64), LongDouble, Of(Complex64), Of(Complex128),
    Of(Float8E4m3), Of(Float8E5m2), Of(Float8E4m3b15),
];

impl ElementType {
    /// Its name in messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Bytes => "bytes",
            Bits32 => "32-bit words",
            Bits64 => "64-bit words",
            LongDouble => "long double",
            Of(ty) => ty.name(),
        }
    }

    /// Its number in the comparison.
    pub(super) fn number(self) -> u64 {
        NUMBERED.iter().position(|&ty| ty == self).map_or(u64::from(u8::MAX), |index| index as u64)
    }

    /// The type with this number.
    pub(super) fn of_number(number: u64) -> Option<ElementType> {
        NUMBERED.get(usize::try_from(number).ok()?).copied()
    }
}

/// The elements that a PE contributes to a collective: their bytes and their type. A plain number is a number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Their bytes.
    pub bytes: usize,
    /// Their type.
    pub ty: ElementType,
}

impl From<usize> for Extent {
    fn from(bytes: usize) -> Extent {
        Extent { bytes, ty: ElementType::Bytes }
    }
}
