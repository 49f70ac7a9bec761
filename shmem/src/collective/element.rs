//! Types of a collective's elements.

use symrail_core::VariantArray;

/// The type of elements, as far as PEs compare it (`SYMRAIL_CHECK_COLLECTIVES`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, VariantArray)]
#[repr(u8)]
#[non_exhaustive]
pub enum ElementType {
    /// Bytes of any type.
    Bytes,
    /// 32 bits of any type.
    Bits32,
    /// 64 bits of any type.
    Bits64,
    /// Truth values of 8 bits.
    Bool,
    /// Signed integers of 8 bits.
    I8,
    /// Signed integers of 16 bits.
    I16,
    /// Signed integers of 32 bits.
    I32,
    /// Signed integers of 64 bits.
    I64,
    /// Unsigned integers of 8 bits.
    U8,
    /// Unsigned integers of 16 bits.
    U16,
    /// Unsigned integers of 32 bits.
    U32,
    /// Unsigned integers of 64 bits.
    U64,
    /// IEEE's half precision.
    F16,
    /// The upper half of an `f32`.
    BF16,
    /// IEEE's single precision.
    F32,
    /// IEEE's double precision.
    F64,
    /// C's `long double`.
    LongDouble,
    /// Complex numbers of two `f32`.
    C64,
    /// Complex numbers of two `f64`.
    C128,
}

impl ElementType {
    /// Its name in messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            ElementType::Bytes => "bytes",
            ElementType::Bits32 => "32-bit words",
            ElementType::Bits64 => "64-bit words",
            ElementType::Bool => "bool",
            ElementType::I8 => "int8",
            ElementType::I16 => "int16",
            ElementType::I32 => "int32",
            ElementType::I64 => "int64",
            ElementType::U8 => "uint8",
            ElementType::U16 => "uint16",
            ElementType::U32 => "uint32",
            ElementType::U64 => "uint64",
            ElementType::F16 => "float16",
            ElementType::BF16 => "bfloat16",
            ElementType::F32 => "float32",
            ElementType::F64 => "float64",
            ElementType::LongDouble => "long double",
            ElementType::C64 => "complex64",
            ElementType::C128 => "complex128",
        }
    }

    /// The type with this number.
    pub(crate) fn of_number(number: u64) -> Option<ElementType> {
        ElementType::VARIANTS.get(usize::try_from(number).ok()?).copied()
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
