//! Memory files, and shared mappings of them. Only this module maps and unmaps them.

use std::num::NonZeroUsize;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use nix::errno::Errno;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap, mmap_anonymous, mprotect, munmap};
use nix::sys::resource::{Resource, getrlimit};
use nix::unistd::ftruncate;

/// The unit of mappings: the size of a huge page, so that the kernel can use them.
pub const MAPPING_ALIGN: usize = 2 << 20;

/// The alignment of mappings, and so the largest alignment of an allocation. It costs only addresses.
pub const ADDRESS_ALIGN: usize = 64 << 20;

/// The smallest page size of supported machines, in bytes.
const SMALLEST_PAGE: usize = 4096;

/// Why a mapping could not be made or changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MapError {
    /// The system call.
    pub call: &'static str,
    /// The error.
    pub errno: Errno,
}

/// Creates a memory file of `len` bytes.
///
/// # Errors
/// The system's error; `EFBIG` beyond this process's limit on the size of files.
pub fn memory_file(name: &str, flags: MFdFlags, len: u64) -> Result<OwnedFd, MapError> {
    let at = |call| move |errno| MapError { call, errno };
    may_have_size(len).map_err(at("ftruncate"))?;
    let size = i64::try_from(len).map_err(|_| at("ftruncate")(Errno::EFBIG))?;
    let file = memfd_create(name, MFdFlags::MFD_CLOEXEC | flags).map_err(at("memfd_create"))?;
    ftruncate(&file, size).map_err(at("ftruncate"))?;
    Ok(file)
}

/// Refuses files that are larger than this process may make (`ulimit -f`), memory files included: the system would send
/// a signal that ends the process.
///
/// # Errors
/// `EFBIG`.
pub fn may_have_size(len: u64) -> Result<(), Errno> {
    match getrlimit(Resource::RLIMIT_FSIZE) {
        Ok((limit, _)) if len > limit => Err(Errno::EFBIG),
        _ => Ok(()),
    }
}

/// Whether the pages of a new mapping are accessible.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// They are not accessible before [`Mapping::open`].
    Closed,
    /// They are accessible for loads and stores.
    Open,
}

/// A shared mapping, unmapped when dropped. It needs no open file.
///
/// Other processes change this memory at any time. It is accessed by raw pointers, never by references.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    len: NonZeroUsize,
}

// SAFETY: a mapping belongs to the process, not to a thread; the pointer gives no access without unsafe code.
unsafe impl Send for Mapping {}
// SAFETY: as above; `&Mapping` changes page protections at most, which the kernel serialises.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `len` bytes of `file`, shared, at a multiple of [`ADDRESS_ALIGN`].
    ///
    /// No swap space is reserved. The mapping must not extend beyond the file's end.
    ///
    /// # Errors
    /// The error of the kernel; `EINVAL` for a length that is 0 or not a multiple of [`MAPPING_ALIGN`].
    pub fn of_file(file: BorrowedFd<'_>, len: usize, access: Access) -> Result<Self, MapError> {
        let fail = |errno| MapError { call: "mmap", errno };
        let len =
            NonZeroUsize::new(len).filter(|len| len.get().is_multiple_of(MAPPING_ALIGN)).ok_or(fail(Errno::EINVAL))?;
        // The kernel chooses addresses at page granularity, so reserve more than needed, and map over the aligned part.
        let reserved_len = len.checked_add(ADDRESS_ALIGN - SMALLEST_PAGE).ok_or(fail(Errno::ENOMEM))?;
        let flags = MapFlags::MAP_NORESERVE;
        // SAFETY: a new private mapping at an address of the kernel's choice affects nothing that exists.
        let reserved = unsafe {
            mmap_anonymous(None, reserved_len, ProtFlags::PROT_NONE, MapFlags::MAP_PRIVATE | flags).map_err(fail)?
        };
        let start = reserved.addr().get();
        let end = start + reserved_len.get();
        let aligned = start.next_multiple_of(ADDRESS_ALIGN);
        let protection = match access {
            Access::Closed => ProtFlags::PROT_NONE,
            Access::Open => ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
        };
        let flags = flags | MapFlags::MAP_SHARED | MapFlags::MAP_FIXED;
        // SAFETY: `aligned..aligned + len` is in the range reserved above, which is ours and unused.
        let mapped = unsafe { mmap(NonZeroUsize::new(aligned), len, protection, flags, file, 0) };
        if let Err(errno) = mapped {
            // SAFETY: the reservation is ours and nothing points into it.
            let _ = unsafe { munmap(reserved, reserved_len.get()) };
            return Err(fail(errno));
        }
        let mapped_end = aligned + len.get();
        for (from, to) in [(start, aligned), (mapped_end, end)] {
            if from < to {
                // SAFETY: these are the unused parts of the reservation before and after the file. If this fails, they
                // stay reserved, which is harmless.
                let _ = unsafe { munmap(reserved.map_addr(|_| NonZeroUsize::MIN.saturating_add(from - 1)), to - from) };
            }
        }
        let base = reserved.cast::<u8>().map_addr(|_| NonZeroUsize::MIN.saturating_add(aligned - 1));
        let mapping = Mapping { base, len };
        mapping.prefer_huge_pages();
        Ok(mapping)
    }

    /// Requests huge pages. The administrator decides whether shared memory gets any
    /// (`/sys/kernel/mm/transparent_hugepage/shmem_enabled`), so a refusal is no error.
    fn prefer_huge_pages(&self) {
        // SAFETY: advice about a whole mapping that is ours; it changes no contents.
        let _ = unsafe { madvise(self.base.cast(), self.len.get(), MmapAdvise::MADV_HUGEPAGE) };
    }

    /// Makes bytes `from..to` accessible for loads and stores.
    ///
    /// # Errors
    /// `EINVAL` for a range that is not inside or not at multiples of [`MAPPING_ALIGN`], otherwise the error of the
    /// kernel.
    pub fn open(&self, from: usize, to: usize) -> Result<(), MapError> {
        let fail = |errno| MapError { call: "mprotect", errno };
        self.check(from, to).map_err(fail)?;
        // SAFETY: the range is inside of this mapping, and granting access invalidates no pointer.
        unsafe { mprotect(self.base.add(from).cast(), to - from, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE) }
            .map_err(fail)
    }

    /// Touches every page of bytes `from..to`, so that it is allocated.
    ///
    /// # Errors
    /// As for [`Mapping::open`]; `EINVAL` also from a kernel before 5.14.
    pub fn populate(&self, from: usize, to: usize) -> Result<(), MapError> {
        let fail = |errno| MapError { call: "madvise", errno };
        self.check(from, to).map_err(fail)?;
        // SAFETY: the range is inside of this mapping; contents do not change.
        unsafe { madvise(self.base.add(from).cast(), to - from, MmapAdvise::MADV_POPULATE_WRITE) }.map_err(fail)
    }

    fn check(&self, from: usize, to: usize) -> Result<(), Errno> {
        let inside = from <= to && to <= self.len.get();
        if inside && (from | to).is_multiple_of(MAPPING_ALIGN) { Ok(()) } else { Err(Errno::EINVAL) }
    }

    /// The first byte.
    #[must_use]
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// The length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len.get()
    }

    /// Always `false`: an empty mapping cannot be created.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `of_file` and belongs to this value alone.
        let _ = unsafe { munmap(self.base.cast(), self.len.get()) };
    }
}
