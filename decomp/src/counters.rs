//! Counters of the blocks that a plan has moved, by the way that each block took. They show what a mode does without a
//! clock.

use std::ops::AddAssign;

/// What a plan has done since it was made. The blocks are those with other PEs, without empty ones.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Counters {
    /// Rounds that exchanged blocks. On GPUs those that were enqueued on a stream or captured; replays of a graph are
    /// not counted.
    pub rounds: u64,
    /// Blocks that the CPU, or the GPU's multiprocessors, copied to a mapped peer.
    pub copied: u64,
    /// Blocks that this GPU's copy engines fetched from a mapped peer.
    pub fetched: u64,
    /// Blocks that were put over rails.
    pub put: u64,
    /// Blocks of others that arrived in the output.
    pub direct: u64,
    /// Blocks of others that arrived in the workspace, or in a buffer of the plan, and were unpacked from there.
    pub staged: u64,
    /// Those of the staged blocks that were unpacked without a wait for the other blocks.
    pub pipelined: u64,
}

impl AddAssign for Counters {
    fn add_assign(&mut self, other: Counters) {
        let Counters { rounds, copied, fetched, put, direct, staged, pipelined } = other;
        self.rounds += rounds;
        self.copied += copied;
        self.fetched += fetched;
        self.put += put;
        self.direct += direct;
        self.staged += staged;
        self.pipelined += pipelined;
    }
}
