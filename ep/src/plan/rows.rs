//! The parts of a row in transfer: the token and its side data.

use symrail_core::DataType;

use crate::error::{Error, Result};

/// Consecutive rows of equal size.
#[derive(Debug, Clone, Copy)]
pub struct Rows<'a> {
    data: &'a [u8],
    bytes: usize,
    element: Option<DataType>,
}

/// The parts of a row begin at multiples of this many bytes, so that every path may copy them in large units.
const ALIGNMENT: usize = 16;

impl<'a> Rows<'a> {
    /// Rows of `bytes` each.
    ///
    /// # Errors
    /// Rows of 0 bytes, or a length that is not a multiple of the row size.
    pub fn new(data: &'a [u8], bytes: usize) -> Result<Rows<'a>> {
        if bytes == 0 || !data.len().is_multiple_of(bytes) {
            return Err(Error::argument("bytes of a row", bytes, format!("a divisor of {} bytes", data.len())));
        }
        Ok(Rows { data, bytes, element: None })
    }

    /// The same rows, with the type of their elements, which ranks compare.
    #[must_use]
    pub fn of(self, element: DataType) -> Rows<'a> {
        Rows { element: Some(element), ..self }
    }

    /// The type of their elements, if it is known.
    #[must_use]
    pub fn element(&self) -> Option<DataType> {
        self.element
    }

    /// Bytes of a row.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The number of rows.
    #[must_use]
    pub fn count(&self) -> usize {
        self.data.len() / self.bytes
    }

    /// One row.
    #[must_use]
    pub fn row(&self, index: usize) -> &'a [u8] {
        &self.data[index * self.bytes..][..self.bytes]
    }

    /// All rows.
    #[must_use]
    pub fn data(&self) -> &'a [u8] {
        self.data
    }

    /// Refuses a different number of rows.
    pub(crate) fn must_be(&self, what: &'static str, count: usize) -> Result<()> {
        if self.count() == count {
            return Ok(());
        }
        Err(Error::argument(what, format!("{} rows", self.count()), format!("{count}")))
    }
}

/// The parts of a row: the token, its scales, its top-k slots (indices and weights), its index at the source, and a
/// mask of the ranks of a host that get it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowFormat {
    /// Bytes of the token.
    pub token: usize,
    /// Bytes of its scales.
    pub scales: usize,
    /// The number of slots with an index.
    pub indices: usize,
    /// The number of slots with a weight.
    pub weights: usize,
    /// Bytes of the index at the source.
    pub number: usize,
    /// Bytes of the mask.
    pub mask: usize,
}

impl RowFormat {
    /// The offset of the scales.
    #[must_use]
    pub fn scales_at(&self) -> usize {
        self.token.next_multiple_of(ALIGNMENT)
    }

    /// The offset of the indices, weights, index at the source and mask, which are consecutive.
    #[must_use]
    pub fn rest_at(&self) -> usize {
        (self.scales_at() + self.scales).next_multiple_of(ALIGNMENT)
    }

    /// Bytes of the indices, weights, index at the source and mask.
    #[must_use]
    pub fn rest(&self) -> usize {
        4 * (self.indices + self.weights) + self.number + self.mask
    }

    /// Bytes of the whole row.
    #[must_use]
    pub fn bytes(&self) -> usize {
        (self.rest_at() + self.rest()).next_multiple_of(ALIGNMENT)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn parts_do_not_overlap(token in 1usize..20_000, scales in 0usize..500, k in 0usize..33, (number, mask) in (0usize..9, 0usize..9)) {
            let format = RowFormat { token, scales, indices: k, weights: k, number, mask };
            prop_assert!(token <= format.scales_at() && format.scales_at() + scales <= format.rest_at());
            prop_assert!(format.rest_at() + format.rest() <= format.bytes());
            prop_assert!(format.bytes() - token - scales - format.rest() < 3 * ALIGNMENT);
            prop_assert_eq!(format.bytes() % ALIGNMENT + format.rest_at() % ALIGNMENT, 0);
        }
    }
}
