//! Symmetric memory that calls use whose buffers are elsewhere.

use symrail::kernels::cuda::Transfer;

use super::memory::SymmetricMemory;
use super::plan::Memory;
use crate::error::Result;

/// Bytes for inputs, and as many for outputs.
const BYTES: u64 = 16 << 20;
/// Pieces begin at multiples of this.
const ALIGNMENT: u64 = 256;

/// The stage. Its memory belongs to the communicator.
#[derive(Debug, Clone, Copy)]
pub struct Stage {
    at: u64,
}

/// A range of bytes of each part of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// Its start in each part.
    pub at: u64,
    /// Its length.
    pub len: u64,
}

impl Stage {
    /// Allocates the memory. All PEs do so at the same point in the order of their allocations.
    ///
    /// # Errors
    /// The runtime's.
    pub(super) fn new(memory: &mut SymmetricMemory) -> Result<Stage> {
        Ok(Stage::at(memory.take(Self::BYTES as usize)?))
    }

    /// Its bytes.
    pub const BYTES: u64 = 2 * BYTES;

    /// A stage in symmetric memory of this PE's device.
    #[must_use]
    pub fn at(at: u64) -> Stage {
        Stage { at }
    }

    /// The pieces of parts of `part` bytes, if the stage must hold `parts` of them.
    pub fn pieces(&self, part: u64, parts: u64) -> impl Iterator<Item = Piece> + use<> {
        let most = (BYTES / parts / ALIGNMENT).max(1) * ALIGNMENT;
        (0..part.div_ceil(most)).map(move |i| Piece { at: i * most, len: most.min(part - i * most) })
    }

    /// The steps for a piece of a call, with its numbers of parts of input and output.
    #[must_use]
    pub fn staged(&self, call: &StagedCall, piece: Piece) -> Staged {
        let StagedCall { input, output, part, inputs, outputs, .. } = *call;
        let cut = |parts| parts > 1 && piece.len < part;
        let stage_input = call.reaches_input || call.scaled || call.in_place && call.reaches_output || cut(inputs);
        let stage_output = call.reaches_output || cut(outputs) || call.discards;
        let memory = |at, parts| Memory { at, len: parts * piece.len };
        let from = memory(if stage_input { self.at } else { input.at + piece.at }, inputs);
        let to = match (call.in_place && stage_input, stage_output) {
            (true, _) => from,
            (_, true) => memory(self.at + BYTES, outputs),
            _ => memory(output.at + piece.at, outputs),
        };
        // The parts are contiguous in the stage, and a whole part apart in the call's buffers.
        let places = |parts: u64, there: u64, here: u64| {
            (0..parts).map(move |i| (there + i * part + piece.at, here + i * piece.len))
        };
        let copy = |source, dest| Transfer { dest, source, bytes: piece.len };
        let before = places(inputs, input.at, from.at).filter(|_| stage_input).map(|(there, here)| copy(there, here));
        let returns = to.at != output.at + piece.at && !call.discards;
        let after = places(outputs, output.at, to.at).filter(|_| returns).map(|(there, here)| copy(here, there));
        Staged { before: before.collect(), input: from, output: to, after: after.collect() }
    }
}

/// A call on buffers that may be any memory, and how its plan uses them.
#[derive(Debug, Clone, Copy)]
pub struct StagedCall {
    /// Its input, of `inputs` parts.
    pub input: Memory,
    /// Its output, of `outputs` parts.
    pub output: Memory,
    /// Bytes of a part.
    pub part: u64,
    /// Parts of the input.
    pub inputs: u64,
    /// Parts of the output.
    pub outputs: u64,
    /// The plan's input is its output.
    pub in_place: bool,
    /// Peers access its input.
    pub reaches_input: bool,
    /// Peers access its output.
    pub reaches_output: bool,
    /// The input is multiplied first, and stays unchanged in its own memory.
    pub scaled: bool,
    /// The output is not this PE's: nothing is written to it.
    pub discards: bool,
}

/// The steps for a piece of a call: copies, the plan on these buffers, and copies.
#[derive(Debug)]
pub struct Staged {
    /// Copies before the plan.
    pub before: Vec<Transfer>,
    /// The plan's input.
    pub input: Memory,
    /// The plan's output.
    pub output: Memory,
    /// Copies after the plan.
    pub after: Vec<Transfer>,
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
