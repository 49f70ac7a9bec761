//! Where the tokens of a dispatch go: what a combine goes back on, and other tokens may follow.

use std::cell::Cell;
use std::sync::{Arc, Mutex, PoisonError};

use symrail::kernels::cuda::{DeviceBuffer, Event, Gpu, Stream};

use super::{failed, zeroed};
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

/// Memory of routes that are not in use any more, and events behind what has used it.
type Spare = Arc<Mutex<Vec<(DeviceBuffer, Event)>>>;

/// Makes routes, from the memory of earlier ones where there is some.
pub(super) struct Pool {
    pub room: Room,
    spare: Spare,
}

/// What stream has used routes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Used {
    ByNone,
    By(usize),
    /// By several, or by a graph, which may use them again at any time: their memory is not taken for others.
    BySeveral,
}

/// Routes on a GPU. They are filled by each [layout](super::DeviceHighThroughput::layout). Their memory is taken for later
/// ones when they are dropped.
pub struct DeviceRoutes {
    pub(super) room: Room,
    pub(super) tokens: usize,
    starts: [usize; TABLES + 1],
    /// None while it is dropped.
    memory: Option<(DeviceBuffer, Event)>,
    used: Cell<Used>,
    spare: Spare,
}

impl Pool {
    pub fn new(room: Room) -> Pool {
        Pool { room, spare: Spare::default() }
    }

    /// Routes for what is launched on a stream from now on.
    pub fn routes(&self, gpu: &Arc<Gpu>, stream: &Stream) -> Result<DeviceRoutes> {
        let starts = self.room.starts();
        let captures = stream.is_capturing().map_err(failed)?;
        let found = if captures { None } else { self.spare.lock().unwrap_or_else(PoisonError::into_inner).pop() };
        let memory = match found {
            Some((buffer, event)) => {
                stream.wait_for(&event).map_err(failed)?;
                (buffer, event)
            }
            None => {
                let buffer = zeroed(gpu, starts[TABLES])?;
                let addresses = starts[..TABLES].iter().map(|&start| buffer.at().get() + start as u64);
                let bytes: Vec<u8> = addresses.flat_map(u64::to_ne_bytes).collect();
                buffer.write(0, &bytes).map_err(failed)?;
                (buffer, Event::new(gpu).map_err(failed)?)
            }
        };
        let (room, spare, used) = (self.room, Arc::clone(&self.spare), Cell::new(Used::ByNone));
        Ok(DeviceRoutes { room, tokens: 0, starts, memory: Some(memory), used, spare })
    }
}

impl Drop for DeviceRoutes {
    fn drop(&mut self) {
        if let (Some(memory), true) = (self.memory.take(), self.used.get() != Used::BySeveral) {
            self.spare.lock().unwrap_or_else(PoisonError::into_inner).push(memory);
        }
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
        self.memory.as_ref().map_or(0, |(buffer, _)| buffer.at().get())
    }

    /// Remembers that what was launched on a stream uses them.
    pub(super) fn used_by(&self, stream: &Stream) -> Result<()> {
        let by = Used::By(stream.raw() as usize);
        let others = !matches!(self.used.get(), Used::ByNone) && self.used.get() != by;
        if others || stream.is_capturing().map_err(failed)? {
            self.used.set(Used::BySeveral);
            return Ok(());
        }
        // Before the event is: if that fails, nobody else gets this memory.
        self.used.set(Used::BySeveral);
        if let Some((_, event)) = &self.memory {
            event.record(stream).map_err(failed)?;
        }
        self.used.set(by);
        Ok(())
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
        if let Some((buffer, _)) = &self.memory {
            buffer.read(self.starts[table], &mut bytes).map_err(failed)?;
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
