//! All-reduces of rows with a residual, whose output is their RMS norm (`cu/normed.cuh`): one launch, among PEs that access
//! one another's memory. Buffers may be any memory of the GPU.

use symrail::kernels::cuda::Shape;
use symrail_core::layout::words;

use super::layout::{self, NORM_BY_GROUPS, NORM_BY_TENSOR, NORM_PLAIN, STRAIGHT_BLOCKS};
use super::plan::Memory;
use super::straight::{Addresses, Sizes, StraightCall, THREADS, Way, most_in_packets};
use crate::error::{Error, Result};
use crate::number::{Accumulate, DataType, ReduceOp};
use crate::plan::Collective;

/// Elements with a scale in common.
pub const GROUP: u64 = 128;
/// The number of chunks of a block's rows, if rows are that many.
const CHUNKS: u64 = 4;

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

/// A call. Memory of `rows` x `hidden` elements may be the same as other such memory of the same size.
#[derive(Debug, Clone, Copy)]
pub struct RmsNorm {
    /// This rank's rows.
    pub input: Memory,
    /// Rows that are added to the sum, the same on all ranks.
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

/// How a call is divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cut {
    /// Blocks of the kernel.
    pub blocks: u64,
    /// Threads of a block.
    pub threads: u64,
    /// The bytes of a chunk, at most those of a slot.
    pub chunk: u64,
    /// Rows of a chunk; 0: a row has several chunks.
    pub rows_of_chunk: u64,
}

impl Cut {
    pub(super) fn shape(&self) -> Shape {
        Shape { blocks: self.blocks as u32, threads: self.threads as u32 }
    }
}

/// Bytes that all of a rank's packets carry by default.
const BY_PACKETS: u64 = 256 << 10;

impl RmsNorm {
    /// Types of elements.
    pub const TYPES: [DataType; 3] = [DataType::Float16, DataType::Bfloat16, DataType::Float32];

    fn row_bytes(&self) -> u64 {
        self.hidden * self.ty.size() as u64
    }

    /// Bytes of all rows, as packets carry them.
    fn in_packets(&self) -> u64 {
        self.rows * self.row_bytes().next_multiple_of(8)
    }

    /// The algorithm that is never much slower among `n` ranks: packets of more bytes took 10 to 446 us on two GPUs.
    #[must_use]
    pub fn way(&self, n: u64) -> Way {
        let most = most_in_packets(n).min(BY_PACKETS / (n - 1).max(1));
        if self.in_packets() <= most { Way::Packets } else { Way::Pushed }
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
                let allowed =
                    *memory == to && !(name == "output" && *what == "sum" || name == "sum" && *what == "output");
                if memory.overlaps(to) && !allowed {
                    return refuse(format!("the {name} and the {what} overlap"));
                }
            }
        }
        Ok(())
    }

    /// How the call is divided.
    #[must_use]
    pub fn cut(&self, way: Way, sizes: &Sizes) -> Cut {
        let (blocks, row) = (self.rows.clamp(1, STRAIGHT_BLOCKS), self.row_bytes());
        let vectors = row.div_ceil(if way == Way::Packets { 8 } else { 16 });
        let threads = vectors.next_multiple_of(32).clamp(32, THREADS);
        let (rows_of_chunk, chunk) = match sizes.slot / row {
            0 => (0, row.div_ceil(row.div_ceil(sizes.slot)).next_multiple_of(16)),
            most => {
                let rows = self.rows.div_ceil(blocks).div_ceil(CHUNKS).min(most);
                (rows, rows * row)
            }
        };
        Cut { blocks, threads, chunk, rows_of_chunk }
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
        let together = self.input.at | residual | self.sum.at | self.weight.at | self.output.at | self.row_bytes();
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
            rows_of_chunk: cut.rows_of_chunk,
            is_aligned: together.is_multiple_of(16).into(),
        }])
    }
}

#[cfg(test)]
mod tests {
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
        for (call, text) in [
            (RmsNorm { rows: 8, ..base }, "the input has 57344 bytes, and not 65536"),
            (RmsNorm { scaled: scales, ..base }, "the output has 57344 bytes, and not 28672"),
            (RmsNorm { output: base.sum, ..base }, "the sum and the output overlap"),
            (RmsNorm { sum: Memory { at: base.input.at + 2, ..base.sum }, ..base }, "the sum and the input overlap"),
            (RmsNorm { ty: DataType::Float64, ..base }, "elements of"),
            (RmsNorm { ty: DataType::Float32, rows: 3, scaled: scales, ..base }, "f32 with scales of groups"),
        ] {
            assert!(why(call).contains(text), "{} for {text}", why(call));
        }
    }

    #[test]
    fn chunks_are_whole_rows_or_parts_of_one() {
        for n in [2, 3, 8] {
            let sizes = Sizes::of(n);
            for (rows, hidden) in [(1, 8), (1, 7), (512, 8192), (3, 200_000), (10_000, 64)] {
                let cut = call(rows, hidden).cut(Way::Pushed, &sizes);
                assert!(cut.chunk <= sizes.slot && cut.blocks <= rows && cut.threads.is_multiple_of(32), "{n} {cut:?}");
                assert_eq!(cut.rows_of_chunk == 0, 2 * hidden > sizes.slot, "{n} {cut:?}");
            }
        }
    }
}
