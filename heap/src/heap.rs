//! One PE's symmetric heap: the allocator and the memory behind it.

use std::collections::BTreeSet;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use nix::errno::Errno;
use symrail_transport::env::{HeapKind, Settings};
use symrail_transport::{Error, Pe};

use crate::agreement::{AllocCall, AllocOp};
use crate::allocator::{AllocError, Allocator, MIN_ALIGN, Stats};
use crate::error::{HeapError, Result};
use crate::handle::{HeapHandle, MemoryKind};
use crate::host::HostIdentity;
use crate::mapping::{ADDRESS_ALIGN, MAPPING_ALIGN, MapError};
use crate::memory::{HostMemory, Memory, Segment};

/// The least growth of the heap, in bytes. Registering memory with a NIC costs time and keys per segment, and pins
/// pages per byte. This size means few segments for large heaps and little memory for small programs.
pub const GROWTH: u64 = 64 << 20;

/// The least alignment that a caller may request: that of `shmem_align`.
const ALIGN_LEAST: u64 = size_of::<*const ()>() as u64;

/// The remedy when the system refuses memory to a heap that grows.
const LESS: &str = "allocate less, or run fewer PEs on this host";

/// The number of heaps of this process.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// A block of the heap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allocation {
    /// Its symmetric offset: the same on every PE.
    pub offset: u64,
    /// Its first byte in this process.
    pub ptr: NonNull<u8>,
    /// Its size in bytes, rounded up to [`MIN_ALIGN`].
    pub size: u64,
    /// The segment by which the heap has grown for it. The caller must register it and exchange its keys before a peer
    /// accesses the block.
    pub grown: Option<Segment>,
}

/// One PE's symmetric heap.
///
/// All calls that change it are collective by convention: each PE makes the same calls in the same order, and gets the
/// same offsets. Nothing here communicates; [`SymmetricHeap::describe`] returns the data that PEs exchange to check it.
#[derive(Debug)]
pub struct SymmetricHeap {
    me: Pe,
    memory: Memory,
    allocator: Allocator,
    handle: HeapHandle,
    calls: u64,
    grows_on_demand: bool,
    /// Offsets of blocks that only their owner frees.
    kept: BTreeSet<u64>,
    /// The size that the user has chosen, in bytes.
    asked: u64,
}

impl SymmetricHeap {
    /// Reserves PE `me`'s heap and commits its first segment.
    ///
    /// # Errors
    /// [`HeapError::Memory`] when the system refuses, and [`HeapError::Transport`] for settings that cannot work here.
    pub fn new(me: Pe, settings: &Settings) -> Result<Self> {
        Self::with_growth(me, settings, GROWTH)
    }

    /// As [`SymmetricHeap::new`], growing by multiples of `growth` bytes (rounded up to [`MAPPING_ALIGN`]).
    ///
    /// # Errors
    /// As for [`SymmetricHeap::new`].
    pub fn with_growth(me: Pe, settings: &Settings, growth: u64) -> Result<Self> {
        if settings.heap_kind != HeapKind::Host {
            return Err(HeapError::Transport(Error::Unsupported {
                what: format!("SYMRAIL_HEAP_KIND={}", format!("{:?}", settings.heap_kind).to_lowercase()),
                by: "this build".into(),
                remedy: "use SYMRAIL_HEAP_KIND=host".into(),
            }));
        }
        let unit = MAPPING_ALIGN as u64;
        let bad_size = || Error::Setting {
            name: "SYMRAIL_HEAP_SIZE".into(),
            value: asked(settings).to_string(),
            accepted: "a number of bytes from 64K to 64T".into(),
        };
        let capacity =
            (settings.heap_size as u64).checked_next_multiple_of(unit).filter(|size| (1..=1 << 46).contains(size));
        let capacity = capacity.ok_or_else(bad_size)?;
        let granule = growth.max(1).checked_next_multiple_of(unit).map_or(capacity, |granule| granule.min(capacity));
        let host = HostIdentity::of_this_process(settings.fake_host.as_deref())?;
        let memory = HostMemory::reserve(capacity)
            .map_err(|error| refused(me, error, capacity, "lower SYMRAIL_HEAP_SIZE on all PEs"))?;
        let (device, inode) = memory.identity();
        let handle = HeapHandle {
            host,
            pid: std::process::id(),
            // A file descriptor is not negative.
            fd: memory.fd().unsigned_abs(),
            device,
            inode,
            capacity,
            granule,
            segment: 0,
            generation: GENERATION.fetch_add(1, Ordering::Relaxed),
            kind: MemoryKind::Host,
            private: settings.disable_p2p,
        };
        let (memory, allocator) = (Memory::Host(memory), Allocator::new(capacity, granule));
        let (asked, kept) = (asked(settings), BTreeSet::new());
        let mut heap = SymmetricHeap { me, memory, allocator, handle, calls: 0, grows_on_demand: false, kept, asked };
        heap.commit(granule)?;
        Ok(heap)
    }

    /// A heap over existing memory that the CPU may not be able to touch: `bytes` at `base`, in one segment. The heap
    /// never accesses it. So blocks of [`SymmetricHeap::calloc`] are not zeroed, and blocks that
    /// [`SymmetricHeap::realloc`] moves have undefined contents.
    ///
    /// # Safety
    /// As for [`Segment::new`].
    ///
    /// # Errors
    /// As for [`SymmetricHeap::new`].
    pub unsafe fn over(me: Pe, settings: &Settings, base: NonNull<u8>, bytes: u64) -> Result<Self> {
        let handle = HeapHandle {
            host: HostIdentity::of_this_process(settings.fake_host.as_deref())?,
            pid: std::process::id(),
            fd: 0,
            device: 0,
            inode: 0,
            capacity: bytes,
            granule: bytes,
            segment: 0,
            generation: GENERATION.fetch_add(1, Ordering::Relaxed),
            kind: settings.heap_kind.into(),
            private: true,
        };
        let mut allocator = Allocator::new(bytes, bytes);
        allocator.commit(bytes);
        // SAFETY: the caller's promise.
        let memory = unsafe { Memory::over(base, bytes) };
        let (asked, kept) = (asked(settings), BTreeSet::new());
        Ok(SymmetricHeap { me, memory, allocator, handle, calls: 0, grows_on_demand: false, kept, asked })
    }

    /// Allocates a block of `size` bytes with undefined contents. `None` for a size of 0.
    ///
    /// # Errors
    /// [`HeapError::Exhausted`], and [`HeapError::Memory`] when the heap has to grow and the system refuses.
    pub fn alloc(&mut self, size: u64) -> Result<Option<Allocation>> {
        self.take(size, MIN_ALIGN)
    }

    /// Allocates a block of `count` times `size` bytes and sets it to zero. `None` when either is 0.
    ///
    /// # Errors
    /// As for [`SymmetricHeap::alloc`].
    pub fn calloc(&mut self, count: u64, size: u64) -> Result<Option<Allocation>> {
        // A product that overflows exceeds any heap.
        let block = self.take(count.saturating_mul(size), MIN_ALIGN)?;
        if let Some(block) = block {
            self.memory.zero(block.offset, block.size);
        }
        Ok(block)
    }

    /// Allocates a block of `size` bytes whose address and offset are multiples of `align`. `None` for a size of 0.
    ///
    /// # Errors
    /// [`HeapError::Alignment`], and as for [`SymmetricHeap::alloc`].
    pub fn align(&mut self, align: u64, size: u64) -> Result<Option<Allocation>> {
        // The memory itself is aligned no better.
        if !align.is_power_of_two() || !(ALIGN_LEAST..=ADDRESS_ALIGN as u64).contains(&align) {
            return Err(self.alignment(align));
        }
        self.take(size, align)
    }

    /// As [`SymmetricHeap::align`], but pages by which the heap grows for the block are allocated on first access. A
    /// machine without memory is only detected then.
    ///
    /// # Errors
    /// As for [`SymmetricHeap::align`].
    pub fn align_on_demand(&mut self, align: u64, size: u64) -> Result<Option<Allocation>> {
        self.grows_on_demand = true;
        let block = self.align(align, size);
        self.grows_on_demand = false;
        if let Ok(Some(Allocation { offset, size, grown: Some(segment), .. })) = block {
            // Whole units of the new pages that are not the block's.
            let unit = MAPPING_ALIGN as u64;
            let end = segment.end();
            let (before, behind) = (offset / unit * unit, (offset + size).next_multiple_of(unit));
            for (from, to) in [(segment.offset(), before), (behind, end)] {
                if from < to {
                    let refused = |error| refused(self.me, error, to - from, LESS);
                    self.memory.take(from, to).map_err(refused)?;
                }
            }
        }
        block
    }

    /// Changes the size of the block at `ptr` to `size` bytes, moving it and its contents if necessary. A null `ptr`
    /// allocates a block; a size of 0 frees the block and returns `None`.
    ///
    /// The contents are this PE's own. The caller ensures that no peer is still writing.
    ///
    /// # Errors
    /// [`HeapError::NotAllocated`], [`HeapError::Kept`], and as for [`SymmetricHeap::alloc`]. On an error the block is
    /// unchanged.
    pub fn realloc(&mut self, ptr: *mut u8, size: u64) -> Result<Option<Allocation>> {
        if ptr.is_null() {
            return self.alloc(size);
        }
        if size == 0 {
            return self.free(ptr).map(|()| None);
        }
        let offset = self.users_block_at(ptr)?;
        let (in_place, grown) = self.growing(size, MIN_ALIGN, ptr, |allocator| allocator.resize(offset, size))?;
        if in_place {
            self.calls += 1;
            return Ok(Some(self.allocation(offset, grown)));
        }
        let old = self.allocator.size_of(offset).unwrap_or(0);
        let Some(block) = self.take(size, MIN_ALIGN)? else { return Ok(None) };
        self.memory.copy(offset, block.offset, old.min(block.size));
        // The block is live: its size was just looked up.
        let _ = self.allocator.free(offset);
        Ok(Some(Allocation { grown: block.grown.or(grown), ..block }))
    }

    /// Reserves the block at `ptr` for its owner: [`SymmetricHeap::free`] and [`SymmetricHeap::realloc`] refuse it from
    /// now on.
    ///
    /// # Errors
    /// [`HeapError::NotAllocated`].
    pub fn keep(&mut self, ptr: *mut u8) -> Result<()> {
        let offset = self.block_at(ptr)?;
        self.kept.insert(offset);
        Ok(())
    }

    /// Frees a block that was [kept](SymmetricHeap::keep), on behalf of its owner.
    ///
    /// # Errors
    /// [`HeapError::NotAllocated`].
    pub fn free_kept(&mut self, ptr: *mut u8) -> Result<()> {
        let offset = self.block_at(ptr)?;
        self.kept.remove(&offset);
        self.free(ptr)
    }

    /// Frees the block at `ptr`. A null `ptr` has no effect.
    ///
    /// # Errors
    /// [`HeapError::NotAllocated`], [`HeapError::Kept`].
    pub fn free(&mut self, ptr: *mut u8) -> Result<()> {
        if ptr.is_null() {
            return Ok(());
        }
        let offset = self.users_block_at(ptr)?;
        self.allocator.free(offset).map_err(|_| self.not_allocated(ptr))?;
        self.calls += 1;
        Ok(())
    }

    /// The call that this PE is about to make, for comparison with the other PEs' ([`AllocCall::check`]). `ptr` is the
    /// block of a realloc or free, else null. A pointer that is not in the heap has offset `u64::MAX`.
    #[must_use]
    pub fn describe(&self, op: AllocOp, size: u64, align: u64, ptr: *const u8) -> AllocCall {
        let offset = if ptr.is_null() { 0 } else { self.offset_of(ptr, 0).unwrap_or(u64::MAX) };
        AllocCall { sequence: self.calls, op, size, align, offset }
    }

    /// The symmetric offset of `len` bytes at `ptr`; `None` unless all of them are in committed memory of the heap.
    #[must_use]
    pub fn offset_of(&self, ptr: *const u8, len: u64) -> Option<u64> {
        let offset = ptr.addr().checked_sub(self.memory.base().addr().get())? as u64;
        (offset.checked_add(len)? <= self.allocator.stats().committed).then_some(offset)
    }

    /// The address of `len` bytes at symmetric offset `offset` in this process; `None` unless all of them are
    /// committed.
    #[must_use]
    pub fn ptr_of(&self, offset: u64, len: u64) -> Option<NonNull<u8>> {
        (offset.checked_add(len)? <= self.allocator.stats().committed).then(|| self.at(offset))
    }

    /// The size of the block at `ptr`, rounded up to [`MIN_ALIGN`]; `None` if no block starts there.
    #[must_use]
    pub fn size_of(&self, ptr: *const u8) -> Option<u64> {
        self.allocator.size_of(self.offset_of(ptr, 0)?)
    }

    /// The committed ranges, in the order of growth. The caller registers them.
    #[must_use]
    pub fn segments(&self) -> &[Segment] {
        self.memory.segments()
    }

    /// The initial segment.
    #[must_use]
    pub fn first_segment(&self) -> Segment {
        // Every constructor commits one.
        self.memory.segments()[0]
    }

    /// The handle for the other PEs.
    #[must_use]
    pub fn handle(&self) -> &HeapHandle {
        &self.handle
    }

    /// The first byte of the heap in this process. The reserved range is [`SymmetricHeap::capacity`] bytes long.
    #[must_use]
    pub fn base(&self) -> NonNull<u8> {
        self.memory.base()
    }

    /// `SYMRAIL_HEAP_SIZE` in bytes, rounded up to [`MAPPING_ALIGN`].
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.memory.capacity()
    }

    /// The usage of the heap.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.allocator.stats()
    }

    fn take(&mut self, size: u64, align: u64) -> Result<Option<Allocation>> {
        let none = std::ptr::null_mut();
        let (offset, grown) = self.growing(size, align, none, |allocator| allocator.alloc(size, align))?;
        if offset.is_some() {
            self.calls += 1;
        }
        Ok(offset.map(|offset| self.allocation(offset, grown)))
    }

    /// Makes an allocation, and once more after committing the memory that the allocator asks for.
    fn growing<T>(
        &mut self,
        size: u64,
        align: u64,
        ptr: *mut u8,
        ask: impl Fn(&mut Allocator) -> Result<T, AllocError>,
    ) -> Result<(T, Option<Segment>)> {
        let mut grown = None;
        loop {
            match ask(&mut self.allocator) {
                Ok(answer) => return Ok((answer, grown)),
                Err(AllocError::Commit { to }) if grown.is_none() => grown = self.commit(to)?,
                // A second request for memory is impossible, since the first was for enough.
                Err(AllocError::Commit { .. } | AllocError::Exhausted) => return Err(self.exhausted(size, align)),
                Err(AllocError::Alignment) => return Err(self.alignment(align)),
                Err(AllocError::NotAllocated) => return Err(self.not_allocated(ptr)),
            }
        }
    }

    fn commit(&mut self, to: u64) -> Result<Option<Segment>> {
        let bytes = to.saturating_sub(self.allocator.stats().committed);
        let grown = if self.grows_on_demand { self.memory.commit_on_demand(to) } else { self.memory.commit(to) };
        let grown = grown.map_err(|error| refused(self.me, error, bytes, LESS))?;
        self.allocator.commit(to);
        if let Some(segment) = grown {
            tracing::debug!(pe = self.me, segment = segment.id(), bytes = segment.bytes(), committed = to, "heap grew");
        }
        Ok(grown)
    }

    fn allocation(&self, offset: u64, grown: Option<Segment>) -> Allocation {
        Allocation { offset, ptr: self.at(offset), size: self.allocator.size_of(offset).unwrap_or(0), grown }
    }

    /// The address of an offset inside of the heap.
    fn at(&self, offset: u64) -> NonNull<u8> {
        let base = self.memory.base();
        base.map_addr(|address| address.saturating_add(offset as usize))
    }

    fn block_at(&self, ptr: *mut u8) -> Result<u64> {
        let offset = self.offset_of(ptr, 0).filter(|&offset| self.allocator.size_of(offset).is_some());
        offset.ok_or_else(|| self.not_allocated(ptr))
    }

    fn users_block_at(&self, ptr: *mut u8) -> Result<u64> {
        let offset = self.block_at(ptr)?;
        if self.kept.contains(&offset) {
            return Err(HeapError::Kept { pe: self.me, address: ptr.addr() });
        }
        Ok(offset)
    }

    fn not_allocated(&self, ptr: *mut u8) -> HeapError {
        let base = self.memory.base().addr().get();
        HeapError::NotAllocated { pe: self.me, address: ptr.addr(), base, heap_size: self.capacity() }
    }

    fn exhausted(&self, requested: u64, align: u64) -> HeapError {
        let Stats { free, largest, capacity, .. } = self.allocator.stats();
        HeapError::Exhausted { pe: self.me, requested, align, free, largest, heap_size: capacity, asked: self.asked }
    }

    fn alignment(&self, align: u64) -> HeapError {
        HeapError::Alignment { pe: self.me, align, least: ALIGN_LEAST, most: ADDRESS_ALIGN as u64 }
    }
}

/// The size that the user has chosen, in bytes.
fn asked(settings: &Settings) -> u64 {
    settings.heap_size.saturating_sub(settings.heap_added) as u64
}

fn refused(pe: Pe, error: MapError, bytes: u64, remedy: &'static str) -> HeapError {
    let remedy = match error.errno {
        Errno::EFBIG => "lower SYMRAIL_HEAP_SIZE on all PEs, or raise the limit on the size of files (ulimit -f)",
        _ => remedy,
    };
    HeapError::Memory { pe, call: error.call, bytes, reason: error.errno.desc().into(), remedy }
}

#[cfg(test)]
#[path = "heap_tests.rs"]
mod tests;
