//! Data that tells where it came from: every byte depends on who sent it, in which round, and where it lay.

use super::carrier::Carrier;

/// The eight bytes at index `8 * at` of what `seed` stands for.
#[inline]
fn eight(seed: u64, at: usize) -> [u8; 8] {
    let mixed = (seed ^ 0x9e37_79b9_7f4a_7c15).wrapping_add(at as u64).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed ^ (mixed >> 29)).to_ne_bytes()
}

/// The seed of what `pe` sends in a round.
#[must_use]
pub fn seed(round: u64, pe: u32) -> u64 {
    round.wrapping_mul(0x1_0000_0001).wrapping_add(u64::from(pe)).wrapping_mul(0x94d0_49bb_1331_11eb)
}

/// A byte that is not what it should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wrong {
    pub at: usize,
    pub found: u8,
    pub expected: u8,
}

/// Fills `len` bytes of this PE's area.
pub fn fill<C: Carrier>(carrier: &mut C, offset: usize, len: usize, seed: u64) {
    let mut bytes: Vec<u8> = (0..len.div_ceil(8)).flat_map(|at| eight(seed, at)).collect();
    bytes.truncate(len);
    carrier.store(offset, &bytes);
}

/// Makes sure that what is found later was not there before.
pub fn wipe<C: Carrier>(carrier: &mut C, offset: usize, len: usize) {
    carrier.store(offset, &vec![0xa5; len]);
}

/// Compares `len` bytes of this PE's area at `offset` with those that start at index `from` (a multiple of 8) of the pattern.
pub fn check<C: Carrier>(carrier: &C, offset: usize, len: usize, seed: u64, from: usize) -> Option<Wrong> {
    let mut all = vec![0; len];
    carrier.load(offset, &mut all);
    for (at, found) in all.chunks(8).enumerate() {
        let expected = eight(seed, from / 8 + at);
        if let Some(byte) = (0..found.len()).find(|byte| found[*byte] != expected[*byte]) {
            return Some(Wrong { at: at * 8 + byte, found: found[byte], expected: expected[byte] });
        }
    }
    None
}
