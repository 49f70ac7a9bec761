//! Symmetric memory: the segments of this PE, and the keys of all PEs' segments.
//!
//! All PEs name memory by *symmetric offset*. The heap's first byte is offset 0 and its segments follow one another, so
//! an offset means the same place of the heap on every PE, whatever its virtual address there.
//!
//! PEs may also lay out their memory *separately*: each chooses the offsets of its segments, and peers learn the
//! segments one by one ([`Regions::learn_separate`]). Then an offset is meaningful only together with a PE.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

pub use symrail_core::Segment;

use crate::error::{Error, Operation, Result};
use crate::pe::Pe;
use crate::rail::{LocalKey, Registration, RemoteBuf};
use crate::ranges::{At, Ranges};
use crate::sparse::Sparse;

struct Known {
    segment: Segment,
    /// One registration per rail.
    local: Vec<Registration>,
    /// The remote address and key of each of the peer's rails, by PE; empty where they are not known.
    remote: Sparse<Box<[RemoteBuf]>>,
}

/// A segment of one PE that lays out its memory separately.
struct SeparateSegment {
    len: u64,
    /// One remote address and key for each of its PE's rails.
    remote: Vec<RemoteBuf>,
}

/// All segments and registered buffers that an endpoint knows.
#[derive(Default)]
pub struct Regions {
    /// This PE's segments by offset, and their offsets by id.
    segments: BTreeMap<At, Known>,
    offsets: HashMap<u32, u64>,
    /// The lengths of buffers outside of the segments that were registered for use as a source or destination, by first
    /// address and id.
    buffers: BTreeMap<(At, u32), u64>,
    /// The keys of segments and buffers for each rail, by address.
    local: Ranges<Box<[LocalKey]>>,
    /// The end of the segments that follow one another from offset 0 on. Most checks of a range need no search.
    contiguous: u64,
    /// Whether memory is laid out separately, and then each PE's segments by offset.
    is_separate: bool,
    separate: Sparse<BTreeMap<At, SeparateSegment>>,
    rails: usize,
}

/// Buffers in [`Regions::local`] have ids beyond those of segments.
const BUFFERS: u64 = 1 << 32;

impl Regions {
    /// An empty set of regions, which keeps the addresses and keys of the first `rails` rails of each peer.
    #[must_use]
    pub fn new(rails: usize) -> Self {
        Regions { rails, ..Regions::default() }
    }

    /// Adds a segment of this PE with its registrations, one per rail. No other segment has its id or its offset.
    pub fn add(&mut self, segment: Segment, local: Vec<Registration>) {
        let keys = local.iter().map(|registration| registration.local).collect();
        self.local.insert(segment.base().addr() as u64, segment.bytes(), segment.id().into(), keys);
        self.offsets.insert(segment.id(), segment.offset());
        self.segments.insert(At(segment.offset()), Known { segment, local, remote: Sparse::default() });
        self.find_contiguous();
    }

    fn find_contiguous(&mut self) {
        self.contiguous = 0;
        while let Some(known) = self.segments.get(&At(self.contiguous)).filter(|known| known.segment.bytes() > 0) {
            self.contiguous = known.segment.offset().saturating_add(known.segment.bytes());
        }
    }

    /// Forgets a segment of this PE.
    pub fn remove(&mut self, id: u32) {
        if let Some(offset) = self.offsets.remove(&id)
            && let Some(Known { segment, .. }) = self.segments.remove(&At(offset))
        {
            self.local.remove(segment.base().addr() as u64, segment.bytes(), id.into());
            self.find_contiguous();
        }
    }

    /// Adds a registered buffer outside of the heap.
    ///
    /// # Safety
    /// As for [`Segment::new`], until [`Regions::remove_buffer`].
    pub unsafe fn add_buffer(&mut self, base: *mut u8, len: usize, id: u32, local: Vec<LocalKey>) {
        let base = base.addr() as u64;
        self.local.insert(base, len as u64, BUFFERS + u64::from(id), local.into());
        self.buffers.insert((At(base), id), len as u64);
    }

    /// Forgets a registered buffer, and returns its bytes.
    pub fn remove_buffer(&mut self, base: usize, id: u32) -> Option<Range<u64>> {
        let base = base as u64;
        let len = self.buffers.remove(&(At(base), id))?;
        self.local.remove(base, len, BUFFERS + u64::from(id));
        Some(base..base + len)
    }

    /// The id of the first of the registered buffers that begin at `base`.
    #[must_use]
    pub fn buffer_at(&self, base: usize) -> Option<u32> {
        let at = At(base as u64);
        self.buffers.range((at, 0)..=(at, u32::MAX)).next().map(|((_, id), _)| *id)
    }

    /// The data that peers need to reach a segment over each rail, for [`Regions::learn`] at the peer.
    pub fn connection_info(&self, id: u32) -> Vec<u8> {
        let words = |r: &Registration| [r.remote_base.to_le_bytes(), r.remote_key.to_le_bytes()];
        self.registrations(id).iter().flat_map(words).flatten().collect()
    }

    /// The registrations of a segment of this PE; empty for an unknown one.
    pub fn registrations(&self, id: u32) -> &[Registration] {
        let known = self.offsets.get(&id).and_then(|offset| self.segments.get(&At(*offset)));
        known.map_or(&[], |known| &known.local)
    }

    /// Stores all PEs' [`Regions::connection_info`] of a segment.
    ///
    /// # Errors
    /// [`Error::Malformed`] when a connection info does not have a whole number of entries, at least one.
    pub fn learn(&mut self, id: u32, connection_infos: &[Vec<u8>]) -> Result<()> {
        connection_infos.iter().zip(0..).try_for_each(|(connection_info, pe)| self.learn_of(pe, id, connection_info))
    }

    /// Stores one PE's [`Regions::connection_info`] of a segment.
    ///
    /// # Errors
    /// As for [`Regions::learn`].
    pub fn learn_of(&mut self, pe: Pe, id: u32, connection_info: &[u8]) -> Result<()> {
        let offset = self.offsets.get(&id).copied();
        if let Some(known) = offset.and_then(|offset| self.segments.get_mut(&At(offset))) {
            *known.remote.enter(pe) = read_connection_info(pe, connection_info, self.rails)?.collect();
        }
        Ok(())
    }

    /// The ids of this PE's segments.
    pub fn ids(&self) -> Vec<u32> {
        self.segments.values().map(|known| known.segment.id()).collect()
    }

    /// Stores the [`Regions::connection_info`] of a segment that `pe`, one of `n_pes`, has laid out separately. From
    /// the first call on, all PEs' memory is separate, including this PE's own. An earlier segment of the same range is
    /// forgotten.
    ///
    /// # Errors
    /// As for [`Regions::learn`]; [`Error::NoSuchPe`].
    pub fn learn_separate(
        &mut self,
        (pe, n_pes): (Pe, u32),
        offset: u64,
        len: u64,
        connection_info: &[u8],
    ) -> Result<()> {
        if pe >= n_pes {
            return Err(Error::NoSuchPe { pe: pe.into(), last: n_pes.saturating_sub(1) });
        }
        let remote: Vec<_> = read_connection_info(pe, connection_info, self.rails)?.collect();
        self.is_separate = true;
        let theirs = self.separate.enter(pe);
        // They do not overlap, so those in the range are the last ones that begin before its end.
        let before = theirs.range(..At(offset.saturating_add(len))).rev();
        let in_range = before.take_while(|(at, one)| at.0.saturating_add(one.len) > offset);
        let replaced: Vec<At> = in_range.map(|(at, _)| *at).collect();
        replaced.iter().for_each(|at| drop(theirs.remove(at)));
        theirs.insert(At(offset), SeparateSegment { len, remote });
        Ok(())
    }

    /// Whether a segment of `pe` that begins at `offset` is known.
    #[inline]
    pub fn knows_separate(&self, pe: Pe, offset: u64) -> bool {
        self.separate_at(pe, offset).is_some_and(|(within, _)| within == 0)
    }

    /// Forgets the segment of `pe` that begins at `offset`.
    pub fn forget_separate(&mut self, pe: Pe, offset: u64) {
        if let Some(theirs) = self.separate.find_mut(pe) {
            theirs.remove(&At(offset));
        }
    }

    /// Forgets all segments that `pe` has laid out separately.
    pub fn forget_all_of(&mut self, pe: Pe) {
        self.separate.forget(pe);
    }

    /// The segment of `pe` that holds `offset`, and the bytes of it before.
    #[inline]
    fn separate_at(&self, pe: Pe, offset: u64) -> Option<(u64, &SeparateSegment)> {
        let (at, a) = self.separate.get(pe).range(..=At(offset)).next_back()?;
        Some((offset - at.0, a)).filter(|(within, a)| *within < a.len)
    }

    /// The remote place of `offset` on `pe` for its rail `rail`, and the bytes that follow it in its segment. The address
    /// comes from the peer and may be anything; the target's rail checks it against the key.
    #[inline]
    pub fn remote(&self, pe: Pe, rail: usize, offset: u64) -> Option<(RemoteBuf, u64)> {
        if self.is_separate {
            let (within, a) = self.separate_at(pe, offset)?;
            let place = place_of(&a.remote, rail)?;
            return Some((RemoteBuf { address: place.address.wrapping_add(within), key: place.key }, a.len - within));
        }
        let known = self.segment_of(offset)?;
        let within = offset - known.segment.offset();
        let place = place_of(known.remote.get(pe), rail)?;
        Some((
            RemoteBuf { address: place.address.wrapping_add(within), key: place.key },
            known.segment.bytes() - within,
        ))
    }

    /// This PE's address of `len` bytes at a symmetric offset, if they are inside of one segment, or of segments that
    /// follow one another both in offset and in address.
    #[inline]
    pub fn local(&self, offset: u64, len: u64) -> Option<*mut u8> {
        let known = self.segment_of(offset)?;
        let within = offset - known.segment.offset();
        let base = known.segment.base().wrapping_add(within as usize);
        let mut have = known.segment.bytes() - within;
        let mut end = offset.checked_add(have)?;
        while have < len {
            let next = self.segment_of(end)?;
            if base as usize + have as usize != next.segment.base() as usize {
                return None;
            }
            have += next.segment.bytes();
            end += next.segment.bytes();
        }
        Some(base)
    }

    /// Checks that a whole range is inside of registered segments.
    ///
    /// # Errors
    /// [`Error::OutOfSegment`].
    #[inline(always)]
    pub fn check(&self, operation: Operation, pe: Pe, offset: u64, bytes: u64) -> Result<()> {
        if offset < self.contiguous && bytes <= self.contiguous - offset && !self.is_separate {
            return Ok(());
        }
        self.search(operation, pe, offset, bytes)
    }

    #[inline(never)]
    fn search(&self, operation: Operation, pe: Pe, offset: u64, bytes: u64) -> Result<()> {
        let mut at = offset;
        let end = offset.checked_add(bytes);
        while let Some(end) = end
            && let Some(until) = self.end_of(pe, at)
        {
            at = until;
            if at >= end {
                return Ok(());
            }
        }
        Err(Error::OutOfSegment { operation, pe, offset, bytes })
    }

    /// The registration of local memory at `ptr` on `rail`, and how many bytes from there it covers. Of several it is the
    /// oldest one, since callers keep those registered that were there when an operation began.
    pub fn local_key(&self, rail: usize, ptr: *const u8) -> Option<(LocalKey, u64)> {
        self.local.first_at(ptr.addr() as u64, |left, keys| keys.get(rail).map(|key| (*key, left)))
    }

    /// Whether all of `len` bytes at `ptr` are in this PE's segments or registered buffers.
    #[must_use]
    pub fn owns(&self, ptr: *const u8, len: u64) -> bool {
        let (mut at, Some(end)) = (ptr.addr() as u64, (ptr.addr() as u64).checked_add(len)) else { return false };
        while at < end {
            let Some(left) = self.local.find_at(at, |left, _| Some(left)) else { return false };
            at += left;
        }
        true
    }

    /// The end of the segment of `pe` that holds `offset`.
    #[inline]
    fn end_of(&self, pe: Pe, offset: u64) -> Option<u64> {
        if !self.is_separate {
            self.segment_of(offset).map(|k| k.segment.offset() + k.segment.bytes())
        } else {
            self.separate_at(pe, offset).map(|(within, a)| offset - within + a.len)
        }
    }

    #[inline]
    fn segment_of(&self, offset: u64) -> Option<&Known> {
        let (at, known) = self.segments.range(..=At(offset)).next_back()?;
        Some(known).filter(|known| offset - at.0 < known.segment.bytes())
    }
}

/// The entry of a rail. Where there are fewer, those of a segment that some rails share, they repeat.
#[inline]
fn place_of(places: &[RemoteBuf], rail: usize) -> Option<&RemoteBuf> {
    places.get(rail).or_else(|| places.get(rail.checked_rem(places.len())?))
}

/// The first `rails` entries of a peer's connection info, which has one for each of its rails.
fn read_connection_info(pe: Pe, connection_info: &[u8], rails: usize) -> Result<impl Iterator<Item = RemoteBuf>> {
    let (entries, rest) = connection_info.as_chunks::<16>();
    if entries.is_empty() || !rest.is_empty() {
        let why = format!("{} bytes is not a list of rail keys", connection_info.len());
        return Err(Error::Malformed { what: "segment connection info", pe, why });
    }
    Ok(entries.iter().take(rails).map(|entry| {
        let (address, key) = entry.split_at(8);
        RemoteBuf { address: le(address), key: le(key) }
    }))
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
            // SAFETY: nothing here follows the address.
            r.add(unsafe { Segment::new(id, offset, base, 4096) }, vec![reg; 2]);
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
    fn one_of_many_registrations_is_found_without_a_scan() {
        const MANY: u64 = 10_000;
        let mut r = Regions::new(1);
        let key = |id| Registration { local: LocalKey(id), remote_key: 1, remote_base: 0 };
        let base = |at: u64| std::ptr::without_provenance_mut::<u8>(0x10_0000_0000 + at as usize * 4096);
        let info = [7u64.to_le_bytes(), 9u64.to_le_bytes()].concat();
        let add = |r: &mut Regions, id: u64| {
            // SAFETY: nothing here follows the address.
            r.add(unsafe { Segment::new(id as u32, id * 4096, base(id), 2048) }, vec![key(id)]);
            // SAFETY: as above.
            unsafe { r.add_buffer(base(MANY + id), 2048, id as u32, vec![LocalKey(MANY + id)]) };
            r.learn_separate((1, 2), id * 4096, 2048, &info).unwrap();
        };
        (0..MANY).for_each(|id| add(&mut r, id));
        for id in [0, 1, MANY / 2, MANY - 1] {
            let steps = crate::ranges::tests::comparisons(|| {
                assert_eq!(r.local_key(0, base(id)), Some((LocalKey(id), 2048)));
                assert_eq!(r.local_key(0, base(MANY + id)), Some((LocalKey(MANY + id), 2048)));
                assert!(r.owns(base(id), 2048) && !r.owns(base(id), 2049) && r.registrations(id as u32).len() == 1);
                assert!(r.local(id * 4096, 8).is_some() && r.remote(1, 0, id * 4096 + 2047).is_some());
                assert!(r.check(Operation::Put, 1, id * 4096, 2048).is_ok() && !r.knows_separate(1, id * 4096 + 1));
                r.remove(id as u32);
                let (buffer, id32) = (base(MANY + id).addr(), id as u32);
                assert_eq!(r.buffer_at(buffer), Some(id32));
                let range = buffer as u64..buffer as u64 + 2048;
                assert_eq!((r.remove_buffer(buffer, id32), r.remove_buffer(buffer, id32)), (Some(range), None));
                r.forget_separate(1, id * 4096);
                assert!(r.local_key(0, base(id)).is_none() && r.remote(1, 0, id * 4096).is_none());
                add(&mut r, id);
            });
            assert!(steps < 2000, "{steps} comparisons");
        }
    }

    #[test]
    fn the_oldest_of_several_registrations_is_used() {
        let mut r = two_segments();
        let base = 0x10_0000;
        // SAFETY: nothing here follows the address.
        let mut add = |len, id, key| unsafe {
            r.add_buffer(std::ptr::without_provenance_mut(base), len, id, vec![LocalKey(key); 2]);
        };
        add(64, 1, 8);
        add(16, 2, 9);
        assert_eq!(r.local_key(0, std::ptr::without_provenance(base)), Some((LocalKey(7), 4096)));
        assert_eq!(r.buffer_at(base), Some(1));
        assert_eq!(r.remove_buffer(base, 2), Some(base as u64..base as u64 + 16));
        r.remove(0);
        assert_eq!(r.local_key(0, std::ptr::without_provenance(base)), Some((LocalKey(8), 64)));
        assert_eq!((r.remove_buffer(base, 2), r.remove_buffer(base + 1, 1)), (None, None));
    }

    #[test]
    fn keys_of_peers_with_fewer_rails_repeat() {
        let mut r = two_segments();
        let mut connection_info = 100u64.to_le_bytes().to_vec();
        connection_info.extend_from_slice(&5u64.to_le_bytes());
        r.learn(0, &[r.connection_info(0), connection_info]).unwrap();
        let (place, left) = r.remote(1, 1, 96).unwrap();
        assert_eq!((place.address, place.key, left), (196, 5, 4000));
        assert!(r.remote(1, 1, 4096).is_none(), "the second segment's connection infos are not known");
        assert!(r.learn(0, &[vec![0; 15]]).is_err());
    }

    #[test]
    fn separate_offsets_mean_something_only_with_their_pe() {
        let mut r = two_segments();
        let connection_info = |address: u64| [address.to_le_bytes(), 9u64.to_le_bytes()].concat();
        r.learn_separate((1, 3), 1 << 40, 100, &connection_info(1000)).unwrap();
        r.learn_separate((2, 3), 0, 100, &connection_info(2000)).unwrap();
        r.learn_separate((2, 3), 4096, 8, &connection_info(3000)).unwrap();
        assert_eq!(r.remote(1, 1, (1 << 40) + 60).map(|(p, left)| (p.address, p.key, left)), Some((1060, 9, 40)));
        assert_eq!(r.remote(2, 0, 4100).map(|(p, left)| (p.address, left)), Some((3004, 4)));
        assert!(r.remote(1, 0, 50).is_none() && r.remote(2, 0, 100).is_none() && r.remote(3, 0, 0).is_none());
        assert!(r.check(Operation::Put, 2, 0, 100).is_ok());
        assert!(r.check(Operation::Put, 2, 0, 101).is_err());
        assert!(r.check(Operation::Put, 1, 0, 1).is_err(), "this PE's own segments are not those of others");
        r.learn_separate((1, 3), 0, 100, &connection_info(u64::MAX)).unwrap();
        assert_eq!(r.remote(1, 0, 60).map(|(p, _)| p.address), Some(59), "a peer's address may be anything");
        r.forget_separate(2, 0);
        assert!(r.check(Operation::Put, 2, 0, 1).is_err() && r.check(Operation::Put, 2, 4096, 8).is_ok());
        assert!(r.learn_separate((3, 3), 0, 1, &connection_info(0)).is_err());
    }
}
