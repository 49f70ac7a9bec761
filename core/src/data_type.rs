//! Types of the elements of arrays.

use strum::{Display, EnumString, IntoStaticStr, VariantArray};

use crate::error::{Error, Result};

/// A type of elements, with NCCL's name where NCCL has it. Its text is its name in NumPy, ml_dtypes and PyTorch.
/// Interfaces that take few of the types refuse the others by an error that names those that they take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Display, EnumString, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "lowercase")]
#[allow(missing_docs)] // integers, IEEE's floats, and complex numbers of two of these, with their number of bits
pub enum DataType {
    Int8,
    Uint8,
    Int32,
    Uint32,
    Int64,
    Uint64,
    Float16,
    /// The upper half of a `Float32`.
    Bfloat16,
    Float32,
    Float64,
    /// 8 bits: 4 of exponent, 3 of mantissa, a NaN and no infinities.
    #[strum(serialize = "float8_e4m3fn")]
    Float8E4m3,
    /// 8 bits: 5 of exponent, 2 of mantissa, with IEEE's infinities and NaNs.
    #[strum(serialize = "float8_e5m2")]
    Float8E5m2,
    /// 8 bits: 4 of exponent with a bias of 15, 3 of mantissa, neither NaN nor infinities.
    #[strum(serialize = "float8_e4m3b15")]
    Float8E4m3b15,
    /// Booleans: bytes that are 0 or not.
    Bool,
    Int16,
    Uint16,
    Complex64,
    Complex128,
}

use DataType::*;

impl DataType {
    /// All of them.
    pub const ALL: &[DataType] = DataType::VARIANTS;

    /// Its name, as [`FromStr`](std::str::FromStr) reads it.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// Bytes of an element.
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            Int8 | Uint8 | Float8E4m3 | Float8E5m2 | Float8E4m3b15 | Bool => 1,
            Float16 | Bfloat16 | Int16 | Uint16 => 2,
            Int32 | Uint32 | Float32 => 4,
            Int64 | Uint64 | Float64 | Complex64 => 8,
            Complex128 => 16,
        }
    }

    /// Whether its elements are integers, signed or not.
    #[must_use]
    pub const fn is_integer(self) -> bool {
        matches!(self, Int8 | Int16 | Int32 | Int64) || self.is_unsigned()
    }

    /// Whether its elements are integers without a sign.
    #[must_use]
    pub const fn is_unsigned(self) -> bool {
        matches!(self, Uint8 | Uint16 | Uint32 | Uint64)
    }

    /// Whether its elements are real floating-point numbers.
    #[must_use]
    pub const fn is_float(self) -> bool {
        matches!(self, Float16 | Bfloat16 | Float32 | Float64 | Float8E4m3 | Float8E5m2 | Float8E4m3b15)
    }

    /// Its index in `known`, the types that `by` takes.
    ///
    /// # Errors
    /// [`Error::Unsupported`], which names `known`, if it is not one of them.
    pub fn index_in(self, known: &[DataType], by: &str) -> Result<usize> {
        known.iter().position(|&ty| ty == self).ok_or_else(|| {
            let names: Vec<_> = known.iter().map(|ty| ty.name()).collect();
            let (what, remedy) = (format!("an array of {self}"), format!("use {}", names.join(", ")));
            Error::Unsupported { what, by: by.into(), remedy }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_sizes_and_kinds_agree() {
        for &ty in DataType::ALL {
            let name = ty.name();
            assert_eq!((name.parse(), ty.to_string().as_str()), (Ok(ty), name));
            let start = name.split('_').next().unwrap_or(name);
            let bits: usize = start.trim_start_matches(char::is_alphabetic).parse().unwrap_or(8);
            let has = |kinds: &[&str]| kinds.contains(&start.trim_end_matches(char::is_numeric));
            let found = (8 * ty.size(), ty.is_integer(), ty.is_unsigned(), ty.is_float());
            assert_eq!(found, (bits, has(&["int", "uint"]), has(&["uint"]), has(&["float", "bfloat"])), "{name}");
        }
        assert_eq!([Int32, Float8E4m3, Complex128].map(DataType::name), ["int32", "float8_e4m3fn", "complex128"]);
    }

    #[test]
    fn another_type_is_refused_by_name() {
        let index = |ty: DataType| ty.index_in(&[Float32, Bfloat16], "sums").map_err(|error| error.to_string());
        assert_eq!(index(Bfloat16), Ok(1));
        let text = "an array of int8 is not supported by sums; use float32, bfloat16";
        assert_eq!(index(Int8), Err(text.into()));
    }
}
