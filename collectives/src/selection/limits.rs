//! The sizes of messages for which a device's algorithms are.

use super::Algorithm;

/// The limits of sizes for a device's algorithms.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// The largest message of an all-reduce, in bytes, for which every PE sends everything to every other PE.
    pub one_shot: u64,
    /// The largest one for which two PEs on two hosts do so by puts: no algorithm moves fewer bytes, but each PE
    /// reduces everything.
    pub one_round: u64,
    /// The largest one that travels in packets.
    pub packets: u64,
    /// Bytes of a message for each further block, as packets and otherwise; and the most blocks that are useful.
    pub block_bytes: (u64, u64),
    /// See `block_bytes`.
    pub most_blocks: usize,
    /// The same for `one_round`, whose blocks put once each, but blocks grow with the message's square root: each put
    /// over TCP costs about 40 us besides its bytes, and several overlap with copies, sums and one another.
    pub puts: (u64, usize),
    /// Whether it has algorithms without a plan.
    pub straight: bool,
}

/// Threads of the CPU device.
pub(crate) const CPU: Limits = Limits {
    one_shot: 4 << 10,
    one_round: 16 << 10,
    packets: 64 << 10,
    block_bytes: (128 << 10, 128 << 10),
    most_blocks: 2,
    puts: (128 << 10, 2),
    straight: false,
};
/// GPUs that access one another over NVLink.
pub(crate) const GPU: Limits = Limits {
    one_shot: 32 << 10,
    one_round: u64::MAX,
    packets: 512 << 10,
    block_bytes: (8 << 10, 64 << 10),
    most_blocks: 32,
    puts: (64 << 10, 16),
    straight: true,
};

/// Blocks of the algorithms without a plan, which use fewer for small messages.
pub(super) const MOST_BLOCKS_OF_PACKETS: usize = 64;
pub(super) const MOST_BLOCKS_OF_PUSHES: usize = 64;

impl Limits {
    /// The number of blocks, a power of two, so that there are few different plans.
    pub(super) fn blocks(&self, algorithm: Algorithm, message: u64) -> usize {
        let (bytes, most) = match algorithm {
            Algorithm::Packets => return MOST_BLOCKS_OF_PACKETS,
            Algorithm::Pushed => return MOST_BLOCKS_OF_PUSHES,
            Algorithm::OneShot | Algorithm::TwoPhase => (self.block_bytes.0, self.most_blocks),
            Algorithm::OneRound => {
                let worth = (message / self.puts.0).isqrt().clamp(1, self.puts.1 as u64);
                return 1 << worth.ilog2();
            }
            _ => (self.block_bytes.1, self.most_blocks),
        };
        let worth = (message / bytes).clamp(1, most as u64);
        1 << worth.ilog2()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_round_has_twice_as_many_blocks_for_four_times_the_bytes() {
        let blocks = |message: u64| GPU.blocks(Algorithm::OneRound, message);
        assert_eq!([8, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 1 << 30].map(blocks), [1, 1, 2, 4, 8, 16, 16]);
        assert_eq!([(256 << 10) - 1, (1 << 20) - 1].map(blocks), [1, 2], "powers of two");
    }
}
