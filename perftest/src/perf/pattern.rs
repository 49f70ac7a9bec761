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
    for at in 0..len.div_ceil(8) {
        let bytes = eight(seed, at);
        let rest = (len - at * 8).min(8);
        // SAFETY: within the area, as the caller says, which nobody reads before a barrier.
        unsafe { carrier.at(offset + at * 8).copy_from_nonoverlapping(bytes.as_ptr(), rest) };
    }
}

/// Makes sure that what is found later was not there before.
pub fn wipe<C: Carrier>(carrier: &mut C, offset: usize, len: usize) {
    // SAFETY: as for `fill`.
    unsafe { carrier.at(offset).write_bytes(0xa5, len) };
}

/// Compares `len` bytes of this PE's area at `offset` with those that start at index `from` (a multiple of 8) of the pattern.
pub fn check<C: Carrier>(carrier: &C, offset: usize, len: usize, seed: u64, from: usize) -> Option<Wrong> {
    for at in 0..len.div_ceil(8) {
        let expected = eight(seed, from / 8 + at);
        let rest = (len - at * 8).min(8);
        let mut found = [0; 8];
        // SAFETY: within the area, as the caller says, and after the barrier that completes what is written there.
        unsafe { carrier.at(offset + at * 8).copy_to_nonoverlapping(found.as_mut_ptr(), rest) };
        if let Some(byte) = (0..rest).find(|byte| found[*byte] != expected[*byte]) {
            return Some(Wrong { at: at * 8 + byte, found: found[byte], expected: expected[byte] });
        }
    }
    None
}
