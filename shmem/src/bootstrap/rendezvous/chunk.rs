//! The contributions of consecutive PEs to a step, on the wire.
//!
//! ```text
//! first PE 4 · number of PEs 4 · form 1 · contributions
//! ```
//! There are three forms: contributions one after the other, each behind its length; a table that stores once what they
//! share; or, if all are empty, nothing.

use std::ops::Range;
use std::sync::Arc;

use symrail_transport::Pe;

use super::wire::{MAX_PAYLOAD, u32_at};
use crate::columns::Columns;

const HEADER: usize = 9;
const PLAIN: u8 = 0;
const TABLE: u8 = 1;
const EMPTY: u8 = 2;
/// The longest contributions for which the table form is tried.
const IN_TABLE_MAX: usize = 64 << 10;

/// The payloads of the frames that carry the contributions of PEs from `first` on, each behind the same header. Each
/// frame holds as many contributions as fit; there is at least one frame.
pub(super) fn pack<R: AsRef<[u8]>>(header: &[u8], first: Pe, rows: &[R]) -> Vec<Arc<[u8]>> {
    if rows.iter().all(|row| row.as_ref().is_empty()) {
        return vec![Arc::from(begin(header, first, rows.len(), EMPTY))];
    }
    let mut frames = Vec::new();
    let mut rest = rows;
    while !rest.is_empty() {
        let start = first + (rows.len() - rest.len()) as Pe;
        let mut bytes = header.len() + HEADER;
        let fits = |row: &&R| {
            bytes += 4 + row.as_ref().len();
            bytes <= MAX_PAYLOAD
        };
        // One contribution always fits.
        let count = rest.iter().take_while(fits).count().max(1);
        let (now, later) = rest.split_at(count);
        frames.push(Arc::from(table(header, start, now).unwrap_or_else(|| plain(header, start, now))));
        rest = later;
    }
    frames
}

fn begin(header: &[u8], first: Pe, count: usize, form: u8) -> Vec<u8> {
    [header, &first.to_le_bytes(), &(count as u32).to_le_bytes(), &[form]].concat()
}

fn plain<R: AsRef<[u8]>>(header: &[u8], first: Pe, rows: &[R]) -> Vec<u8> {
    let mut frame = begin(header, first, rows.len(), PLAIN);
    for row in rows {
        frame.extend_from_slice(&(row.as_ref().len() as u32).to_le_bytes());
        frame.extend_from_slice(row.as_ref());
    }
    frame
}

/// The table form, if it is shorter.
fn table<R: AsRef<[u8]>>(header: &[u8], first: Pe, rows: &[R]) -> Option<Vec<u8>> {
    if rows.len() < 2 || rows.iter().any(|row| row.as_ref().len() > IN_TABLE_MAX) {
        return None;
    }
    let table = Columns::new(rows).encode();
    let plain: usize = rows.iter().map(|row| 4 + row.as_ref().len()).sum();
    (table.len() < plain).then(|| [begin(header, first, rows.len(), TABLE), table].concat())
}

/// Returns the first PE of a chunk, and the contributions from it on. All of these PEs are in `pes`.
pub(super) fn unpack(chunk: &[u8], pes: &Range<Pe>) -> Result<(Pe, Vec<Vec<u8>>), &'static str> {
    const SHORT: &str = "contributions that end early";
    let (header, mut rest) = chunk.split_at_checked(HEADER).ok_or(SHORT)?;
    let (first, count) = (u32_at(header, 0), u32_at(header, 4));
    if first < pes.start || first.checked_add(count).is_none_or(|end| end > pes.end) {
        return Err("contributions of PEs that do not belong there");
    }
    let count = count as usize;
    let rows = match header[HEADER - 1] {
        EMPTY => vec![Vec::new(); count],
        TABLE => {
            let table = Columns::decode(rest, count).ok_or("a malformed table")?;
            rest = &[];
            (0..count).map_while(|row| table.row(row)).collect()
        }
        PLAIN => {
            let row = |_| {
                let (length, after) = rest.split_at_checked(4)?;
                let (row, after) = after.split_at_checked(u32_at(length, 0) as usize)?;
                rest = after;
                Some(row.to_vec())
            };
            (0..count).map_while(row).collect()
        }
        _ => return Err("contributions of unknown form"),
    };
    match (rows.len() == count, rest.is_empty()) {
        (true, true) => Ok((first, rows)),
        (false, _) => Err(SHORT),
        (true, false) => Err("more contributions than are announced"),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::wire::MAX_CONTRIBUTION;
    use super::*;

    fn unpacked(frames: &[Arc<[u8]>], skip: usize, pes: Range<Pe>) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        for frame in frames {
            let (first, rows) = unpack(&frame[skip..], &pes).unwrap();
            assert_eq!(first as usize, pes.start as usize + all.len());
            all.extend(rows);
        }
        all
    }

    #[test]
    fn large_contributions_are_cut_into_frames_that_fit() {
        let data: Vec<Vec<u8>> = (0..5).map(|pe| vec![pe; MAX_CONTRIBUTION / 2]).collect();
        let frames = pack(b"head", 7, &data);
        assert_eq!(frames.len(), 3, "two halves to a frame");
        assert!(frames.iter().all(|frame| frame.len() <= MAX_PAYLOAD && frame.starts_with(b"head")));
        assert_eq!(unpacked(&frames, 4, 7..12), data);
        assert_eq!(pack(b"", 0, &[vec![1; MAX_CONTRIBUTION]])[0].len(), MAX_CONTRIBUTION + HEADER + 4);
    }

    #[test]
    fn what_contributions_have_in_common_is_sent_once() {
        let of = |pe: u32| [&[7; 300][..], &pe.to_le_bytes()].concat();
        let data: Vec<Vec<u8>> = (0..1000).map(of).collect();
        let frames = pack(b"", 0, &data);
        assert!(frames.len() == 1 && frames[0].len() < 4000, "{} bytes", frames[0].len());
        assert_eq!(unpacked(&frames, 0, 0..1000), data);
        for at in 0..frames[0].len() {
            let mut frame = frames[0].to_vec();
            frame[at] ^= 0x55;
            // Any result is fine, but no panic.
            let _ = unpack(&frame, &(0..1000));
        }
        let nothing = pack(b"", 3, &vec![Vec::<u8>::new(); 5000]);
        assert!(nothing.len() == 1 && nothing[0].len() == HEADER);
        assert_eq!(unpacked(&nothing, 0, 3..5003), vec![Vec::<u8>::new(); 5000]);
    }

    #[test]
    fn malformed_chunks_are_errors() {
        let frame = pack(b"", 3, &[b"abc".to_vec(), b"d".to_vec()]).remove(0);
        assert!(unpack(&frame, &(3..5)).is_ok());
        for pes in [0..4, 4..9, 0..0] {
            assert!(unpack(&frame, &pes).is_err(), "{pes:?}");
        }
        (0..frame.len()).for_each(|length| assert!(unpack(&frame[..length], &(0..9)).is_err(), "{length}"));
        assert!(unpack(&[&frame[..], &[0]].concat(), &(0..9)).is_err());
        let mut huge = frame.to_vec();
        huge[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(unpack(&huge, &(0..9)).is_err());
    }
}
