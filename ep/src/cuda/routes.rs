//! The destinations of a dispatch's tokens. A combine returns on these routes, and another dispatch may reuse them.

use std::sync::Arc;

use symrail::kernels::cuda::{Gpu, Stream};

use super::failed;
use super::lent::{Lent, Pool, Used};
use crate::error::Result;

/// The sizes of routes, which are equal for all routes of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Room {
    pub ranks: usize,
    pub me: usize,
    pub hosts: usize,
    /// The most tokens of a rank, and the experts of all ranks.
    pub most_tokens: usize,
    pub experts: usize,
    /// The most tokens that pass through this rank, and the most ranks of a host.
    pub passed: usize,
    pub members: usize,
}

/// The number of tables, in the order of `routes` in the kernels; the indices of those that callers may read.
const TABLES: usize = 9;
const MATRIX: usize = 0;
const PLACES: usize = 3;
const PER_EXPERT: usize = 5;
/// Bytes of the tables' addresses, which precede the tables.
const ADDRESSES: usize = (8 * TABLES).next_multiple_of(ALIGNMENT);
const ALIGNMENT: usize = 128;

impl Room {
    /// The offset of each table, and the end of the last one.
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

/// Creates routes, from the memory of earlier ones if there is some.
pub(super) struct Routes {
    pub room: Room,
    pool: Pool<Used>,
}

/// Routes on a GPU. They are filled by each [layout](super::DeviceHighThroughput::layout).
///
/// When routes are dropped, later routes reuse their memory, ordered behind its last use. The memory of routes that a
/// captured launch uses is kept until the buffers that have made them are dropped. A captured launch does not wait for
/// earlier launches with the same routes; the caller orders them.
pub struct DeviceRoutes {
    pub(super) room: Room,
    pub(super) tokens: usize,
    starts: [usize; TABLES + 1],
    memory: Lent<Used>,
}

impl Routes {
    pub fn new(room: Room) -> Routes {
        Routes { room, pool: Pool::new() }
    }

    /// Routes for later launches on a stream.
    pub fn lend(&self, gpu: &Arc<Gpu>, stream: &Stream) -> Result<DeviceRoutes> {
        let starts = self.room.starts();
        let make = || {
            let buffer = gpu.alloc_with(starts[TABLES], |at| {
                starts[..TABLES].iter().flat_map(|&start| (at.get() + start as u64).to_ne_bytes()).collect()
            });
            Used::new(gpu, buffer.map_err(failed)?)
        };
        Ok(DeviceRoutes { room: self.room, tokens: 0, starts, memory: self.pool.lend(stream, make)? })
    }
}

impl DeviceRoutes {
    /// The address for kernels: that of the tables' addresses.
    pub(super) fn at(&self) -> u64 {
        self.memory.memory().map_or(0, |memory| memory.buffer.at().get())
    }

    /// Launches work that uses the routes.
    pub(super) fn while_used(&self, stream: &Stream, launch: impl FnOnce() -> Result<()>) -> Result<()> {
        self.memory.while_used(stream, launch)
    }

    /// The number of this rank's tokens.
    #[must_use]
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    fn table(&self, table: usize) -> u64 {
        self.at() + self.starts[table] as u64
    }

    /// The GPU address of each token's index among those for each rank: `tokens` × `ranks` 32-bit numbers, -1 where the
    /// rank does not get the token.
    #[must_use]
    pub fn places(&self) -> u64 {
        self.table(PLACES)
    }

    /// The GPU address of the number of this rank's tokens for each rank, 32 bits each.
    #[must_use]
    pub fn per_rank(&self) -> u64 {
        self.table(MATRIX) + 4 * (self.room.me * self.room.ranks) as u64
    }

    /// The GPU address of the number of this rank's slots for each expert of all ranks, 32 bits each.
    #[must_use]
    pub fn per_expert(&self) -> u64 {
        self.table(PER_EXPERT)
    }
}
