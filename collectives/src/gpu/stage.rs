//! Symmetric memory through which calls go whose buffers are elsewhere.

use symrail::kernels::cuda::{DevicePtr, Stream};

use super::memory::SymmetricMemory;
use super::plan::Memory;
use crate::error::Result;

/// Bytes for inputs, and as many for outputs.
const BYTES: u64 = 16 << 20;
/// Pieces begin at multiples of this.
const ALIGNMENT: u64 = 256;

/// See above. The memory is the communicator's.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stage {
    at: u64,
}

/// Bytes of each part of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece {
    pub at: u64,
    pub len: u64,
}

impl Stage {
    /// Takes the memory. All PEs do so at the same place in the order of what they take.
    ///
    /// # Errors
    /// The runtime's.
    pub fn new(memory: &mut SymmetricMemory<'_>) -> Result<Stage> {
        Ok(Stage { at: memory.take(2 * BYTES as usize)? })
    }

    /// The pieces of parts of so many bytes, of which the stage has to hold so many.
    pub fn pieces(&self, part: u64, parts: u64) -> impl Iterator<Item = Piece> + use<> {
        let most = (BYTES / parts / ALIGNMENT).max(1) * ALIGNMENT;
        (0..part.div_ceil(most)).map(move |i| Piece { at: i * most, len: most.min(part - i * most) })
    }

    /// Copies a piece of each of the input's parts here, one behind the other.
    ///
    /// # Safety
    /// As for [`Stream::copy`].
    ///
    /// # Errors
    /// What the driver says.
    pub unsafe fn gather(&self, stream: &Stream, input: Memory, part: u64, piece: Piece, parts: u64) -> Result<Memory> {
        for i in 0..parts {
            let (to, from) = (self.at + i * piece.len, input.at + i * part + piece.at);
            // SAFETY: the caller's promise; the pieces fit in.
            unsafe { stream.copy(DevicePtr::new(to), DevicePtr::new(from), piece.len) }?;
        }
        Ok(Memory { at: self.at, len: parts * piece.len })
    }

    /// So many bytes for an output.
    pub fn output(&self, len: u64) -> Memory {
        Memory { at: self.at + BYTES, len }
    }

    /// Copies a piece of each of the output's parts from where they are one behind the other.
    ///
    /// # Safety
    /// As for [`Stream::copy`].
    ///
    /// # Errors
    /// What the driver says.
    pub unsafe fn scatter(
        stream: &Stream,
        from: Memory,
        output: Memory,
        part: u64,
        piece: Piece,
        parts: u64,
    ) -> Result<()> {
        for i in 0..parts {
            let (to, from) = (output.at + i * part + piece.at, from.at + i * piece.len);
            // SAFETY: the caller's promise.
            unsafe { stream.copy(DevicePtr::new(to), DevicePtr::new(from), piece.len) }?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_every_byte_once_and_fit() {
        let stage = Stage { at: 0 };
        for (part, parts) in [(1, 1), (BYTES, 1), (BYTES + 1, 1), (5 * BYTES - 3, 3), (7, 72), (BYTES, 72)] {
            let mut end = 0;
            for piece in stage.pieces(part, parts) {
                assert_eq!((piece.at, piece.at % ALIGNMENT), (end, 0), "{part} {parts}");
                assert!(piece.len > 0 && piece.len * parts <= BYTES);
                end += piece.len;
            }
            assert_eq!(end, part, "{parts}");
        }
    }
}
