//! The staging buffer, divided into chunks.

use std::ptr::NonNull;

use symrail_transport::wire::Place;

/// The id under which every PE's staging buffer is registered.
pub const STAGING_BUFFER_ID: u32 = 0xffff_fff0;
/// The symmetric offset of the staging buffer: beyond every heap.
pub const STAGING_BUFFER_OFFSET: u64 = 1 << 62;
/// Size and number of chunks of each class: for words and signals, for data that fits a message, for fragments.
const CLASSES: [(usize, usize); 3] = [(64, 512), (EAGER, 256), (LARGE, 16)];
/// The largest data that travels in a message, in bytes.
pub(super) const EAGER: usize = 4096;
/// The largest fragment of an operation.
pub(super) const LARGE: usize = 512 << 10;
/// The smallest fragment of a split operation.
const SMALLEST_FRAGMENT: u64 = 64 << 10;
/// Number of fragments of a large operation, so that both copies and the transfer overlap.
const FRAGMENTS: u64 = 4;

/// Bytes of one pool.
pub(super) const POOL_BYTES: usize =
    CLASSES[0].0 * CLASSES[0].1 + CLASSES[1].0 * CLASSES[1].1 + CLASSES[2].0 * CLASSES[2].1;

/// Chunks of one pool.
pub(super) const POOL_CHUNKS: usize = CLASSES[0].1 + CLASSES[1].1 + CLASSES[2].1;

/// The size of fragments of an operation of `len` bytes.
pub(super) fn fragment_bytes(len: u64) -> u64 {
    (len / FRAGMENTS).next_multiple_of(EAGER as u64).clamp(SMALLEST_FRAGMENT, LARGE as u64)
}

/// A chunk in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Chunk {
    class: u8,
    index: u16,
}

/// A part of the staging buffer, divided into chunks.
pub(super) struct Pool {
    base: NonNull<u8>,
    /// Symmetric offset of the first byte.
    offset: u64,
    free: [Vec<u16>; 3],
}

// SAFETY: the pointer is an address in the copy engine's staging buffer, which belongs to the process. Accessing it
// needs unsafe code.
unsafe impl Send for Pool {}

impl Pool {
    /// Divides [`POOL_BYTES`] bytes at `base`.
    pub fn new(base: NonNull<u8>, offset: u64) -> Self {
        Pool { base, offset, free: CLASSES.map(|(_, count)| (0..count as u16).rev().collect()) }
    }

    /// A chunk of at least `len` bytes.
    pub fn take(&mut self, len: usize) -> Option<Chunk> {
        let class = CLASSES.iter().position(|(bytes, _)| len <= *bytes)?;
        let index = self.free[class].pop()?;
        Some(Chunk { class: class as u8, index })
    }

    /// Returns a chunk. A chunk that a rail may still access is never returned.
    pub fn release(&mut self, chunk: Chunk) {
        self.free[usize::from(chunk.class)].push(chunk.index);
    }

    /// A chunk's first byte.
    pub fn ptr(&self, chunk: Chunk) -> *mut u8 {
        self.base.as_ptr().wrapping_add(Self::within(chunk))
    }

    /// A chunk's first `len` bytes, in terms of peers' addresses.
    pub fn place(&self, chunk: Chunk, len: usize) -> Place {
        Place { offset: self.offset + Self::within(chunk) as u64, len: len as u64 }
    }

    fn within(chunk: Chunk) -> usize {
        let class = usize::from(chunk.class);
        let before: usize = CLASSES[..class].iter().map(|(bytes, count)| bytes * count).sum();
        before + usize::from(chunk.index) * CLASSES[class].0
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn chunks_lie_apart_and_inside() {
        let mut pool = Pool::new(NonNull::dangling(), 1 << 20);
        let mut taken = Vec::new();
        for len in [1, 64, 65, EAGER, EAGER + 1, LARGE] {
            while let Some(chunk) = pool.take(len) {
                let place = pool.place(chunk, CLASSES[usize::from(chunk.class)].0);
                assert!(place.len >= len as u64);
                taken.push((place.offset, place.len));
            }
        }
        assert!(pool.take(LARGE + 1).is_none());
        assert_eq!(taken.len(), POOL_CHUNKS);
        taken.sort_unstable();
        assert!(taken.windows(2).all(|w| w[0].0 + w[0].1 <= w[1].0));
        let (last, len) = taken.last().copied().unwrap();
        assert_eq!((taken[0].0, last + len), (1 << 20, (1 << 20) + POOL_BYTES as u64));
    }

    #[test]
    fn fragments_fit_chunks() {
        for len in [1, 4097, 65_536, 300_000, 1 << 20, 1 << 40] {
            assert!((1..=LARGE as u64).contains(&fragment_bytes(len)));
        }
    }
}
