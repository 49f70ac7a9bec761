//! The window, cut into chunks.

use std::ptr::NonNull;

use symrail_transport::wire::Place;

/// Bytes of a chunk of each class, and how many there are. The smallest are for words and signals, the middle ones for
/// what travels in a message, the large ones for everything else, several at a time.
const CLASSES: [(usize, usize); 3] = [(64, 512), (EAGER, 256), (LARGE, 16)];
/// Bytes of data that travel in a message. More are read from the window.
pub(super) const EAGER: usize = 4096;
/// The largest piece of an operation.
pub(super) const LARGE: usize = 512 << 10;
/// The smallest piece of an operation that is cut.
const SMALLEST_PIECE: u64 = 64 << 10;
/// Pieces that an operation is cut into, if they are large enough: so that copying, sending and copying again overlap.
const PIECES: u64 = 4;

/// Bytes of one pool.
pub(super) const POOL_BYTES: usize =
    CLASSES[0].0 * CLASSES[0].1 + CLASSES[1].0 * CLASSES[1].1 + CLASSES[2].0 * CLASSES[2].1;

/// Chunks of one pool.
pub(super) const POOL_CHUNKS: usize = CLASSES[0].1 + CLASSES[1].1 + CLASSES[2].1;

/// How many bytes the pieces of an operation of `len` bytes have.
pub(super) fn piece_bytes(len: u64) -> u64 {
    (len / PIECES).next_multiple_of(EAGER as u64).clamp(SMALLEST_PIECE, LARGE as u64)
}

/// A chunk that somebody has taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Chunk {
    class: u8,
    index: u16,
}

/// A part of the window, cut into chunks.
pub(super) struct Pool {
    base: NonNull<u8>,
    /// Symmetric offset of the first byte.
    offset: u64,
    free: [Vec<u16>; 3],
}

// SAFETY: the pointer is an address in the mover's window, which belongs to the process; reaching it needs unsafe code.
unsafe impl Send for Pool {}

impl Pool {
    /// Cuts [`POOL_BYTES`] bytes at `base`.
    pub fn new(base: NonNull<u8>, offset: u64) -> Self {
        Pool { base, offset, free: CLASSES.map(|(_, count)| (0..count as u16).rev().collect()) }
    }

    /// A chunk of at least `len` bytes.
    pub fn take(&mut self, len: usize) -> Option<Chunk> {
        let class = CLASSES.iter().position(|(bytes, _)| len <= *bytes)?;
        let index = self.free[class].pop()?;
        Some(Chunk { class: class as u8, index })
    }

    /// Gives a chunk back. One that somebody may still reach is kept instead.
    pub fn give(&mut self, chunk: Chunk) {
        self.free[usize::from(chunk.class)].push(chunk.index);
    }

    /// A chunk's first byte.
    pub fn ptr(&self, chunk: Chunk) -> *mut u8 {
        self.base.as_ptr().wrapping_add(Self::within(chunk))
    }

    /// What a peer calls a chunk's first `len` bytes.
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
    fn pieces_fit_chunks() {
        for len in [1, 4097, 65_536, 300_000, 1 << 20, 1 << 40] {
            assert!((1..=LARGE as u64).contains(&piece_bytes(len)));
        }
    }
}
