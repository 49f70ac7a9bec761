//! The types of rows that are added: FP32 and bfloat16.

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
                    *sum += of_bf16(u16::from_ne_bytes(*value)) * weight;
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
                row.as_chunks_mut::<2>().0.iter_mut().zip(sums).for_each(|(to, &sum)| *to = to_bf16(sum).to_ne_bytes());
            }
        }
    }
}

/// The value of a bfloat16.
#[must_use]
pub fn of_bf16(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// The nearest bfloat16; of two that are as near, the even one.
#[must_use]
pub fn to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    if value.is_nan() {
        return (bits >> 16) as u16 | 0x40;
    }
    // Half a unit, less one if the last bit is even: then the half itself does not carry.
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
    (rounded >> 16) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bfloat16_comes_back() {
        for bits in 0..=u16::MAX {
            let value = of_bf16(bits);
            assert!(value.is_nan() || to_bf16(value) == bits, "{bits:#x}");
            assert!(!value.is_nan() || of_bf16(to_bf16(value)).is_nan(), "{bits:#x}");
        }
    }

    #[test]
    fn what_lies_between_goes_to_the_nearer_and_halves_to_the_even_one() {
        for bits in (0x3f80u16..0x4080).chain(0xbf80..0xc080) {
            let (low, high) = (of_bf16(bits).to_bits(), of_bf16(bits + 1).to_bits());
            let half = f32::from_bits(low + (high - low) / 2);
            assert_eq!(to_bf16(half), if bits % 2 == 0 { bits } else { bits + 1 });
            assert_eq!(to_bf16(f32::from_bits(half.to_bits() - 1)), bits);
            assert_eq!(to_bf16(f32::from_bits(half.to_bits() + 1)), bits + 1);
        }
    }
}
