//! The offsets of chunks in buffers of a given size.
//!
//! All chunks have the same size, a multiple of the plan's alignment. Input and output consist of parts; the collective
//! determines their number (one for each PE in an all-gather's output). A part need not be a multiple of its chunks:
//! bytes of a chunk beyond the part's end do not exist, and are neither read nor written. So no length needs a separate
//! tail.

use std::ops::Range;

use super::{BufferType, Collective, Plan, Span};

/// The layout of a call's buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Geometry {
    /// Bytes of a part.
    pub part: u64,
    /// Chunks of a part.
    pub chunks: u64,
    /// Bytes of a chunk.
    pub chunk: u64,
    /// Bytes that are never split.
    pub alignment: u64,
}

impl Plan {
    /// Chunks of a part, and the numbers of parts in input and output.
    pub(crate) fn parts(&self) -> (u64, u64, u64) {
        let n = self.ranks.len() as u64;
        let (input, output) = self.ranks.first().map_or((0, 0), |rank| (rank.input_chunks, rank.output_chunks));
        match self.collective {
            Collective::AllGather => (input, 1, n),
            Collective::ReduceScatter => (output, n, 1),
            Collective::AllToAll => (input / n, n, n),
            Collective::AllReduce | Collective::Broadcast | Collective::Reduce | Collective::Other(_) => {
                (input.max(output).max(1), 1, 1)
            }
        }
    }

    /// The layout for parts of `part` bytes.
    pub(crate) fn geometry(&self, part: u64) -> Geometry {
        let (chunks, ..) = self.parts();
        // Elements and packets are never split.
        let alignment = if self.alignment.is_multiple_of(16) { self.alignment } else { self.alignment * 16 };
        let chunk = part.div_ceil(chunks).next_multiple_of(alignment);
        Geometry { part, chunks, chunk, alignment }
    }

    /// Bytes of all scratch chunks in a call with these parts. As packets they take twice as many.
    pub(crate) fn scratch_bytes(&self, part: u64) -> u64 {
        let chunks = self.ranks.iter().map(|rank| rank.scratch_chunks).max().unwrap_or(0);
        chunks * self.geometry(part).chunk
    }

    /// Bytes of scratch memory for parts of up to `part` bytes: plain chunks, then packets, each in one or two halves.
    pub(crate) fn scratch_memory(&self, part: u64) -> u64 {
        self.scratch_bytes(part) * (self.scratch_halves + 2 * self.packet_halves)
    }

    /// The start of a call's plain chunks in scratch memory, by the number of the call.
    pub(crate) fn scratch_start(&self, part: u64, call: u64) -> u64 {
        call % self.scratch_halves * self.scratch_bytes(part)
    }

    /// The size of a message in terms of plans' limits, for parts of `part` bytes.
    pub(crate) fn message(&self, part: u64) -> u64 {
        let (_, inputs, outputs) = self.parts();
        part.saturating_mul(if self.collective == Collective::AllGather { outputs } else { inputs })
    }
}

impl Geometry {
    /// A block's bytes of an operation on `size` chunks; the block is number `share.0` of `share.1` blocks.
    pub fn share(&self, size: u64, share: (u64, u64)) -> Range<u64> {
        let bytes = size * self.chunk;
        let units = bytes / self.alignment;
        let start = |i: u64| (i * (units / share.1) + i.min(units % share.1)) * self.alignment;
        start(share.0)..start(share.0 + 1)
    }

    /// Splits an operation's bytes so that each piece is within one chunk of every span.
    pub fn pieces(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> + use<> {
        // If no chunk is cut short, no split is needed.
        let step = if self.part == self.chunks * self.chunk { u64::MAX } else { self.chunk };
        let mut at = range.start;
        std::iter::from_fn(move || {
            let end = range.end.min((at / step + 1).saturating_mul(step));
            let piece = at..end;
            at = end;
            (!piece.is_empty()).then_some(piece)
        })
    }

    /// The offset of a piece of a span in its buffer, and the number of its existing bytes.
    pub fn locate(&self, span: &Span, piece: &Range<u64>) -> (u64, u64) {
        let (at, len) = (span.index * self.chunk + piece.start, piece.end - piece.start);
        if span.buffer == BufferType::Scratch {
            return (at, len);
        }
        let whole = self.chunks * self.chunk;
        if whole == self.part {
            return (at, len);
        }
        let (part, within) = (at / whole, at % whole);
        (part * self.part + within.min(self.part), len.min(self.part.saturating_sub(within)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(buffer: BufferType, index: u64, size: u64) -> Span {
        Span { rank: 0, buffer, index, size }
    }

    /// 100 bytes in four chunks of 32: the last has 4 bytes, and the next part follows at once.
    #[test]
    fn chunks_are_cut_at_the_end_of_their_part() {
        let geometry = Geometry { part: 100, chunks: 4, chunk: 32, alignment: 16 };
        let of = |index| geometry.locate(&span(BufferType::Output, index, 1), &(0..32));
        assert_eq!([of(0), of(3), of(4), of(7)], [(0, 32), (96, 4), (100, 32), (196, 4)]);
        assert_eq!(geometry.locate(&span(BufferType::Scratch, 7, 1), &(16..32)), (240, 16));
        assert_eq!(geometry.locate(&span(BufferType::Input, 3, 1), &(16..32)), (100, 0), "nothing is left");
        assert_eq!(geometry.pieces(16..80).collect::<Vec<_>>(), [16..32, 32..64, 64..80]);
    }

    #[test]
    fn shares_cover_everything_once() {
        let geometry = Geometry { part: 160, chunks: 2, chunk: 80, alignment: 16 };
        let shares: Vec<_> = (0..3).map(|i| geometry.share(2, (i, 3))).collect();
        assert_eq!(shares, [0..64, 64..112, 112..160]);
        assert!(geometry.pieces(64..160).eq(std::iter::once(64..160)), "whole chunks are one piece");
    }
}
