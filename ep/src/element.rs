//! The types of elements that sums are formed of: FP32 and bfloat16.

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
    fn types_without_sums_are_refused_by_name() {
        assert!(must_be_summed(DataType::Float32).and(must_be_summed(DataType::Bfloat16)).is_ok());
        let refused = must_be_summed(DataType::Float16).unwrap_err().to_string();
        assert_eq!(refused, "the type of elements: float16, where float32 or bfloat16 is wanted");
    }
}
