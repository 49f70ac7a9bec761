//! Types of elements, and their reduction.
//!
//! | file | concept |
//! |---|---|
//! | here | the types |
//! | `reduce` | the reduction of several arrays to one |

mod reduce;

pub use reduce::{Accumulate, ReduceOp};
pub(crate) use reduce::{divide, reduce};

/// The type of a collective's elements. Its text is its name, as NumPy and ml_dtypes have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, strum::VariantArray, strum::Display, strum::EnumString)]
#[non_exhaustive]
pub enum DataType {
    /// Signed integers of 8 bits.
    #[strum(serialize = "int8")]
    I8,
    /// Unsigned integers of 8 bits.
    #[strum(serialize = "uint8")]
    U8,
    /// Signed integers of 32 bits.
    #[strum(serialize = "int32")]
    I32,
    /// Unsigned integers of 32 bits.
    #[strum(serialize = "uint32")]
    U32,
    /// Signed integers of 64 bits.
    #[strum(serialize = "int64")]
    I64,
    /// Unsigned integers of 64 bits.
    #[strum(serialize = "uint64")]
    U64,
    /// IEEE's half precision.
    #[strum(serialize = "float16")]
    F16,
    /// The upper half of an `f32`.
    #[strum(serialize = "bfloat16")]
    BF16,
    /// IEEE's single precision.
    #[strum(serialize = "float32")]
    F32,
    /// IEEE's double precision.
    #[strum(serialize = "float64")]
    F64,
    /// 8 bits: 4 of exponent, 3 of mantissa, a NaN and no infinities.
    #[strum(serialize = "float8_e4m3fn")]
    E4M3,
    /// 8 bits: 5 of exponent, 2 of mantissa, with IEEE's infinities and NaNs.
    #[strum(serialize = "float8_e5m2")]
    E5M2,
    /// 8 bits: 4 of exponent with a bias of 15, 3 of mantissa, neither NaN nor infinities.
    #[strum(serialize = "float8_e4m3b15")]
    E4M3B15,
}

impl DataType {
    /// All of them.
    pub const ALL: &[DataType] = <DataType as strum::VariantArray>::VARIANTS;

    /// Bytes of an element.
    #[must_use]
    pub fn size(self) -> usize {
        match self {
            DataType::I8 | DataType::U8 | DataType::E4M3 | DataType::E5M2 | DataType::E4M3B15 => 1,
            DataType::F16 | DataType::BF16 => 2,
            DataType::I32 | DataType::U32 | DataType::F32 => 4,
            DataType::I64 | DataType::U64 | DataType::F64 => 8,
        }
    }
}
