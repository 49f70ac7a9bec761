//! The types of elements: those of calls, which ranks compare, and those that sums are formed of, FP32 and bfloat16.

use half::bf16;
use symrail_core::DataType;

use crate::error::{Error, Result};

/// Refuses other types; the functions below take any other type for bfloat16.
pub(crate) fn must_be_summed(element: DataType) -> Result<()> {
    match element {
        DataType::Float32 | DataType::Bfloat16 => Ok(()),
        other => Err(Error::argument("the type of elements", other, "float32 or bfloat16")),
    }
}

/// What ranks compare.
pub(crate) const TYPES: &str = "types of elements";

/// The types of rows and of their scales as a number; `None`: bytes of any type.
pub(crate) fn types(rows: Option<DataType>, scales: Option<DataType>) -> u32 {
    let number = |ty: Option<DataType>| match ty {
        Some(ty) => DataType::ALL.iter().position(|&other| other == ty).map_or(0, |at| 1 + at as u32),
        None => 0,
    };
    number(rows) | number(scales) << 8
}

/// The types that a number stands for, as users write them.
pub(crate) fn names_of(types: u64) -> String {
    let name = |number: u64| (number as usize).checked_sub(1).and_then(|at| DataType::ALL.get(at)).map(|ty| ty.name());
    let rows = name(types & 0xff).unwrap_or("bytes");
    name(types >> 8 & 0xff).map_or_else(|| rows.into(), |scales| format!("{rows} with scales of {scales}"))
}

/// Adds a row, times `weight`, to sums.
pub(crate) fn add(element: DataType, sums: &mut [f32], row: &[u8], weight: Option<f32>) {
    let weight = weight.unwrap_or(1.0);
    if element == DataType::Float32 {
        for (sum, value) in sums.iter_mut().zip(row.as_chunks::<4>().0) {
            *sum += f32::from_ne_bytes(*value) * weight;
        }
    } else {
        for (sum, value) in sums.iter_mut().zip(row.as_chunks::<2>().0) {
            *sum += bf16::from_ne_bytes(*value).to_f32() * weight;
        }
    }
}

/// Appends sums, rounded to a type.
pub(crate) fn round(element: DataType, sums: &[f32], to: &mut Vec<u8>) {
    let start = to.len();
    to.resize(start + sums.len() * element.size(), 0);
    let row = &mut to[start..];
    if element == DataType::Float32 {
        row.as_chunks_mut::<4>().0.iter_mut().zip(sums).for_each(|(to, sum)| *to = sum.to_ne_bytes());
    } else {
        let rounded = sums.iter().map(|&sum| bf16::from_f32(sum).to_ne_bytes());
        row.as_chunks_mut::<2>().0.iter_mut().zip(rounded).for_each(|(to, sum)| *to = sum);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn each_type_has_a_number_of_its_own() {
        let all = || std::iter::once(None).chain(DataType::ALL.iter().map(|&ty| Some(ty)));
        let pairs = || all().flat_map(|rows| all().map(move |scales| (rows, scales)));
        let numbers: std::collections::HashSet<u32> = pairs().map(|(rows, scales)| types(rows, scales)).collect();
        assert_eq!(numbers.len(), pairs().count());
        let of = |rows, scales| names_of(types(rows, scales).into());
        assert_eq!(of(Some(DataType::Float16), None), "float16");
        assert_eq!(of(Some(DataType::Float8E4m3), Some(DataType::Int32)), "float8_e4m3fn with scales of int32");
        assert_eq!(of(None, None), "bytes");
    }

    #[test]
    fn types_without_sums_are_refused_by_name() {
        assert!(must_be_summed(DataType::Float32).and(must_be_summed(DataType::Bfloat16)).is_ok());
        let refused = must_be_summed(DataType::Float16).unwrap_err().to_string();
        assert_eq!(refused, "the type of elements: float16, where float32 or bfloat16 is wanted");
    }
}
