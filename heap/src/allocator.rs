//! The symmetric allocator: assigns offsets of the heap to blocks.
//!
//! It never accesses heap memory. Its records are in private memory: peers can write anywhere in the heap, and a stray
//! put must not be able to corrupt the allocator.
//!
//! # Invariants
//! - **Deterministic**: the result depends only on the sequence of calls, so PEs that make the same calls get the same
//!   offsets. Nothing here depends on addresses, time, hashing seeds or memory contents.
//! - Every byte of `0..committed` is in exactly one block, live or free; no two free blocks touch.
//! - `committed..capacity` is in no block. It becomes a free block when [`Allocator::commit`] is called for it.
//! - Offsets and block sizes are multiples of [`MIN_ALIGN`].

use std::collections::{BTreeMap, BTreeSet};

/// The least alignment of a block, and the unit of block sizes, in bytes.
///
/// It is a cache line. Blocks that start mid-line would share lines between unrelated data. They would also bring back
/// the offset between source and destination that makes `rep movsb` copies an order of magnitude slower (see
/// [`copy`](crate::copy)).
pub const MIN_ALIGN: u64 = 64;

/// The number of free blocks that an over-aligned request tries before it uses one that fits at any offset.
const ALIGNED_CANDIDATES: usize = 16;

/// Why the allocator could not satisfy a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AllocError {
    /// There is room, but it is not committed yet. The caller commits `0..to`, calls [`Allocator::commit`], and repeats
    /// the request.
    Commit {
        /// The new committed length in bytes.
        to: u64,
    },
    /// No free block is large enough, and growing to the capacity does not help.
    Exhausted,
    /// The alignment is not a power of two.
    Alignment,
    /// No live block starts at this offset.
    NotAllocated,
}

/// The usage of the allocator, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Bytes in live blocks, after rounding up to [`MIN_ALIGN`].
    pub used: u64,
    /// Bytes not in live blocks, committed or not.
    pub free: u64,
    /// The largest block that is available at the least alignment.
    pub largest: u64,
    /// The maximum of `used` so far.
    pub high_water: u64,
    /// The number of live blocks.
    pub blocks: usize,
    /// Committed memory.
    pub committed: u64,
    /// The limit of committed memory.
    pub capacity: u64,
}

/// A best-fit allocator of offsets. See the module for its invariants.
#[derive(Debug, Clone)]
pub struct Allocator {
    capacity: u64,
    committed: u64,
    granule: u64,
    used: u64,
    high_water: u64,
    /// The live blocks: offset to size.
    live: BTreeMap<u64, u64>,
    /// The free blocks: offset to size; the same blocks as `free_by_size`.
    free: BTreeMap<u64, u64>,
    /// The free blocks as (size, offset): the smallest sufficient size first, the lowest offset among equals.
    free_by_size: BTreeSet<(u64, u64)>,
}

impl Allocator {
    /// An allocator of `0..capacity` with nothing committed. The heap grows by multiples of `granule`, and finally to
    /// the capacity itself. Both are rounded to [`MIN_ALIGN`] (the capacity down, the granule up).
    #[must_use]
    pub fn new(capacity: u64, granule: u64) -> Self {
        let capacity = capacity - capacity % MIN_ALIGN;
        Allocator {
            capacity,
            committed: 0,
            granule: granule.max(1).checked_next_multiple_of(MIN_ALIGN).unwrap_or(capacity.max(MIN_ALIGN)),
            used: 0,
            high_water: 0,
            live: BTreeMap::new(),
            free: BTreeMap::new(),
            free_by_size: BTreeSet::new(),
        }
    }

    /// Notes that `0..to` is committed. A smaller value than before has no effect; one above the capacity means the
    /// capacity.
    pub fn commit(&mut self, to: u64) {
        let to = to.min(self.capacity);
        let to = to - to % MIN_ALIGN;
        if to > self.committed {
            let from = std::mem::replace(&mut self.committed, to);
            self.insert_free(from, to - from);
        }
    }

    /// Takes a block of at least `size` bytes whose offset is a multiple of `align`.
    /// Returns its offset, or `None` for a size of 0.
    ///
    /// The best fit is the smallest free block that holds the request, the lowest of equals. An alignment above
    /// [`MIN_ALIGN`] can make small blocks useless. So the search tries a few of the best, and then uses the best of
    /// those that fit at any offset. Only when there is none does it search all.
    ///
    /// # Errors
    /// [`AllocError::Commit`], [`AllocError::Exhausted`], [`AllocError::Alignment`]. On an error nothing has changed.
    pub fn alloc(&mut self, size: u64, align: u64) -> Result<Option<u64>, AllocError> {
        if !align.is_power_of_two() {
            return Err(AllocError::Alignment);
        }
        if size == 0 {
            return Ok(None);
        }
        let align = align.max(MIN_ALIGN);
        let size = round_up(size).ok_or(AllocError::Exhausted)?;
        if size > self.capacity {
            return Err(AllocError::Exhausted);
        }
        match self.find(size, align) {
            Some((block, block_size, start)) => {
                self.remove_free(block, block_size);
                self.insert_free(block, start - block);
                self.insert_free(start + size, block + block_size - (start + size));
                self.take(start, size);
                Ok(Some(start))
            }
            None => {
                // The block would start in the free block at the end of committed memory, if there is one.
                let tail = self.free_tail().unwrap_or(self.committed);
                let end = tail.checked_next_multiple_of(align).and_then(|start| start.checked_add(size));
                Err(self.grow_to(end))
            }
        }
    }

    /// Frees a block and returns its size.
    ///
    /// # Errors
    /// [`AllocError::NotAllocated`] when no live block starts at `offset`, e.g. because it was freed already.
    pub fn free(&mut self, offset: u64) -> Result<u64, AllocError> {
        let size = self.live.remove(&offset).ok_or(AllocError::NotAllocated)?;
        self.used -= size;
        self.insert_free(offset, size);
        Ok(size)
    }

    /// Changes a live block's size in place. `Ok(false)` means that there is no room for that; nothing has changed
    /// then.
    ///
    /// # Errors
    /// [`AllocError::NotAllocated`]; [`AllocError::Commit`] when the block is the last one and only memory is missing;
    /// [`AllocError::Exhausted`] when the size is 0 (free the block instead) or above the capacity.
    pub fn resize(&mut self, offset: u64, size: u64) -> Result<bool, AllocError> {
        let old = self.size_of(offset).ok_or(AllocError::NotAllocated)?;
        let size = round_up(size).filter(|&size| size > 0 && size <= self.capacity).ok_or(AllocError::Exhausted)?;
        let end = offset + old;
        if size <= old {
            self.live.insert(offset, size);
            self.used -= old - size;
            self.insert_free(offset + size, old - size);
            return Ok(true);
        }
        let more = size - old;
        let next = self.free.get(&end).copied().unwrap_or(0);
        if next >= more {
            self.remove_free(end, next);
            self.insert_free(end + more, next - more);
            self.used -= old;
            self.take(offset, size);
            return Ok(true);
        }
        // Only memory is missing when the block, or the free block after it, ends where committed memory ends.
        if end + next == self.committed && offset.checked_add(size).is_some_and(|end| end <= self.capacity) {
            return Err(self.grow_to(offset.checked_add(size)));
        }
        Ok(false)
    }

    /// The size of the live block that starts at `offset`, rounded up to [`MIN_ALIGN`].
    #[must_use]
    pub fn size_of(&self, offset: u64) -> Option<u64> {
        self.live.get(&offset).copied()
    }

    /// The usage of the allocator.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let tail = self.free_tail().unwrap_or(self.committed);
        let in_the_middle = self.free_by_size.last().map_or(0, |&(size, _)| size);
        Stats {
            used: self.used,
            free: self.capacity - self.used,
            largest: in_the_middle.max(self.capacity - tail),
            high_water: self.high_water,
            blocks: self.live.len(),
            committed: self.committed,
            capacity: self.capacity,
        }
    }

    /// The free block for a request, as (offset, size, where the request starts in it).
    fn find(&self, size: u64, align: u64) -> Option<(u64, u64, u64)> {
        let fits = |&(block_size, block): &(u64, u64)| {
            let start = block.checked_next_multiple_of(align)?;
            (start.checked_add(size)? <= block + block_size).then_some((block, block_size, start))
        };
        let best = || self.free_by_size.range((size, 0)..);
        if align == MIN_ALIGN {
            return best().find_map(fits);
        }
        let fits_anywhere = size.checked_add(align - MIN_ALIGN)?;
        best()
            .take(ALIGNED_CANDIDATES)
            .find_map(fits)
            .or_else(|| self.free_by_size.range((fits_anywhere, 0)..).find_map(fits))
            .or_else(|| best().find_map(fits))
    }

    /// The start of the free block at the end of committed memory.
    fn free_tail(&self) -> Option<u64> {
        let (&offset, &size) = self.free.last_key_value()?;
        (offset + size == self.committed).then_some(offset)
    }

    /// The commit that is needed for a block to end at `end`.
    fn grow_to(&self, end: Option<u64>) -> AllocError {
        match end {
            Some(end) if end <= self.capacity => AllocError::Commit {
                to: end.checked_next_multiple_of(self.granule).map_or(self.capacity, |to| to.min(self.capacity)),
            },
            _ => AllocError::Exhausted,
        }
    }

    fn take(&mut self, offset: u64, size: u64) {
        self.live.insert(offset, size);
        self.used += size;
        self.high_water = self.high_water.max(self.used);
    }

    /// Adds free space and merges it with its free neighbours.
    fn insert_free(&mut self, mut offset: u64, mut size: u64) {
        if size == 0 {
            return;
        }
        if let Some((&before, &before_size)) = self.free.range(..offset).next_back()
            && before + before_size == offset
        {
            self.remove_free(before, before_size);
            offset = before;
            size += before_size;
        }
        if let Some(&after_size) = self.free.get(&(offset + size)) {
            self.remove_free(offset + size, after_size);
            size += after_size;
        }
        self.free.insert(offset, size);
        self.free_by_size.insert((size, offset));
    }

    fn remove_free(&mut self, offset: u64, size: u64) {
        self.free.remove(&offset);
        self.free_by_size.remove(&(size, offset));
    }
}

fn round_up(size: u64) -> Option<u64> {
    size.checked_next_multiple_of(MIN_ALIGN)
}

#[cfg(test)]
#[path = "allocator_tests.rs"]
mod tests;
