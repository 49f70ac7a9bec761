//! Symmetric memory for teams: blocks at the same offset on the PEs of one team, unknown to other PEs.
//!
//! The symmetric heap's own calls are over all PEs. A [`TeamHeap`] is one block of that heap. A team allocates in it by
//! agreeing on a range that is free on all of its PEs, of the size that the team needs.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard};

use super::{Group, Team};
use crate::error::{Error, Result};
use crate::runtime::Runtime;

/// Blocks begin at multiples of this, and so at the start of cache lines and of rows of memory.
pub const ALIGN: usize = 256;

/// The size of a block of `bytes` bytes: a multiple of [`ALIGN`]. If there is none, the largest number, which no heap
/// has.
#[must_use]
pub fn aligned(bytes: usize) -> usize {
    bytes.checked_next_multiple_of(ALIGN).unwrap_or(usize::MAX)
}

/// A part of the symmetric heap in which teams allocate blocks: a handle, whose clones are of the same heap.
#[derive(Clone)]
pub struct TeamHeap(Arc<State>);

struct State {
    base: *mut u8,
    bytes: usize,
    /// Allocated blocks: start, end.
    taken: Mutex<BTreeMap<usize, usize>>,
    runtime: Runtime,
}

/// Bytes at the same offset on all PEs of a team. They keep their heap alive. Dropping a block does not free it.
pub struct Block {
    /// Their symmetric address: a multiple of [`ALIGN`].
    pub base: *mut u8,
    /// Their number.
    pub bytes: usize,
    start: usize,
    /// The PEs that allocated it.
    group: Group,
    heap: TeamHeap,
}

impl Block {
    /// Frees it once no PE uses it any more. Collective over the team that allocated it.
    ///
    /// # Errors
    /// [`Error::OtherTeam`] if other PEs have allocated it; [`Error::ParametersDiffer`] if PEs free different blocks; a
    /// peer that does not answer. The block stays allocated then.
    pub fn free(self, team: &Team) -> Result<()> {
        Block::free_all(team, [self])
    }

    /// As [`Block::free`], for several blocks at once, which PEs may list in different orders. Collective over the team.
    ///
    /// # Errors
    /// As for [`Block::free`].
    pub fn free_all(team: &Team, blocks: impl IntoIterator<Item = Block>) -> Result<()> {
        let blocks: Vec<Block> = blocks.into_iter().collect();
        // All of the PEs that may write to the blocks have to be here.
        let is_own = |block: &Block| block.group == team.group() && team.is_of(block.heap.runtime());
        let own = blocks.iter().all(is_own);
        let mut starts: Vec<usize> = blocks.iter().map(|block| block.start).collect();
        starts.sort_unstable();
        let mut hasher = DefaultHasher::new();
        starts.hash(&mut hasher);
        let what = "freeing memory of a team";
        let parameters = [("whether the blocks are the team's", own.into()), ("the blocks", hasher.finish())];
        team.compare_as_many(what, &parameters)?;
        if !own {
            return Err(Error::OtherTeam { pe: team.runtime().my_pe(), what });
        }
        team.barrier()?;
        for block in blocks {
            block.heap.taken().remove(&block.start);
        }
        Ok(())
    }
}

impl std::fmt::Debug for Block {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes at {:p} of a team heap", self.bytes, self.base)
    }
}

// SAFETY: the address is that of symmetric memory, which any thread may use.
unsafe impl Send for Block {}
// SAFETY: as above.
unsafe impl Sync for Block {}
// SAFETY: as above; a mutex guards the allocated blocks.
unsafe impl Send for State {}
// SAFETY: as above.
unsafe impl Sync for State {}

impl TeamHeap {
    /// Allocates `bytes` bytes on every PE's heap. Collective over all PEs.
    ///
    /// # Errors
    /// Those of [`Runtime::align`].
    pub fn new(runtime: &Runtime, bytes: usize) -> Result<TeamHeap> {
        let bytes = aligned(bytes);
        let base = runtime.align(ALIGN, bytes)?;
        Ok(TeamHeap(Arc::new(State { base, bytes, taken: Mutex::default(), runtime: runtime.clone() })))
    }

    /// Frees the memory. Collective over all PEs.
    ///
    /// # Errors
    /// [`Error::InUse`] on all PEs if another handle of the heap, a block or a plan exists on any of them: then the heap
    /// stays. Those of [`Runtime::free`].
    pub fn free(self) -> Result<()> {
        let (runtime, handles) = (self.runtime(), Arc::strong_count(&self.0) - 1);
        if runtime.everybody().any("the end of a team heap", handles > 0)? {
            return Err(Error::InUse { pe: runtime.my_pe(), what: "a team heap", handles });
        }
        runtime.free(self.0.base)
    }

    /// The runtime whose heap it is in.
    #[must_use]
    pub fn runtime(&self) -> &Runtime {
        &self.0.runtime
    }

    /// Checks that the CPU can access it, since the CPU copies for the plans of the host.
    ///
    /// # Errors
    /// [`Error::DeviceHeap`].
    pub fn must_be_the_hosts(&self) -> Result<()> {
        if self.runtime().is_staged(self.0.base) {
            return Err(Error::DeviceHeap { pe: self.runtime().my_pe() });
        }
        Ok(())
    }

    /// As [`TeamHeap::take`], with all bytes 0.
    ///
    /// # Errors
    /// As there.
    pub fn take_words(&self, team: &Team, bytes: usize) -> Result<Block> {
        let block = self.take(team, bytes)?;
        if self.runtime().is_staged(block.base) {
            let zeros = vec![0u8; block.bytes];
            // SAFETY: the range is in this PE's part of the heap.
            unsafe { self.runtime().put(block.base, zeros.as_ptr(), zeros.len(), self.runtime().my_pe()) }?;
        } else {
            // SAFETY: as above, and no peer writes to it before the barrier.
            unsafe { block.base.write_bytes(0, block.bytes) };
        }
        team.barrier()?;
        Ok(block)
    }

    /// Allocates the largest size that any PE of the team asks for. Collective over the team.
    ///
    /// # Errors
    /// [`Error::TeamHeapFull`] on all of them.
    pub fn take(&self, team: &Team, bytes: usize) -> Result<Block> {
        let mut most = [bytes as u64];
        team.max_of_all(&mut most)?;
        let bytes = aligned((most[0] as usize).max(1));
        let mut candidate = 0;
        loop {
            // The range is reserved against other threads while the team agrees on it.
            let offer = self.reserve(candidate, bytes);
            let number = offer.map_or(u64::MAX, |start| start as u64);
            let mut ends = [number, !number];
            let agreed = team.max_of_all(&mut ends);
            match (offer, agreed) {
                (Some(start), Ok(())) if ends[0] == !ends[1] => {
                    let (base, group, heap) = (self.0.base.wrapping_add(start), team.group(), self.clone());
                    return Ok(Block { base, bytes, start, group, heap });
                }
                (offer, agreed) => {
                    offer.map(|start| self.taken().remove(&start));
                    agreed?;
                }
            }
            if ends[0] == u64::MAX {
                return Err(Error::TeamHeapFull { pe: self.runtime().my_pe(), bytes, heap_bytes: self.0.bytes });
            }
            candidate = ends[0] as usize;
        }
    }

    /// Reserves the first range from `candidate` on that is free here.
    fn reserve(&self, candidate: usize, bytes: usize) -> Option<usize> {
        let mut taken = self.taken();
        let start = taken.iter().fold(candidate, |start, (&from, &to)| {
            let disjoint = to <= start || start.saturating_add(bytes) <= from;
            if disjoint { start } else { to }
        });
        if start.checked_add(bytes)? > self.0.bytes {
            return None;
        }
        taken.insert(start, start + bytes);
        Some(start)
    }

    fn taken(&self) -> MutexGuard<'_, BTreeMap<usize, usize>> {
        self.0.taken.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
