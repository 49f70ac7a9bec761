//! What tests take of the heap besides the area, and the shapes that say so.

use symrail_ep::low_latency::Shape;
use symrail_ep::plan::sizes;

use super::catalog::Phase;

/// Experts of a token.
pub const K: usize = 8;
/// Tokens of a call for low latency.
pub const FEW: usize = 128;
/// Rows of a block.
pub const ROWS: usize = 128;

/// As near to 256 as all ranks can share.
pub fn experts(n_pes: u32) -> usize {
    (256 / n_pes as usize).max(1) * n_pes as usize
}

/// The shape of a call for low latency.
pub fn shape(token: usize, n_pes: u32) -> Shape {
    Shape { most_tokens: FEW, token, scales: 0, experts: experts(n_pes), k: K }
}

/// Bytes of each PE's heap that a test of expert parallelism takes.
pub fn of_experts(phase: Phase, token: usize, n_pes: u32) -> usize {
    match phase {
        Phase::LowLatency => shape(token, n_pes).bytes(n_pes as usize),
        _ => sizes::high_throughput(n_pes as usize, ROWS, sizes::largest_row(token)),
    }
}

/// Bytes of each PE's heap that a test takes: input, output and the plans' memory.
pub fn of_collective(size: usize, n_pes: u32) -> usize {
    size.saturating_mul(8).saturating_add((n_pes as usize + 4) << 19)
}
