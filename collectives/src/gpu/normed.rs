//! All-reduces of rows with a residual, whose output is their RMS norm (`cu/normed.cuh`): one launch, among PEs that access
//! one another's memory. Buffers may be any memory of the GPU.

use symrail::kernels::cuda::Shape;
use symrail_core::layout::words;

use super::layout::{self, NORM_BY_GROUPS, NORM_BY_TENSOR, NORM_PLAIN, STRAIGHT_SLOTS};
use super::plan::Memory;
use super::straight::{Addresses, Sizes, StraightCall, THREADS, Way};
use crate::error::{Error, Result};
use crate::number::{Accumulate, DataType, ReduceOp};
use crate::plan::Collective;

/// Elements with a scale in common.
pub const GROUP: u64 = 128;

/// Bytes of rows that a rank can send to all others as packets.
const PACKETS: u64 = 2 << 20;

/// The most bytes of rows in packets among `n` ranks.
#[must_use]
pub fn most_in_packets(n: u64) -> u64 {
    PACKETS / n.saturating_sub(1).max(1) / 16 * 16
}

/// What the output is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scaled {
    /// Elements of the input's type.
    Not,
    /// FP8 (e4m3): elements divided by the f32 in this memory.
    ByTensor(Memory),
    /// FP8 (e4m3), and for each 128 elements of a row an f32 in this memory, by which they were divided: the largest of
    /// them becomes 448.
    ByGroups(Memory),
}

/// A call. The sum and the output may be the memory of the input or of the residual, but not the same memory.
#[derive(Debug, Clone, Copy)]
pub struct RmsNorm {
    /// This rank's rows.
    pub input: Memory,
    /// Rows that are added to the sum, the same on all ranks: of pushed rows that of the rank that adds them counts.
    pub residual: Option<Memory>,
    /// The sum of all ranks' rows and the residual.
    pub sum: Memory,
    /// A factor for each element of a row.
    pub weight: Memory,
    /// The norm of the sum.
    pub output: Memory,
    /// The form of the output.
    pub scaled: Scaled,
    /// The number of rows.
    pub rows: u64,
    /// Elements of a row.
    pub hidden: u64,
    /// Their type.
    pub ty: DataType,
    /// Added to the mean of squares.
    pub epsilon: f32,
}

/// A kernel, by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub enum NormKernel {
    /// [`Way::Packets`].
    Packets = layout::NORM_PACKETS,
    /// [`Way::Packets`], rows at any address.
    PacketsAnywhere = layout::NORM_PACKETS_ANYWHERE,
    /// [`Way::Pushed`].
    Pushed = layout::NORM_PUSHED,
    /// [`Way::Pushed`], rows at any address.
    PushedAnywhere = layout::NORM_PUSHED_ANYWHERE,
}

impl NormKernel {
    /// The names of the kernels, in the order of their numbers.
    pub(super) const NAMES: [&str; 4] =
        ["normed_packets", "normed_packets_anywhere", "normed_pushed", "normed_pushed_anywhere"];
}

/// How a call is divided. All but the blocks and threads is for rows that are pushed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cut {
    /// Blocks of the kernel.
    pub blocks: u64,
    /// Threads of a block.
    pub threads: u64,
    /// The bytes of a chunk for each rank, at most those of four slots. Rows begin at multiples of 16 bytes there.
    pub chunk: u64,
    /// Rows that each rank adds up.
    pub rows_of_rank: u64,
    /// Those of them that a block has.
    pub rows_of_block: u64,
    /// Rows of a chunk.
    pub rows_of_chunk: u64,
    /// Parts of a row, each of which is a chunk, if it does not fit in one.
    pub parts: u64,
    /// A block's chunks.
    pub chunks: u64,
}

impl Cut {
    pub(super) fn shape(&self) -> Shape {
        Shape { blocks: self.blocks as u32, threads: self.threads as u32 }
    }
}

impl RmsNorm {
    /// Types of elements.
    pub const TYPES: [DataType; 3] = [DataType::Float16, DataType::Bfloat16, DataType::Float32];

    fn row_bytes(&self) -> u64 {
        self.hidden * self.ty.size() as u64
    }

    /// Bytes of all rows, as packets carry them.
    fn in_packets(&self) -> u64 {
        self.rows * self.row_bytes().next_multiple_of(16)
    }

    /// The faster algorithm among `n` ranks: packets, if they carry all rows
    /// (docs/benchmarks/2026-11-28-collectives.md).
    #[must_use]
    pub fn way(&self, n: u64) -> Way {
        if self.in_packets() <= most_in_packets(n) { Way::Packets } else { Way::Pushed }
    }

    /// Refuses memory whose size is not that of its rows, or that overlaps other memory in another way than allowed.
    ///
    /// # Errors
    /// It names the memory, and the sizes.
    pub fn check(&self, way: Way, n: u64) -> Result<()> {
        let refuse = |why: String| Err(Error::Call(format!("an all-reduce with an RMS norm: {why}")));
        if !RmsNorm::TYPES.contains(&self.ty) {
            return refuse(format!("elements of {}, and not f16, bf16 or f32", self.ty));
        }
        if self.hidden == 0 {
            return refuse("rows of no elements".into());
        }
        if way == Way::Packets && self.in_packets() > most_in_packets(n) {
            let most = most_in_packets(n);
            return refuse(format!("{} bytes of rows, and packets carry {most} among {n} ranks", self.in_packets()));
        }
        let Some(rows) = self.rows.checked_mul(self.row_bytes()) else {
            return refuse(format!("{} rows of {} elements are too many", self.rows, self.hidden));
        };
        let element = self.ty.size() as u64;
        let output = if self.scaled == Scaled::Not { rows } else { rows / element };
        let scales = match self.scaled {
            Scaled::Not => None,
            Scaled::ByTensor(memory) => Some(("scale", memory, 4)),
            Scaled::ByGroups(_) if !self.hidden.is_multiple_of(GROUP) => {
                return refuse(format!("groups of {GROUP} in rows of {} elements", self.hidden));
            }
            // Its kernel would need the largest element of two warps.
            Scaled::ByGroups(_) if self.ty == DataType::Float32 => {
                return refuse("f32 with scales of groups, which f16 and bf16 have".into());
            }
            Scaled::ByGroups(memory) => Some(("scales", memory, self.rows * self.hidden / GROUP * 4)),
        };
        let residual = self.residual.map(|memory| ("residual", memory, rows));
        let all = [
            Some(("input", self.input, rows)),
            residual,
            Some(("sum", self.sum, rows)),
            Some(("output", self.output, output)),
            Some(("weight", self.weight, self.row_bytes())),
            scales,
        ];
        for (what, memory, bytes) in all.iter().flatten() {
            if memory.len != *bytes {
                return refuse(format!("the {what} has {} bytes, and not {bytes}", memory.len));
            }
            let aligned = if matches!(*what, "scale" | "scales") { 4 } else { 1 };
            if !memory.at.is_multiple_of(aligned) {
                return refuse(format!("the {what} is not aligned to 4 bytes"));
            }
        }
        let written = [Some(("sum", self.sum)), Some(("output", self.output)), scales.map(|(what, at, _)| (what, at))];
        for (name, to) in written.into_iter().flatten().filter(|(name, _)| *name != "scale") {
            for (what, memory, _) in all.iter().flatten().filter(|(what, ..)| *what != name) {
                let allowed = *memory == to && matches!(*what, "input" | "residual");
                if memory.overlaps(to) && !allowed {
                    return refuse(format!("the {name} and the {what} overlap"));
                }
            }
        }
        Ok(())
    }

    /// How the call is divided among at most so many blocks: the same on all ranks.
    #[must_use]
    pub fn cut(&self, way: Way, sizes: &Sizes, most_blocks: u64) -> Cut {
        let row = self.row_bytes();
        if way == Way::Packets {
            return Cut {
                // Blocks do not wait for one another: more than run at once are no error.
                blocks: self.rows.clamp(1, 2 * most_blocks),
                threads: row.div_ceil(16).next_multiple_of(32).clamp(32, THREADS),
                chunk: sizes.slot,
                rows_of_rank: 0,
                rows_of_block: 0,
                rows_of_chunk: 0,
                parts: 1,
                chunks: 0,
            };
        }
        let rows_of_rank = self.rows.div_ceil(sizes.ranks()).max(1);
        let rows_of_block = rows_of_rank.div_ceil(most_blocks);
        let stride = row.next_multiple_of(16);
        // A chunk's slots adjoin in a ring of four.
        let fits = [1, 2, STRAIGHT_SLOTS].map(|slots| slots * sizes.slot / stride).into_iter().find(|&rows| rows > 0);
        let rows_of_chunk = rows_of_block.min(fits.unwrap_or(1));
        let chunk = match fits {
            Some(_) => rows_of_chunk * stride,
            None => row.div_ceil(row.div_ceil(sizes.slot)).next_multiple_of(16),
        };
        let parts = if fits.is_some() { 1 } else { row.div_ceil(chunk) };
        Cut {
            blocks: rows_of_rank.div_ceil(rows_of_block),
            // A quarter for each row that is under way.
            threads: 4 * row.div_ceil(16).next_multiple_of(32).clamp(32, THREADS / 4),
            chunk,
            rows_of_rank,
            rows_of_block,
            rows_of_chunk,
            parts,
            chunks: rows_of_block.div_ceil(rows_of_chunk) * parts,
        }
    }

    /// The kernel: all rows of this rank are aligned to 16 bytes, or not. Ranks may differ in that.
    #[must_use]
    pub fn kernel(&self, way: Way) -> NormKernel {
        let residual = self.residual.map_or(0, |memory| memory.at);
        let together = self.input.at | residual | self.sum.at | self.weight.at | self.output.at | self.row_bytes();
        match (way, together.is_multiple_of(16)) {
            (Way::Packets, true) => NormKernel::Packets,
            (Way::Packets, false) => NormKernel::PacketsAnywhere,
            (Way::Pushed, true) => NormKernel::Pushed,
            (Way::Pushed, false) => NormKernel::PushedAnywhere,
        }
    }

    /// The kernel's argument, `symrail_norm`.
    #[must_use]
    pub fn argument(&self, at: &Addresses, sizes: &Sizes, me: u64, cut: &Cut) -> Vec<u64> {
        let call = StraightCall {
            collective: StraightCall::number(&Collective::AllReduce),
            root: 0,
            input: self.input.at,
            output: self.output.at,
            part: self.rows * self.row_bytes(),
            op: ReduceOp::Sum,
            average: false,
            accumulate: Accumulate::F32,
            most_blocks: cut.blocks,
            chunk: None,
        };
        let (scaled, scales) = match self.scaled {
            Scaled::Not => (NORM_PLAIN, 0),
            Scaled::ByTensor(memory) => (NORM_BY_TENSOR, memory.at),
            Scaled::ByGroups(memory) => (NORM_BY_GROUPS, memory.at),
        };
        let residual = self.residual.map_or(0, |memory| memory.at);
        words(&[layout::Norm {
            straight: call.layout(at, sizes, me, cut.blocks, cut.chunk),
            residual,
            sum: self.sum.at,
            weight: self.weight.at,
            rows: self.rows,
            hidden: self.hidden,
            epsilon: self.epsilon.to_bits().into(),
            scaled,
            scales,
            inbox: at.inbox,
            inbox_bytes: sizes.inbox,
            rows_of_rank: cut.rows_of_rank,
            rows_of_block: cut.rows_of_block,
            rows_of_chunk: cut.rows_of_chunk,
            parts: cut.parts,
            chunks: cut.chunks,
        }])
    }
}

#[cfg(test)]
mod tests {
    use super::super::straight::MOST_BLOCKS;
    use super::*;

    fn call(rows: u64, hidden: u64) -> RmsNorm {
        let bytes = 2 * rows * hidden;
        let memory = |number: u64, len| Memory { at: number << 32, len };
        RmsNorm {
            input: memory(1, bytes),
            residual: Some(memory(2, bytes)),
            sum: memory(2, bytes),
            weight: memory(3, 2 * hidden),
            output: memory(1, bytes),
            scaled: Scaled::Not,
            rows,
            hidden,
            ty: DataType::Bfloat16,
            epsilon: 1e-6,
        }
    }

    #[test]
    fn memory_has_the_sizes_of_rows_and_overlaps_as_a_whole() {
        let why =
            |call: RmsNorm| call.check(call.way(2), 2).map_err(|error| error.to_string()).err().unwrap_or_default();
        assert_eq!(why(call(7, 4096)), "");
        let base = call(7, 4096);
        let scales = Scaled::ByGroups(Memory { at: 5 << 32, len: 7 * 32 * 4 });
        let codes = Memory { at: 6 << 32, len: 7 * 4096 };
        assert_eq!(why(RmsNorm { scaled: scales, output: codes, ..base }), "");
        let one = call(1, 4096);
        for (call, text) in [
            (RmsNorm { rows: 8, ..base }, "the input has 57344 bytes, and not 65536"),
            (RmsNorm { scaled: scales, ..base }, "the output has 57344 bytes, and not 28672"),
            (RmsNorm { output: base.sum, ..base }, "the sum and the output overlap"),
            (RmsNorm { sum: Memory { at: base.input.at + 2, ..base.sum }, ..base }, "the sum and the input overlap"),
            (RmsNorm { ty: DataType::Float64, ..base }, "elements of"),
            (RmsNorm { weight: one.sum, ..one }, "the sum and the weight overlap"),
            (RmsNorm { ty: DataType::Float32, rows: 3, scaled: scales, ..base }, "f32 with scales of groups"),
        ] {
            assert!(why(call).contains(text), "{} for {text}", why(call));
        }
    }

    #[test]
    fn each_row_is_in_one_chunk_of_its_owner_or_in_several() {
        for n in [2, 3, 8, 16] {
            let sizes = Sizes::of(n);
            for (rows, hidden) in [(1, 8), (1, 7), (512, 4096), (512, 8192), (130, 5), (3, 200_000), (10_000, 64)] {
                let cut = call(rows, hidden).cut(Way::Pushed, &sizes, MOST_BLOCKS);
                let what = format!("{rows} x {hidden} among {n}: {cut:?}");
                assert!(cut.rows_of_rank * n >= rows && cut.blocks <= MOST_BLOCKS, "{what}");
                assert!(cut.rows_of_block * cut.blocks >= cut.rows_of_rank, "{what}");
                assert!(cut.rows_of_block * (cut.blocks - 1) < cut.rows_of_rank, "a block has no rows: {what}");
                assert!(cut.chunks / cut.parts * cut.rows_of_chunk >= cut.rows_of_block, "{what}");
                assert!(cut.threads.is_multiple_of(128) && cut.threads <= THREADS, "{what}");
                let row = 2 * hidden;
                if cut.parts == 1 {
                    assert_eq!(cut.chunk, cut.rows_of_chunk * row.next_multiple_of(16), "{what}");
                    assert!(cut.chunk <= STRAIGHT_SLOTS * sizes.slot, "{what}");
                } else {
                    assert!(row > STRAIGHT_SLOTS * sizes.slot && cut.chunk <= sizes.slot, "{what}");
                    assert!(cut.chunk * (cut.parts - 1) < row && row <= cut.chunk * cut.parts, "{what}");
                    assert!(cut.chunk.is_multiple_of(16) && cut.rows_of_chunk == 1, "{what}");
                }
            }
        }
    }
}
