//! Types of elements, and their reduction.
//!
//! | file | concept |
//! |---|---|
//! | here | the types |
//! | `reduce` | the reduction of several arrays to one |

mod reduce;

use crate::error::{Error, Result};
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
    /// Booleans: bytes that are 0 or not.
    #[strum(serialize = "bool")]
    Bool,
    /// Signed integers of 16 bits.
    #[strum(serialize = "int16")]
    I16,
    /// Unsigned integers of 16 bits.
    #[strum(serialize = "uint16")]
    U16,
    /// Complex numbers of two `f32`.
    #[strum(serialize = "complex64")]
    C64,
    /// Complex numbers of two `f64`.
    #[strum(serialize = "complex128")]
    C128,
}

impl DataType {
    /// All of them.
    pub const ALL: &[DataType] = <DataType as strum::VariantArray>::VARIANTS;

    /// Those that kernels of GPUs reduce: all but the last five.
    pub const ON_GPUS: &[DataType] = DataType::ALL.split_at(DataType::ALL.len() - 5).0;

    /// Bytes of an element.
    #[must_use]
    pub fn size(self) -> usize {
        match self {
            DataType::I8 | DataType::U8 | DataType::E4M3 | DataType::E5M2 | DataType::E4M3B15 | DataType::Bool => 1,
            DataType::F16 | DataType::BF16 | DataType::I16 | DataType::U16 => 2,
            DataType::I32 | DataType::U32 | DataType::F32 => 4,
            DataType::I64 | DataType::U64 | DataType::F64 | DataType::C64 => 8,
            DataType::C128 => 16,
        }
    }

    /// Whether its elements are integers or booleans, whose bits have operations.
    fn has_bits(self) -> bool {
        use DataType::{Bool, I8, I16, I32, I64, U8, U16, U32, U64};
        matches!(self, Bool | I8 | I16 | I32 | I64 | U8 | U16 | U32 | U64)
    }
}

impl ReduceOp {
    /// Those that kernels of GPUs have.
    pub const ON_GPUS: [ReduceOp; 4] = [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Min, ReduceOp::Max];

    /// Whether elements of this type have the operation.
    ///
    /// # Errors
    /// They do not: the error names those that they have.
    pub fn suits(self, ty: DataType) -> Result<()> {
        let has = |op: &ReduceOp| match op {
            ReduceOp::Sum | ReduceOp::Prod => true,
            ReduceOp::Min | ReduceOp::Max => !matches!(ty, DataType::C64 | DataType::C128),
            ReduceOp::And | ReduceOp::Or | ReduceOp::Xor => ty.has_bits(),
        };
        if has(&self) {
            return Ok(());
        }
        let there: Vec<String> = ReduceOp::ALL.iter().filter(|op| has(op)).map(ToString::to_string).collect();
        Err(Error::Call(format!("elements of {ty} have no {self}; there are {}", there.join(", "))))
    }

    /// Whether kernels of GPUs reduce elements of this type with the operation.
    ///
    /// # Errors
    /// They do not: the error names what they have.
    pub fn suits_gpus(self, ty: DataType) -> Result<()> {
        fn names(all: &[impl ToString]) -> String {
            all.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
        }
        if !DataType::ON_GPUS.contains(&ty) {
            let types = names(DataType::ON_GPUS);
            return Err(Error::Call(format!("elements of {ty} are reduced on the host alone; GPUs reduce {types}")));
        }
        if !ReduceOp::ON_GPUS.contains(&self) {
            let ops = names(&ReduceOp::ON_GPUS);
            return Err(Error::Call(format!("{self} is an operation of the host alone; GPUs have {ops} and avg")));
        }
        Ok(())
    }
}
