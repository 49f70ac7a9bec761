//! The start of a block: the shape and the number of its rows.

use symrail::Pe;

use crate::element::TYPES;
use crate::error::{Error, Result};
use crate::plan::rows::RowFormat;

/// Bytes before the first row.
pub const BYTES: usize = 32;

/// What a sender reports of its rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Start {
    pub format: RowFormat,
    /// The types of the rows and their scales.
    pub types: u32,
    pub experts: usize,
    pub rows: usize,
    /// The bytes of all rows if they are encoded ([`logfmt`](crate::logfmt)), and otherwise 0.
    pub encoded: usize,
}

const WHAT: [&str; 5] = ["bytes of a row", "bytes of a row's scales", "top-k slots", "number of experts", TYPES];

impl Start {
    fn common(&self) -> [usize; 5] {
        [self.format.token, self.format.scales, self.format.indices, self.experts, self.types as usize]
    }

    pub fn to_bytes(self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        let numbers = self.common().into_iter().chain([self.rows, self.encoded]);
        for (to, number) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(numbers) {
            *to = (number as u32).to_ne_bytes();
        }
        bytes
    }

    /// The number of rows that another rank has sent, and their bytes if they are encoded. An error if their shape differs from that of this rank's rows, or
    /// if there are more than fit.
    pub fn rows_of(&self, bytes: [u8; BYTES], most: usize, me: Pe, other: Pe) -> Result<(usize, usize)> {
        let mut numbers = bytes.as_chunks::<4>().0.iter().map(|word| u32::from_ne_bytes(*word) as usize);
        for (what, here) in WHAT.iter().zip(self.common()) {
            let there = numbers.next().unwrap_or(0);
            if here != there {
                return Err(Error::differ(what, me, here as u64, other, there as u64));
            }
        }
        let rows = numbers.next().unwrap_or(0);
        if rows > most {
            let what = "rows that fit into a block, and rows that were sent";
            return Err(Error::differ(what, me, most as u64, other, rows as u64));
        }
        Ok((rows, numbers.next().unwrap_or(0)))
    }
}
