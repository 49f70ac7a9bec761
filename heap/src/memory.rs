//! Host memory for the symmetric heap: a memory file that same-host peers can map too.
//!
//! The file has its full size from the start and is sealed, so that no process can take memory away from processes that
//! mapped it. It costs nothing until it is committed. The whole address range is reserved at once, so growing never
//! moves a block.

use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, FcntlArg, SealFlag, fallocate, fcntl};
use nix::sys::memfd::MFdFlags;
use nix::sys::stat::fstat;

use crate::mapping::{Access, MapError, Mapping, memory_file};

/// Seals that a heap's file has, and that a peer requires before it maps one.
pub(crate) const SEALS: SealFlag = SealFlag::F_SEAL_SHRINK.union(SealFlag::F_SEAL_GROW).union(SealFlag::F_SEAL_SEAL);

pub use symrail_core::Segment;

/// The memory behind a heap's offsets.
#[derive(Debug)]
pub(crate) enum Memory {
    /// A memory file, which can grow.
    Host(HostMemory),
    /// Foreign memory, which this process may not be able to touch.
    Foreign([Segment; 1]),
}

impl Memory {
    /// # Safety
    /// As for [`Segment::new`].
    pub unsafe fn over(base: NonNull<u8>, bytes: u64) -> Self {
        // SAFETY: the caller's promise.
        Memory::Foreign([unsafe { Segment::new(0, 0, base.as_ptr(), bytes) }])
    }

    pub fn commit(&mut self, to: u64) -> Result<Option<Segment>, MapError> {
        match self {
            Memory::Host(memory) => memory.commit(to),
            Memory::Foreign([all]) if to <= all.bytes() => Ok(None),
            Memory::Foreign(_) => Err(MapError { call: "commit", errno: Errno::EINVAL }),
        }
    }

    pub fn commit_on_demand(&mut self, to: u64) -> Result<Option<Segment>, MapError> {
        match self {
            Memory::Host(memory) => memory.commit_on_demand(to),
            Memory::Foreign(_) => self.commit(to),
        }
    }

    pub fn take(&self, from: u64, to: u64) -> Result<(), MapError> {
        match self {
            Memory::Host(memory) => memory.take(from, to),
            Memory::Foreign(_) => Ok(()),
        }
    }

    pub fn zero(&mut self, offset: u64, len: u64) {
        if let Memory::Host(memory) = self {
            memory.zero(offset, len);
        }
    }

    pub fn copy(&mut self, from: u64, to: u64, len: u64) {
        if let Memory::Host(memory) = self {
            memory.copy(from, to, len);
        }
    }

    pub fn base(&self) -> NonNull<u8> {
        match self {
            Memory::Host(memory) => memory.base(),
            // The address of `over` is not null.
            Memory::Foreign([all]) => NonNull::new(all.base()).unwrap_or(NonNull::dangling()),
        }
    }

    pub fn capacity(&self) -> u64 {
        match self {
            Memory::Host(memory) => memory.capacity(),
            Memory::Foreign([all]) => all.bytes(),
        }
    }

    pub fn segments(&self) -> &[Segment] {
        match self {
            Memory::Host(memory) => memory.segments(),
            Memory::Foreign(all) => all,
        }
    }
}

/// Bytes that are allocated between two checks of free memory.
const PIECE: u64 = 64 << 20;

/// The memory file of one PE's heap.
#[derive(Debug)]
pub struct HostMemory {
    file: OwnedFd,
    mapping: Mapping,
    committed: u64,
    segments: Vec<Segment>,
    device: u64,
    inode: u64,
    huge_pages: bool,
}

impl HostMemory {
    /// Reserves `capacity` bytes, none of which are accessible yet.
    ///
    /// # Errors
    /// The system's error.
    pub fn reserve(capacity: u64) -> Result<Self, MapError> {
        let at = |call| move |errno| MapError { call, errno };
        let len = usize::try_from(capacity).map_err(|_| MapError { call: "mmap", errno: Errno::ENOMEM })?;
        let file = memory_file("symrail-heap", MFdFlags::MFD_ALLOW_SEALING, capacity)?;
        fcntl(&file, FcntlArg::F_ADD_SEALS(SEALS)).map_err(at("fcntl(F_ADD_SEALS)"))?;
        let status = fstat(&file).map_err(at("fstat"))?;
        let mapping = Mapping::of_file(file.as_fd(), len, Access::Closed)?;
        Ok(HostMemory {
            file,
            mapping,
            committed: 0,
            segments: Vec::new(),
            device: status.st_dev,
            inode: status.st_ino,
            huge_pages: huge_pages_allowed(),
        })
    }

    /// Commits `0..to`, in one new segment. `Ok(None)` when it was committed already.
    ///
    /// The pages are allocated now: a machine without memory then reports an error here, instead of a signal at a later
    /// store. With small pages that costs 24 ms for 64 MiB (against 30 ms at the first touch), with huge pages 3 ms in
    /// all.
    ///
    /// # Errors
    /// The error of the kernel; `ENOMEM` when the request exceeds the available memory; `EINVAL` beyond the capacity or
    /// not at a multiple of [`MAPPING_ALIGN`](crate::mapping::MAPPING_ALIGN). On an error nothing is committed.
    pub fn commit(&mut self, to: u64) -> Result<Option<Segment>, MapError> {
        let from = self.committed;
        if to > from && to <= self.capacity() {
            self.take_all_or_nothing(from, to, available)?;
        }
        self.commit_on_demand(to)
    }

    /// As [`HostMemory::commit`], but each page is allocated on its first access.
    ///
    /// # Errors
    /// As for [`HostMemory::commit`], but a lack of memory is not detected.
    pub fn commit_on_demand(&mut self, to: u64) -> Result<Option<Segment>, MapError> {
        let from = self.committed;
        if to <= from {
            return Ok(None);
        }
        if to > self.capacity() {
            return Err(MapError { call: "commit", errno: Errno::EINVAL });
        }
        // Both are at most the capacity, which fits usize and i64.
        self.mapping.open(from as usize, to as usize)?;
        let id = self.segments.len() as u32;
        // SAFETY: `from` is inside of the mapping, which stays as long as the heap, and nothing refers into it.
        let segment = unsafe { Segment::new(id, from, self.mapping.base().as_ptr().add(from as usize), to - from) };
        self.segments.push(segment);
        self.committed = to;
        Ok(Some(segment))
    }

    /// Allocates the pages of `from..to`.
    ///
    /// # Errors
    /// The error of the kernel; `ENOMEM` when the request exceeds the available memory.
    pub fn take(&self, from: u64, to: u64) -> Result<(), MapError> {
        self.take_while(from, to, available)
    }

    /// Allocates pages that hold no data yet. On an error it frees them, for processes that need less.
    fn take_all_or_nothing(&self, from: u64, to: u64, available: impl Fn() -> Option<u64>) -> Result<(), MapError> {
        self.take_while(from, to, available).inspect_err(|_| {
            let hole = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
            let _ = fallocate(&self.file, hole, from as i64, (to - from) as i64);
        })
    }

    /// Allocates pages piece by piece, as long as there is memory for the rest: the other PEs of this host may be
    /// allocating theirs.
    fn take_while(&self, from: u64, to: u64, available: impl Fn() -> Option<u64>) -> Result<(), MapError> {
        let mut at = from;
        while at < to {
            enough(to - at, available()).map_err(|errno| MapError { call: "commit", errno })?;
            let end = to.min(at + PIECE);
            self.take_piece(at, end)?;
            at = end;
        }
        Ok(())
    }

    fn take_piece(&self, from: u64, to: u64) -> Result<(), MapError> {
        let (start, end) = (from as usize, to as usize);
        // Only page faults allocate huge pages; fallocate allocates small ones even where huge ones are allowed.
        if self.huge_pages && self.mapping.open(start, end).and_then(|()| self.mapping.populate(start, end)).is_ok() {
            return Ok(());
        }
        fallocate(&self.file, FallocateFlags::empty(), from as i64, (to - from) as i64)
            .map_err(|errno| MapError { call: "fallocate", errno })
    }

    /// Sets `len` bytes at `offset` to zero. It ignores a range that is not committed.
    pub fn zero(&mut self, offset: u64, len: u64) {
        if offset.checked_add(len).is_some_and(|end| end <= self.committed) {
            // SAFETY: the range is committed, so it is mapped for stores; nothing holds a reference into it.
            unsafe { self.mapping.base().add(offset as usize).write_bytes(0, len as usize) };
        }
    }

    /// Copies `len` bytes from `from` to `to`. It ignores ranges that overlap or are not committed.
    pub fn copy(&mut self, from: u64, to: u64, len: u64) {
        let inside = |start: u64| start.checked_add(len).is_some_and(|end| end <= self.committed);
        if inside(from) && inside(to) && from.abs_diff(to) >= len {
            let base = self.mapping.base().as_ptr();
            // SAFETY: both ranges are committed, so mapped, and they do not overlap.
            unsafe { crate::copy::copy(base.add(to as usize), base.add(from as usize), len as usize) };
        }
    }

    /// The first byte of the whole range.
    #[must_use]
    pub fn base(&self) -> NonNull<u8> {
        self.mapping.base()
    }

    /// The reserved length in bytes.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.mapping.len() as u64
    }

    /// Committed memory, in the order of growth.
    #[must_use]
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// The file's descriptor in this process.
    #[must_use]
    pub fn fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// The file's device and inode numbers, which identify it on this host.
    #[must_use]
    pub fn identity(&self) -> (u64, u64) {
        (self.device, self.inode)
    }
}

/// Whether the administrator allows huge pages for shared memory that requests them.
#[must_use]
pub fn huge_pages_allowed() -> bool {
    std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
        .is_ok_and(|choice| ["[always]", "[within_size]", "[advise]", "[force]"].iter().any(|yes| choice.contains(yes)))
}

/// Refuses to allocate more memory than there is. An attempt would not fail: the kernel would kill some process,
/// perhaps this one.
fn enough(wanted: u64, available: Option<u64>) -> Result<(), Errno> {
    if available.is_some_and(|available| wanted > available) { Err(Errno::ENOMEM) } else { Ok(()) }
}

/// The memory that the kernel can provide without the out-of-memory killer, in bytes.
fn available() -> Option<u64> {
    let memory = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = memory.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use nix::unistd::ftruncate;

    use super::*;

    #[test]
    fn more_memory_than_available_is_refused() {
        assert!(available().unwrap() > 1 << 20);
        assert_eq!(enough(100, Some(100)), Ok(()));
        assert_eq!(enough(101, Some(100)), Err(Errno::ENOMEM));
        assert_eq!(enough(101, None), Ok(()), "where the kernel does not say, it has to be tried");
    }

    #[test]
    fn memory_that_others_take_meanwhile_is_not_counted_on() {
        let memory = HostMemory::reserve(2 * PIECE).unwrap();
        let left = std::cell::Cell::new(2 * PIECE);
        let error = memory.take_all_or_nothing(0, 2 * PIECE, || Some(left.replace(PIECE - 1)));
        assert_eq!(error, Err(MapError { call: "commit", errno: Errno::ENOMEM }));
        assert_eq!(fstat(&memory.file).unwrap().st_blocks, 0, "all is given back");
    }

    #[test]
    fn commits_inside_of_the_capacity_and_once() {
        let mut memory = HostMemory::reserve(4 << 20).unwrap();
        assert_eq!(
            memory.commit(2 << 20).unwrap().map(|segment| (segment.offset(), segment.bytes())),
            Some((0, 2 << 20))
        );
        assert_eq!(memory.commit(2 << 20), Ok(None));
        assert_eq!(memory.commit(6 << 20).map_err(|error| error.errno), Err(Errno::EINVAL));
        assert_eq!(memory.commit((2 << 20) + 64).map_err(|error| error.errno), Err(Errno::EINVAL));
        assert_eq!(memory.segments().len(), 1);
    }

    #[test]
    fn no_process_can_change_the_size_of_the_file() {
        let memory = HostMemory::reserve(2 << 20).unwrap();
        for size in [0, 1 << 20, 4 << 20] {
            assert_eq!(ftruncate(&memory.file, size), Err(Errno::EPERM));
        }
    }

    #[test]
    fn memory_on_demand_is_taken_page_by_page() {
        let mut memory = HostMemory::reserve(8 << 20).unwrap();
        let taken = |memory: &HostMemory| fstat(&memory.file).unwrap().st_blocks * 512;
        let segment = memory.commit_on_demand(4 << 20).unwrap().unwrap();
        assert_eq!((segment.offset(), segment.bytes(), taken(&memory)), (0, 4 << 20, 0));
        // SAFETY: the byte is in the segment.
        unsafe { segment.base().add(3 << 20).write(1) };
        assert!((1..=2 << 20).contains(&taken(&memory)));
        memory.take(0, 2 << 20).unwrap();
        assert!((2 << 20..4 << 20).contains(&taken(&memory)));
    }

    #[test]
    fn memory_is_there_when_it_is_committed() {
        let mut memory = HostMemory::reserve(4 << 20).unwrap();
        let taken = |memory: &HostMemory| fstat(&memory.file).unwrap().st_blocks * 512;
        assert_eq!(taken(&memory), 0);
        memory.commit(2 << 20).unwrap();
        assert_eq!(taken(&memory), 2 << 20);
    }
}
