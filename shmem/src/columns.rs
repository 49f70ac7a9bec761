//! Compact storage for rows of bytes that are much alike, such as the connection info of all PEs: bytes that all rows
//! share are stored once.
//!
//! The rows form a table of bytes. A column of equal bytes is stored as one byte, and a column that equals another is
//! not stored at all. So a row costs only the bytes that no other row has, such as ports, tokens and keys.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

/// Bytes of a row's length, which precedes the row.
const LENGTH: usize = 4;

/// Where the bytes of a column are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Column {
    /// One byte for all rows.
    Same(u8),
    /// In each row, at this offset.
    At(usize),
}

/// A table of rows.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Columns {
    columns: Box<[Column]>,
    /// Bytes stored for each row.
    width: usize,
    kept: Box<[u8]>,
}

impl Columns {
    /// A table of these rows, which may differ in length.
    pub fn new<R: AsRef<[u8]>>(rows: &[R]) -> Columns {
        let longest = rows.iter().map(|row| row.as_ref().len()).max().unwrap_or(0);
        let byte = |row: &[u8], at: usize| match at.checked_sub(LENGTH) {
            None => (row.len() as u32).to_le_bytes()[at],
            Some(at) => row.get(at).copied().unwrap_or(0),
        };
        let mut places: HashMap<Vec<u8>, usize> = HashMap::new();
        let columns = (0..LENGTH + longest).map(|at| {
            let column: Vec<u8> = rows.iter().map(|row| byte(row.as_ref(), at)).collect();
            match column.first() {
                Some(&first) if column.iter().any(|&byte| byte != first) => {
                    let next = places.len();
                    Column::At(*places.entry(column).or_insert(next))
                }
                first => Column::Same(first.copied().unwrap_or(0)),
            }
        });
        let columns = columns.collect();
        let width = places.len();
        let mut kept = vec![0; rows.len() * width].into_boxed_slice();
        for (column, place) in places {
            for (row, byte) in column.into_iter().enumerate() {
                kept[row * width + place] = byte;
            }
        }
        Columns { columns, width, kept }
    }

    /// A row. An index outside of the table may return a wrong row.
    pub fn row(&self, row: usize) -> Option<Vec<u8>> {
        let kept = self.kept.get(row * self.width..(row + 1) * self.width)?;
        let byte = |column: &Column| match *column {
            Column::Same(byte) => byte,
            Column::At(place) => kept[place],
        };
        let mut bytes: Vec<u8> = self.columns.iter().map(byte).collect();
        let length = u32::from_le_bytes(*bytes.first_chunk()?);
        bytes.drain(..LENGTH);
        bytes.truncate(length as usize);
        Some(bytes)
    }

    /// Bytes stored for each row.
    #[cfg(any(test, feature = "simulation"))]
    pub fn width(&self) -> usize {
        self.width
    }

    /// The table as bytes.
    pub fn encode(&self) -> Vec<u8> {
        symrail_core::encoding::encode(self)
    }

    /// Decodes a table of `rows` rows; `None` if it is malformed.
    pub fn decode(bytes: &[u8], rows: usize) -> Option<Columns> {
        let table: Columns = postcard::from_bytes(bytes).ok()?;
        let inside = |column: &Column| !matches!(column, Column::At(place) if *place >= table.width);
        let whole = table.width.checked_mul(rows) == Some(table.kept.len());
        (whole && table.columns.len() >= LENGTH && table.columns.iter().all(inside)).then_some(table)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn rows_come_back() {
        // Rows with few distinct bytes and with different lengths, in tables of all kinds.
        for (count, seed) in (0..20).flat_map(|count| (0..20).map(move |seed| (count, seed))) {
            let byte = |row: u32, at: u32| (row.wrapping_mul(seed).wrapping_add(at * at) % 7 / 3) as u8;
            let length = |row: u32| if seed % 3 == 0 { 9 } else { (row * seed) % 11 };
            let row = |row: u32| (0..length(row)).map(|at| byte(row, at)).collect::<Vec<u8>>();
            let rows: Vec<Vec<u8>> = (0..count).map(row).collect();
            let table = Columns::new(&rows);
            let read = Columns::decode(&table.encode(), rows.len()).unwrap();
            for table in [table, read] {
                assert!(rows.iter().enumerate().all(|(at, row)| table.row(at).as_ref() == Some(row)), "{count} {seed}");
            }
        }
    }

    #[test]
    fn what_is_the_same_in_all_rows_or_twice_in_each_costs_nothing() {
        let row = |pe: u8| [b"provider ", &[pe][..], b" key ", &[pe ^ 7, pe], b"."].concat();
        let table = Columns::new(&(0..200).map(row).collect::<Vec<_>>());
        assert_eq!(table.width(), 2);
        assert_eq!(table.row(77).unwrap(), row(77));
        assert_eq!(Columns::new(&[row(1)]).width(), 0);
        let bytes = table.encode();
        assert!(Columns::decode(&bytes, 201).is_none() && Columns::decode(&bytes, 199).is_none());
        (0..bytes.len()).for_each(|len| assert!(Columns::decode(&bytes[..len], 200).is_none(), "{len}"));
    }
}
