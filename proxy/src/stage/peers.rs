//! Peers' memory that this PE's device has mapped: copies to and from it need neither rails nor the peer.

use symrail_transport::Pe;
use symrail_transport::region::Segment;

/// A symmetric segment, and the addresses at which the device has mapped peers' parts of it.
#[derive(Default)]
pub(super) struct Peers {
    offset: u64,
    len: u64,
    /// Addresses by PE; 0 where it is not mapped, and for this PE.
    bases: Vec<usize>,
}

impl Peers {
    /// Peers' parts of a segment that are mapped at these addresses.
    pub fn new(segment: &Segment, bases: Vec<usize>) -> Self {
        Peers { offset: segment.offset(), len: segment.bytes(), bases }
    }

    /// The device's address of `len` bytes at a symmetric offset of `pe`, if all of them are mapped.
    pub fn find(&self, pe: Pe, offset: u64, len: u64) -> Option<usize> {
        let at = offset.checked_sub(self.offset)?;
        let inside = at.checked_add(len).is_some_and(|end| end <= self.len);
        let base = self.bases.get(pe as usize).copied().filter(|&base| base != 0 && inside)?;
        Some(base + at as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_lies_in_a_peers_mapped_segment_is_found() {
        // SAFETY: no code here dereferences the address.
        let segment = unsafe { Segment::new(1, 1 << 48, std::ptr::null_mut(), 4096) };
        let peers = Peers::new(&segment, vec![0, 1 << 30, 0]);
        assert_eq!(peers.find(1, (1 << 48) + 64, 4032), Some((1 << 30) + 64));
        for (pe, offset, len) in [
            (1, (1 << 48) + 64, 4033),
            (1, (1 << 48) - 1, 1),
            (1, 1 << 48, u64::MAX),
            (0, 1 << 48, 8),
            (2, 1 << 48, 8),
            (3, 1 << 48, 8),
        ] {
            assert_eq!(peers.find(pe, offset, len), None, "{pe} {offset:#x} {len}");
        }
        assert_eq!(Peers::default().find(0, 0, 1), None);
    }
}
