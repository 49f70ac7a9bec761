//! The destinations of a dispatch's tokens. A combine returns on these routes, and another dispatch may reuse them.

use std::sync::Arc;

use symrail::kernels::cuda::{Gpu, Stream};
use symrail_core::layout::bytes;

use super::failed;
use super::layout::high_throughput::Routes as Tables;
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

/// Bytes of the tables' addresses, which precede the tables.
const ADDRESSES: usize = size_of::<Tables>().next_multiple_of(ALIGNMENT);
const ALIGNMENT: usize = 128;

impl Room {
    /// The bytes of each table.
    fn tables(&self) -> Tables {
        let Room { ranks, hosts, most_tokens, experts, passed, members, .. } = *self;
        let bytes = |words: usize| (4 * words).next_multiple_of(ALIGNMENT) as u64;
        Tables {
            matrix: bytes(ranks * ranks),
            crossings: bytes(ranks * hosts),
            lists: bytes((ranks + hosts) * most_tokens),
            places: bytes(most_tokens * ranks),
            host_places: bytes(most_tokens * hosts),
            per_expert: bytes(experts),
            come: bytes(experts / ranks),
            wrong_slot: bytes(4),
            spread: bytes(passed * members),
        }
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
    /// The top-k slots of each.
    pub(super) k: usize,
    /// The offset of each table.
    tables: Tables,
    memory: Lent<Used>,
}

impl Routes {
    pub fn new(room: Room) -> Routes {
        Routes { room, pool: Pool::new() }
    }

    /// Routes for later launches on a stream.
    pub fn lend(&self, gpu: &Arc<Gpu>, stream: &Stream) -> Result<DeviceRoutes> {
        let sizes = self.room.tables();
        let make = || {
            let buffer =
                gpu.alloc_with(ADDRESSES + sizes.bytes(), |at| bytes(&[sizes.from(at.get() + ADDRESSES as u64)]));
            Used::new(gpu, buffer.map_err(failed)?)
        };
        let tables = sizes.from(ADDRESSES as u64);
        Ok(DeviceRoutes { room: self.room, tokens: 0, k: 0, tables, memory: self.pool.lend(stream, make)? })
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

    /// The GPU address of each token's index among those for each rank: `tokens` × `ranks` 32-bit numbers, -1 where the
    /// rank does not get the token.
    #[must_use]
    pub fn places(&self) -> u64 {
        self.at() + self.tables.places
    }

    /// The GPU address of the number of this rank's tokens for each rank, 32 bits each.
    #[must_use]
    pub fn per_rank(&self) -> u64 {
        self.at() + self.tables.matrix + 4 * (self.room.me * self.room.ranks) as u64
    }

    /// The GPU address of the number of this rank's slots for each expert of all ranks, 32 bits each.
    #[must_use]
    pub fn per_expert(&self) -> u64 {
        self.at() + self.tables.per_expert
    }
}
