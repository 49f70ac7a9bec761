//! Where the tokens of a dispatch go: what a combine goes back on, and other tokens may follow.

use std::sync::Arc;

use symrail::kernels::cuda::{DeviceBuffer, Event, Gpu, Stream};

use super::failed;
use super::lent::{Lent, Memory, Pool};
use crate::error::Result;

/// What routes are made for, which is the same for all of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Room {
    pub ranks: usize,
    pub me: usize,
    pub hosts: usize,
    /// Tokens of a rank, and experts of all ranks.
    pub most_tokens: usize,
    pub experts: usize,
    /// Tokens that may go through this rank, and ranks of a host.
    pub passed: usize,
    pub members: usize,
}

/// Tables, as numbered by `routes` in the kernels: of them the host knows these.
const TABLES: usize = 9;
const MATRIX: usize = 0;
const PLACES: usize = 3;
const PER_EXPERT: usize = 5;
const COME: usize = 6;
/// Bytes of their addresses, which lie before them.
const ADDRESSES: usize = (8 * TABLES).next_multiple_of(ALIGNMENT);
const ALIGNMENT: usize = 128;

impl Room {
    /// Where each table begins, and where the last one ends.
    fn starts(&self) -> [usize; TABLES + 1] {
        let Room { ranks, hosts, most_tokens, experts, passed, members, .. } = *self;
        let words = [
            ranks * ranks,
            ranks * hosts,
            (ranks + hosts) * most_tokens,
            most_tokens * ranks,
            most_tokens * hosts,
            experts,
            experts / ranks,
            4,
            passed * members,
        ];
        let mut starts = [ADDRESSES; TABLES + 1];
        for (table, words) in words.into_iter().enumerate() {
            starts[table + 1] = starts[table] + (4 * words).next_multiple_of(ALIGNMENT);
        }
        starts
    }
}

/// Memory of routes, and an event behind what was launched with it.
struct OfRoutes {
    buffer: DeviceBuffer,
    event: Event,
}

impl Memory for OfRoutes {
    type Stream = Stream;

    fn is_captured(stream: &Stream) -> Result<bool> {
        stream.is_capturing().map_err(failed)
    }

    fn follow(&self, stream: &Stream) -> Result<()> {
        stream.wait_for(&self.event).map_err(failed)
    }

    fn mark(&self, stream: &Stream) -> Result<()> {
        self.event.record(stream).map_err(failed)
    }
}

/// Makes routes, from the memory of earlier ones where there is some.
pub(super) struct Routes {
    pub room: Room,
    pool: Pool<OfRoutes>,
}

/// Routes on a GPU. They are filled by each [layout](super::DeviceHighThroughput::layout).
///
/// When they are dropped, their memory is taken for later ones, behind what was launched with it; that of routes with
/// which something was captured is kept until the buffers are dropped that have made them. What is captured does not
/// wait for what was launched with the same routes before, which is for the caller to order.
pub struct DeviceRoutes {
    pub(super) room: Room,
    pub(super) tokens: usize,
    starts: [usize; TABLES + 1],
    memory: Lent<OfRoutes>,
}

impl Routes {
    pub fn new(room: Room) -> Routes {
        Routes { room, pool: Pool::new() }
    }

    /// Routes for what is launched on a stream from now on.
    pub fn lend(&self, gpu: &Arc<Gpu>, stream: &Stream) -> Result<DeviceRoutes> {
        let starts = self.room.starts();
        let make = || {
            let buffer = gpu.alloc_with(starts[TABLES], |at| {
                starts[..TABLES].iter().flat_map(|&start| (at.get() + start as u64).to_ne_bytes()).collect()
            });
            Ok(OfRoutes { buffer: buffer.map_err(failed)?, event: Event::new(gpu).map_err(failed)? })
        };
        Ok(DeviceRoutes { room: self.room, tokens: 0, starts, memory: self.pool.lend(stream, make)? })
    }
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
    /// Their address for kernels: that of the tables' addresses.
    pub(super) fn at(&self) -> u64 {
        self.memory.memory().map_or(0, |memory| memory.buffer.at().get())
    }

    /// Launches something that uses them.
    pub(super) fn while_used(&self, stream: &Stream, launch: impl FnOnce() -> Result<()>) -> Result<()> {
        self.memory.while_used(stream, launch)
    }

    /// How many tokens this rank has.
    #[must_use]
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    fn table(&self, table: usize) -> u64 {
        self.at() + self.starts[table] as u64
    }

    /// The address for the GPU of each token's place among those for each rank: `tokens` × `ranks` 32-bit numbers, -1
    /// where the rank does not get it.
    #[must_use]
    pub fn places(&self) -> u64 {
        self.table(PLACES)
    }

    /// The address of this rank's tokens for each rank, 32 bits each.
    #[must_use]
    pub fn per_rank(&self) -> u64 {
        self.table(MATRIX) + 4 * (self.room.me * self.room.ranks) as u64
    }

    /// The address of this rank's slots for each expert of all ranks, 32 bits each.
    #[must_use]
    pub fn per_expert(&self) -> u64 {
        self.table(PER_EXPERT)
    }

    /// For each rank its tokens for each rank, when the GPU has ended a dispatch.
    ///
    /// # Errors
    /// What the driver says.
    pub fn matrix(&self) -> Result<Vec<u32>> {
        self.read(MATRIX, self.room.ranks * self.room.ranks)
    }

    pub(super) fn counts(&self) -> Result<Counts> {
        let matrix = self.matrix()?;
        let from_ranks = matrix.iter().skip(self.room.me).step_by(self.room.ranks).copied().collect();
        Ok(Counts { from_ranks, per_expert: self.read(COME, self.room.experts / self.room.ranks)? })
    }

    fn read(&self, table: usize, count: usize) -> Result<Vec<u32>> {
        let mut bytes = vec![0; 4 * count];
        if let Some(memory) = self.memory.memory() {
            memory.buffer.read(self.starts[table], &mut bytes).map_err(failed)?;
        }
        Ok(bytes.as_chunks::<4>().0.iter().map(|word| u32::from_ne_bytes(*word)).collect())
    }
}

impl Counts {
    /// How many rows there are.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.from_ranks.iter().map(|&rows| rows as usize).sum()
    }
}
