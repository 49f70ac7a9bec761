//! Symmetric memory for teams: blocks at the same place on the PEs of one team, of which others know nothing.
//!
//! The symmetric heap's own calls are over all PEs. A [`TeamHeap`] is one block of it, from which teams take parts by
//! agreeing on a range that is free on all of their PEs: as many bytes as the team needs, not the whole job.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

use super::Team;
use crate::error::{Error, Result};
use crate::runtime::Runtime;

/// Blocks begin at multiples of this, which cache lines and rows of memory do too.
pub const ALIGN: usize = 256;

/// What a block of so many bytes takes: a multiple of [`ALIGN`]. What has none, no heap has: then the largest number.
#[must_use]
pub fn aligned(bytes: usize) -> usize {
    bytes.checked_next_multiple_of(ALIGN).unwrap_or(usize::MAX)
}

/// A part of the symmetric heap that teams take blocks from.
pub struct TeamHeap<'rt> {
    runtime: &'rt Runtime,
    base: *mut u8,
    bytes: usize,
    /// Blocks that are taken: start, end.
    taken: Mutex<BTreeMap<usize, usize>>,
}

/// Bytes at the same place on all PEs of a team.
#[derive(Debug)]
pub struct Block {
    /// Their symmetric address: a multiple of [`ALIGN`].
    pub base: *mut u8,
    /// How many there are.
    pub bytes: usize,
    start: usize,
}

// SAFETY: the address is that of symmetric memory, which any thread may use.
unsafe impl Send for Block {}
// SAFETY: as above; what is taken is behind a mutex.
unsafe impl Send for TeamHeap<'_> {}
// SAFETY: as above.
unsafe impl Sync for TeamHeap<'_> {}

impl<'rt> TeamHeap<'rt> {
    /// Takes so many bytes from every PE's heap. Collective over all PEs.
    ///
    /// # Errors
    /// Those of [`Runtime::align`].
    pub fn new(runtime: &'rt Runtime, bytes: usize) -> Result<TeamHeap<'rt>> {
        let bytes = aligned(bytes);
        let base = runtime.align(ALIGN, bytes)?;
        Ok(TeamHeap { runtime, base, bytes, taken: Mutex::default() })
    }

    /// Gives the memory back. Collective over all PEs.
    ///
    /// # Errors
    /// Those of [`Runtime::free`].
    pub fn free(self) -> Result<()> {
        self.runtime.free(self.base)
    }

    /// The runtime whose heap it is in.
    #[must_use]
    pub fn runtime(&self) -> &'rt Runtime {
        self.runtime
    }

    /// Checks that the CPU, which does the copies of plans of the host, can touch it.
    ///
    /// # Errors
    /// [`Error::DeviceHeap`].
    pub fn must_be_the_hosts(&self) -> Result<()> {
        if self.runtime.is_staged(self.base) {
            return Err(Error::DeviceHeap { pe: self.runtime.my_pe() });
        }
        Ok(())
    }

    /// As [`TeamHeap::take`], all 0.
    ///
    /// # Errors
    /// As there.
    pub fn take_words(&self, team: &Team<'_>, bytes: usize) -> Result<Block> {
        let block = self.take(team, bytes)?;
        if self.runtime.is_staged(block.base) {
            let zeros = vec![0u8; block.bytes];
            // SAFETY: the range is in this PE's part of the heap.
            unsafe { self.runtime.put(block.base, zeros.as_ptr(), zeros.len(), self.runtime.my_pe()) }?;
        } else {
            // SAFETY: as above, and no peer writes to it before the barrier.
            unsafe { block.base.write_bytes(0, block.bytes) };
        }
        team.barrier()?;
        Ok(block)
    }

    /// Takes as many bytes as any PE of the team asks for. Collective over the team.
    ///
    /// # Errors
    /// [`Error::TeamHeapFull`] on all of them.
    pub fn take(&self, team: &Team<'_>, bytes: usize) -> Result<Block> {
        let mut most = [bytes as u64];
        team.max_of_all(&mut most)?;
        let bytes = aligned((most[0] as usize).max(1));
        let mut candidate = 0;
        loop {
            // The range is kept from other threads while the team talks about it.
            let offer = self.reserve(candidate, bytes);
            let number = offer.map_or(u64::MAX, |start| start as u64);
            let mut ends = [number, !number];
            let agreed = team.max_of_all(&mut ends);
            match (offer, agreed) {
                (Some(start), Ok(())) if ends[0] == !ends[1] => {
                    return Ok(Block { base: self.base.wrapping_add(start), bytes, start });
                }
                (offer, agreed) => {
                    offer.map(|start| self.taken().remove(&start));
                    agreed?;
                }
            }
            if ends[0] == u64::MAX {
                return Err(Error::TeamHeapFull { pe: self.runtime.my_pe(), bytes, heap_bytes: self.bytes });
            }
            candidate = ends[0] as usize;
        }
    }

    /// Gives a block back once nobody uses it any more. Collective over the team.
    ///
    /// # Errors
    /// A peer that does not answer; the block is kept then.
    #[allow(clippy::needless_pass_by_value)] // a block that was given back cannot be used
    pub fn give_back(&self, team: &Team<'_>, block: Block) -> Result<()> {
        team.barrier()?;
        self.taken().remove(&block.start);
        Ok(())
    }

    /// Takes the first range from `candidate` on that is free here.
    fn reserve(&self, candidate: usize, bytes: usize) -> Option<usize> {
        let mut taken = self.taken();
        let start = taken.iter().fold(candidate, |start, (&from, &to)| {
            let disjoint = to <= start || start.saturating_add(bytes) <= from;
            if disjoint { start } else { to }
        });
        if start.checked_add(bytes)? > self.bytes {
            return None;
        }
        taken.insert(start, start + bytes);
        Some(start)
    }

    fn taken(&self) -> MutexGuard<'_, BTreeMap<usize, usize>> {
        self.taken.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
