//! Data that identifies its source: every byte depends on its sender, the round and its offset.

use super::backend::Backend;

/// The eight bytes at index `8 * at` of the pattern with this seed.
#[inline]
fn eight(seed: u64, at: usize) -> [u8; 8] {
    let mixed = (seed ^ 0x9e37_79b9_7f4a_7c15).wrapping_add(at as u64).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed ^ (mixed >> 29)).to_ne_bytes()
}

/// The seed of the data that `pe` sends in a round.
#[must_use]
pub fn seed(round: u64, pe: u32) -> u64 {
    round.wrapping_mul(0x1_0000_0001).wrapping_add(u64::from(pe)).wrapping_mul(0x94d0_49bb_1331_11eb)
}

/// A byte with a wrong value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wrong {
    pub at: usize,
    pub found: u8,
    pub expected: u8,
}

/// Bytes written or read at once, so that a message does not need its size in memory again.
const PIECE: usize = 64 << 10;

/// The chunks of `len` bytes: offset and length of each.
fn pieces(len: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..len).step_by(PIECE).map(move |at| (at, PIECE.min(len - at)))
}

/// Fills `len` bytes of this PE's area.
pub fn fill<C: Backend>(backend: &mut C, offset: usize, len: usize, seed: u64) {
    let mut bytes = Vec::with_capacity(PIECE.min(len.next_multiple_of(8)));
    for (at, len) in pieces(len) {
        bytes.clear();
        bytes.extend((at / 8..(at + len).div_ceil(8)).flat_map(|at| eight(seed, at)));
        backend.store(offset + at, &bytes[..len]);
    }
}

/// Wipes the area, so that data found later was not there before.
pub fn wipe<C: Backend>(backend: &mut C, offset: usize, len: usize) {
    let bytes = vec![0xa5; PIECE.min(len)];
    pieces(len).for_each(|(at, len)| backend.store(offset + at, &bytes[..len]));
}

/// Compares `len` bytes of this PE's area at `offset` with the pattern from index `from` (a multiple of 8) on.
pub fn check<C: Backend>(backend: &C, offset: usize, len: usize, seed: u64, from: usize) -> Option<Wrong> {
    let mut bytes = vec![0; PIECE.min(len)];
    pieces(len).find_map(|(start, len)| {
        backend.load(offset + start, &mut bytes[..len]);
        bytes[..len].chunks(8).enumerate().find_map(|(at, found)| {
            let expected = eight(seed, (from + start) / 8 + at);
            let byte = (0..found.len()).find(|byte| found[*byte] != expected[*byte])?;
            Some(Wrong { at: start + at * 8 + byte, found: found[byte], expected: expected[byte] })
        })
    })
}
