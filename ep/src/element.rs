//! The types of elements that sums are formed of: FP32 and bfloat16.

use half::bf16;

/// A type of elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Element {
    /// 32-bit floats.
    F32,
    /// bfloat16.
    Bf16,
}

impl Element {
    /// Bytes of an element.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            Element::F32 => 4,
            Element::Bf16 => 2,
        }
    }

    /// Adds a row, times `weight`, to sums.
    pub(crate) fn add(self, sums: &mut [f32], row: &[u8], weight: Option<f32>) {
        let weight = weight.unwrap_or(1.0);
        match self {
            Element::F32 => {
                for (sum, value) in sums.iter_mut().zip(row.as_chunks::<4>().0) {
                    *sum += f32::from_ne_bytes(*value) * weight;
                }
            }
            Element::Bf16 => {
                for (sum, value) in sums.iter_mut().zip(row.as_chunks::<2>().0) {
                    *sum += bf16::from_ne_bytes(*value).to_f32() * weight;
                }
            }
        }
    }

    /// Appends sums, rounded to this type.
    pub(crate) fn round(self, sums: &[f32], to: &mut Vec<u8>) {
        let start = to.len();
        to.resize(start + sums.len() * self.bytes(), 0);
        let row = &mut to[start..];
        match self {
            Element::F32 => {
                row.as_chunks_mut::<4>().0.iter_mut().zip(sums).for_each(|(to, sum)| *to = sum.to_ne_bytes());
            }
            Element::Bf16 => {
                row.as_chunks_mut::<2>()
                    .0
                    .iter_mut()
                    .zip(sums)
                    .for_each(|(to, &sum)| *to = bf16::from_f32(sum).to_ne_bytes());
            }
        }
    }
}
