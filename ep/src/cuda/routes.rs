//! Where the tokens of a dispatch go: what a combine goes back on, and other tokens may follow.

use std::sync::Arc;

use symrail::kernels::cuda::{DeviceBuffer, Gpu};

use super::{failed, with_words, zeroed};
use crate::error::Result;
use crate::plan::layout::share;

/// Routes on a GPU. They are made once and filled by each [layout](super::DeviceHighThroughput::layout).
pub struct DeviceRoutes {
    /// What they have room for: tokens of a rank, and experts of all ranks.
    pub(super) room: [usize; 2],
    ranks: usize,
    me: usize,
    pub(super) tokens: usize,
    /// As `routes` in the kernels.
    pub(super) addresses: DeviceBuffer,
    matrix: DeviceBuffer,
    places: DeviceBuffer,
    come: DeviceBuffer,
    _lists: DeviceBuffer,
    per_expert: DeviceBuffer,
    _wrong_slot: DeviceBuffer,
}

/// What a dispatch brings, as the host learns it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counts {
    /// Tokens from each rank.
    pub from_ranks: Vec<u32>,
    /// Slots that name each of this rank's experts.
    pub per_expert: Vec<u32>,
}

impl DeviceRoutes {
    pub(super) fn new(
        gpu: &Arc<Gpu>,
        (ranks, me): (usize, usize),
        most_tokens: usize,
        experts: usize,
    ) -> Result<DeviceRoutes> {
        let words = |count: usize| zeroed(gpu, 4 * count);
        let (matrix, lists, places) = (words(ranks * ranks)?, words(ranks * most_tokens)?, words(most_tokens * ranks)?);
        let (per_expert, come, wrong_slot) = (words(experts)?, words(share(experts, ranks)?)?, words(4)?);
        let all = [&matrix, &lists, &places, &per_expert, &come, &wrong_slot].map(|buffer| buffer.at().get());
        let addresses = with_words(gpu, &all)?;
        let (_lists, _wrong_slot) = (lists, wrong_slot);
        let room = [most_tokens, experts];
        Ok(DeviceRoutes {
            room,
            ranks,
            me,
            tokens: 0,
            addresses,
            matrix,
            places,
            come,
            _lists,
            per_expert,
            _wrong_slot,
        })
    }

    /// How many tokens this rank has.
    #[must_use]
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// The address for the GPU of each token's place among those for each rank: `tokens` × `ranks` 32-bit numbers, -1
    /// where the rank does not get it.
    #[must_use]
    pub fn places(&self) -> u64 {
        self.places.at().get()
    }

    /// The address of this rank's tokens for each rank, 32 bits each.
    #[must_use]
    pub fn per_rank(&self) -> u64 {
        self.matrix.at().get() + 4 * (self.me * self.ranks) as u64
    }

    /// The address of this rank's slots for each expert of all ranks, 32 bits each.
    #[must_use]
    pub fn per_expert(&self) -> u64 {
        self.per_expert.at().get()
    }

    /// For each rank its tokens for each rank, when the GPU has ended a dispatch.
    ///
    /// # Errors
    /// What the driver says.
    pub fn matrix(&self) -> Result<Vec<u32>> {
        read(&self.matrix, self.ranks * self.ranks)
    }

    pub(super) fn counts(&self, share: usize) -> Result<Counts> {
        let matrix = self.matrix()?;
        let from_ranks = matrix.iter().skip(self.me).step_by(self.ranks).copied().collect();
        Ok(Counts { from_ranks, per_expert: read(&self.come, share)? })
    }
}

impl Counts {
    /// How many rows there are.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.from_ranks.iter().map(|&rows| rows as usize).sum()
    }
}

fn read(buffer: &DeviceBuffer, count: usize) -> Result<Vec<u32>> {
    let mut bytes = vec![0; 4 * count];
    buffer.read(0, &mut bytes).map_err(failed)?;
    Ok(bytes.as_chunks::<4>().0.iter().map(|word| u32::from_ne_bytes(*word)).collect())
}
