//! Where symmetric memory lies: segments of this PE, and the keys of everybody's.
//!
//! All PEs name memory by *symmetric offset*: the heap's first byte is offset 0 and its segments follow one another, so
//! an offset means the same place of the heap on every PE, whatever its virtual address there.

use crate::error::{Error, Operation, Result};
use crate::pe::Pe;
use crate::rail::{LocalKey, Registration, RemoteBuf};

/// A segment to register: the same on every PE but for its address.
#[derive(Debug, Clone, Copy)]
pub struct Segment {
    /// Chosen once for the segment, the same on every PE.
    pub id: u32,
    /// Symmetric offset of the first byte.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
    /// This PE's address of the first byte.
    pub base: *mut u8,
}

// SAFETY: the pointer is an address to hand to rails and to compute with; dereferencing it is its users' business.
unsafe impl Send for Segment {}
// SAFETY: as above.
unsafe impl Sync for Segment {}

struct Known {
    segment: Segment,
    /// One per rail.
    local: Vec<Registration>,
    /// What a peer's rail takes, at `pe * lanes + lane`; empty until the peers' cards are known.
    remote: Vec<RemoteBuf>,
}

/// A local buffer outside of the symmetric heap that was registered for use as a source or destination.
struct Buffer {
    base: usize,
    len: usize,
    id: u32,
    local: Vec<Registration>,
}

/// All segments and registered buffers that one endpoint knows.
#[derive(Default)]
pub struct Regions {
    segments: Vec<Known>,
    buffers: Vec<Buffer>,
    lanes: usize,
}

impl Regions {
    /// No segments yet; every peer has at most `lanes` lanes.
    pub fn new(lanes: usize) -> Self {
        Regions { lanes, ..Regions::default() }
    }

    /// Adds a segment of this PE with its registrations, one per rail.
    pub fn add(&mut self, segment: Segment, local: Vec<Registration>) {
        self.segments.push(Known { segment, local, remote: Vec::new() });
        self.segments.sort_by_key(|k| k.segment.offset);
    }

    /// Adds a registered buffer outside of the heap.
    pub fn add_buffer(&mut self, base: *mut u8, len: usize, id: u32, local: Vec<Registration>) {
        self.buffers.push(Buffer { base: base as usize, len, id, local });
    }

    /// Forgets a registered buffer.
    pub fn remove_buffer(&mut self, id: u32) {
        self.buffers.retain(|b| b.id != id);
    }

    /// The ids of the segments and buffers that hold `ptr`.
    pub fn buffer_at(&self, ptr: *const u8) -> Option<u32> {
        self.buffers.iter().find(|b| b.base == ptr as usize).map(|b| b.id)
    }

    /// What peers need to reach a segment over each rail, for [`Regions::learn`] on the other side.
    pub fn card(&self, id: u32) -> Vec<u8> {
        let Some(known) = self.segments.iter().find(|k| k.segment.id == id) else { return Vec::new() };
        let mut card = Vec::with_capacity(known.local.len() * 16);
        for r in &known.local {
            card.extend_from_slice(&r.remote_base.to_le_bytes());
            card.extend_from_slice(&r.remote_key.to_le_bytes());
        }
        card
    }

    /// Takes in every PE's [`Regions::card`] of a segment.
    ///
    /// # Errors
    /// [`Error::Malformed`] when a card does not have a whole number of entries, at least one.
    pub fn learn(&mut self, id: u32, cards: &[Vec<u8>]) -> Result<()> {
        let lanes = self.lanes;
        let Some(known) = self.segments.iter_mut().find(|k| k.segment.id == id) else { return Ok(()) };
        let mut remote = Vec::with_capacity(cards.len() * lanes);
        for (pe, card) in cards.iter().enumerate() {
            let (entries, rest) = card.as_chunks::<16>();
            if entries.is_empty() || !rest.is_empty() {
                let why = format!("{} bytes is not a list of rail keys", card.len());
                return Err(Error::Malformed { what: "segment card", pe: pe as Pe, why });
            }
            for lane in 0..lanes {
                let entry = entries[lane % entries.len()];
                let (address, key) = entry.split_at(8);
                remote.push(RemoteBuf { address: le(address), key: le(key) });
            }
        }
        known.remote = remote;
        Ok(())
    }

    /// The remote place of `offset` on `pe` over `lane`, and how many bytes follow it in its segment.
    #[inline]
    pub fn remote(&self, pe: Pe, lane: usize, offset: u64) -> Option<(RemoteBuf, u64)> {
        let known = self.segment_of(offset)?;
        let within = offset - known.segment.offset;
        let place = known.remote.get(pe as usize * self.lanes + lane)?;
        Some((RemoteBuf { address: place.address + within, key: place.key }, known.segment.len - within))
    }

    /// This PE's address of `len` bytes at a symmetric offset, when they lie inside of one segment
    /// or of segments that follow one another both in offset and in address.
    #[inline]
    pub fn local(&self, offset: u64, len: u64) -> Option<*mut u8> {
        let known = self.segment_of(offset)?;
        let within = offset - known.segment.offset;
        let base = known.segment.base.wrapping_add(within as usize);
        let mut have = known.segment.len - within;
        let mut end = offset.checked_add(have)?;
        while have < len {
            let next = self.segment_of(end)?;
            if base as usize + have as usize != next.segment.base as usize {
                return None;
            }
            have += next.segment.len;
            end += next.segment.len;
        }
        Some(base)
    }

    /// Checks that a whole range is inside of registered segments.
    ///
    /// # Errors
    /// [`Error::OutOfSegment`].
    #[inline]
    pub fn check(&self, operation: Operation, pe: Pe, offset: u64, bytes: u64) -> Result<()> {
        let mut at = offset;
        let end = offset.checked_add(bytes);
        while let Some(end) = end
            && let Some(known) = self.segment_of(at)
        {
            at = known.segment.offset + known.segment.len;
            if at >= end {
                return Ok(());
            }
        }
        Err(Error::OutOfSegment { operation, pe, offset, bytes })
    }

    /// The registration of local memory at `ptr` on `rail`, and how many bytes from there it covers.
    pub fn local_key(&self, rail: usize, ptr: *const u8) -> Option<(LocalKey, u64)> {
        let at = ptr as usize;
        let inside = |base: usize, len: usize| at.checked_sub(base).filter(|d| *d < len).map(|d| (len - d) as u64);
        let segments = self.segments.iter().map(|k| (k.segment.base as usize, k.segment.len as usize, &k.local));
        let buffers = self.buffers.iter().map(|b| (b.base, b.len, &b.local));
        segments
            .chain(buffers)
            .find_map(|(base, len, keys)| inside(base, len).and_then(|left| keys.get(rail).map(|r| (r.local, left))))
    }

    /// Whether `len` bytes at `ptr` are this PE's segments or registered buffers from first to last byte.
    #[must_use]
    pub fn owns(&self, ptr: *const u8, len: u64) -> bool {
        let (mut at, Some(end)) = (ptr as usize, (ptr as usize).checked_add(len as usize)) else { return false };
        let segments = || self.segments.iter().map(|k| (k.segment.base as usize, k.segment.len as usize));
        let buffers = || self.buffers.iter().map(|b| (b.base, b.len));
        while at < end {
            let Some((base, size)) = segments().chain(buffers()).find(|(b, n)| at >= *b && at - b < *n) else {
                return false;
            };
            at = base + size;
        }
        true
    }

    #[inline]
    fn segment_of(&self, offset: u64) -> Option<&Known> {
        // A heap has one segment, or a few; a scan beats a search.
        self.segments.iter().find(|k| offset >= k.segment.offset && offset - k.segment.offset < k.segment.len)
    }
}

fn le(bytes: &[u8]) -> u64 {
    bytes.try_into().map_or(0, u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn two_segments() -> Regions {
        let mut r = Regions::new(2);
        let reg = Registration { local: LocalKey(7), remote_key: 1, remote_base: 0 };
        for (id, offset) in [(0, 0u64), (1, 4096)] {
            let base = std::ptr::without_provenance_mut(0x10_0000 + offset as usize);
            r.add(Segment { id, offset, len: 4096, base }, vec![reg; 2]);
        }
        r
    }

    #[test]
    fn ranges_may_span_neighbours_but_not_leave_them() {
        let r = two_segments();
        assert!(r.check(Operation::Put, 0, 0, 8192).is_ok());
        assert!(r.check(Operation::Put, 0, 8191, 1).is_ok());
        assert!(r.check(Operation::Put, 0, 8191, 2).is_err());
        assert!(r.check(Operation::Put, 0, u64::MAX, 2).is_err());
        assert!(r.check(Operation::Put, 0, 1, u64::MAX).is_err());
        assert!(r.local(4000, 200).is_some());
        assert!(r.local(8000, 200).is_none());
        assert_eq!(r.local_key(1, std::ptr::without_provenance(0x10_0000 + 4095)), Some((LocalKey(7), 1)));
        assert_eq!(r.local_key(1, std::ptr::without_provenance(0xF_FFFF)), None);
        assert!(r.owns(std::ptr::without_provenance(0x10_0000 + 4000), 200));
        assert!(!r.owns(std::ptr::without_provenance(0x10_0000 + 8000), 200));
        assert!(!r.owns(std::ptr::without_provenance(usize::MAX), 2));
    }

    #[test]
    fn keys_of_peers_with_fewer_rails_repeat() {
        let mut r = two_segments();
        let mut card = 100u64.to_le_bytes().to_vec();
        card.extend_from_slice(&5u64.to_le_bytes());
        r.learn(0, &[r.card(0), card]).unwrap();
        let (place, left) = r.remote(1, 1, 96).unwrap();
        assert_eq!((place.address, place.key, left), (196, 5, 4000));
        assert!(r.remote(1, 1, 4096).is_none(), "the second segment's cards are not known");
        assert!(r.learn(0, &[vec![0; 15]]).is_err());
    }
}
