//! The program's static and global variables as symmetric memory.
//!
//! Every PE runs the same executable, so a variable has the same distance from the start of the executable's data on
//! every PE, whatever address the loader chose. Sharing allocates a block of the symmetric heap, copies the contents of
//! the data pages there, and maps the block over them. Pages that the program has not touched, and pages of zeros, are
//! not copied, and take no memory until they are used (`touched`), unless a NIC that pins memory has registered it.
//! From then on the variables *are* heap memory that also has its old address: peers of the host map it, rails have
//! registered it, and every AMO, wait and signal on it takes the same path as on the heap, so it is as coherent. Only
//! the translation of addresses handles it separately.
//!
//! The cost: the pages become shared memory. A process that the program forks shares its variables instead of having a
//! copy of them, as it shares the heap.

use std::ffi::{c_int, c_void};
use std::num::NonZeroUsize;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Mutex;

use nix::sys::mman::{MapFlags, ProtFlags, mmap};
use symrail_core::lock;
use symrail_heap::SymmetricHeap;

use crate::error::{Error, Result};
use crate::touched;

/// Writable pages of the executable, and their location in the heap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Pages {
    start: usize,
    len: usize,
    /// Bytes at the start that come from the executable's file, in whole pages. The bytes after them were zero at
    /// first.
    from_file: usize,
    /// Symmetric offset of the first byte.
    offset: u64,
}

/// The symmetric parts of the executable; none at first.
#[derive(Debug, Default)]
pub(crate) struct ProgramData(Vec<Pages>);

impl ProgramData {
    /// The symmetric offset of `len` bytes at `ptr`, if they are shared static data.
    #[inline]
    pub fn offset_of(&self, ptr: *const u8, len: usize) -> Option<u64> {
        self.0.iter().find_map(|pages| {
            let within = ptr.addr().wrapping_sub(pages.start);
            (within <= pages.len && len <= pages.len - within).then(|| pages.offset + within as u64)
        })
    }

    /// Whether nothing is shared.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Moves the executable's static data into blocks of the heap that starts at `base`. `take` allocates a block with
    /// an alignment and a length.
    ///
    /// # Safety
    /// As for [`Runtime::share_program_data`](crate::Runtime::share_program_data).
    ///
    /// # Errors
    /// Those of `take`, or the system refuses to map them.
    pub unsafe fn share(
        heap: &Mutex<SymmetricHeap>,
        base: usize,
        take: impl Fn(usize, usize) -> Result<*mut u8>,
    ) -> Result<ProgramData> {
        let mut shared = Vec::new();
        for mut pages in writable_pages() {
            let block = take(page_size(), pages.len)?;
            lock(heap).keep(block)?;
            pages.offset = (block.addr() - base) as u64;
            // SAFETY: the pages are whole and writable, and no thread writes them (the caller's promise); the block has
            // the same length.
            unsafe { move_pages(heap, pages, block) }?;
            shared.push(pages);
        }
        Ok(ProgramData(shared))
    }
}

/// Bytes of the executable's static data, in whole pages.
pub(crate) fn bytes() -> usize {
    writable_pages().iter().map(|pages| pages.len).sum()
}

/// Copies the pages to `block` and maps the block over them.
///
/// # Safety
/// The pages are mapped for reads and writes, and no thread writes them meanwhile. `block` is large enough for them,
/// and is at their offset in the heap.
unsafe fn move_pages(heap: &Mutex<SymmetricHeap>, pages: Pages, block: *mut u8) -> Result<()> {
    let fail = |reason: String| Error::System { what: "sharing the program's static data", reason };
    let fd = lock(heap).handle().fd;
    let len = NonZeroUsize::new(pages.len).ok_or_else(|| fail("no pages".into()))?;
    let file_offset = i64::try_from(pages.offset).map_err(|e| fail(e.to_string()))?;
    let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    // SAFETY: the heap keeps its file open as long as it lives. The new mapping replaces exactly the copied pages, and
    // no thread has written to them in between.
    let mapped = unsafe {
        let file = BorrowedFd::borrow_raw(fd.cast_signed());
        touched::clear(file, file_offset, block, pages.len);
        let (source, from_file, page) =
            (std::ptr::with_exposed_provenance::<u8>(pages.start), pages.from_file, page_size());
        touched::copy(source, block, from_file, page);
        let (zero_at_first, block) = (source.add(from_file), block.add(from_file));
        touched::copy_touched(zero_at_first, block, pages.len - from_file, page);
        let flags = MapFlags::MAP_SHARED | MapFlags::MAP_FIXED;
        mmap(NonZeroUsize::new(pages.start), len, protection, flags, file, file_offset)
    };
    mapped.map(drop).map_err(|errno| fail(format!("mmap of {} bytes: {}", pages.len, errno.desc())))
}

fn page_size() -> usize {
    // SAFETY: takes a number and accesses no memory of ours.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

/// The executable's writable segments in whole pages, without what the loader has made read-only again.
fn writable_pages() -> Vec<Pages> {
    let mut found = Vec::new();
    // SAFETY: the callback is called during this call only, and gets the vector's address as its own argument.
    unsafe { libc::dl_iterate_phdr(Some(executable), (&raw mut found).cast()) };
    found
}

/// Reads the first object that the loader lists, which is the executable, and stops.
unsafe extern "C" fn executable(info: *mut libc::dl_phdr_info, _size: usize, found: *mut c_void) -> c_int {
    let page = page_size();
    let Some(found) = NonNull::new(found.cast::<Vec<Pages>>()) else { return 1 };
    // SAFETY: the loader passes a valid object with `dlpi_phnum` headers; `found` is the vector of `writable_pages`,
    // which no other code uses meanwhile.
    let (base, headers, found) = unsafe {
        let info = &*info;
        let headers = std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum));
        (info.dlpi_addr as usize, headers, &mut *found.as_ptr())
    };
    let read_only = |h: &&libc::Elf64_Phdr| h.p_type == libc::PT_GNU_RELRO;
    let relro = headers.iter().find(read_only).map_or(0..0, |h| {
        let start = base + h.p_vaddr as usize;
        // The loader protects whole pages only.
        start / page * page..(start + h.p_memsz as usize) / page * page
    });
    for h in headers.iter().filter(|h| h.p_type == libc::PT_LOAD && h.p_flags & libc::PF_W != 0) {
        let mut start = (base + h.p_vaddr as usize) / page * page;
        let end = (base + h.p_vaddr as usize + h.p_memsz as usize).next_multiple_of(page);
        if relro.contains(&start) {
            start = relro.end;
        }
        let of_file = (base + h.p_vaddr as usize + h.p_filesz as usize).next_multiple_of(page).min(end);
        if start < end {
            found.push(Pages { start, len: end - start, from_file: of_file.saturating_sub(start), offset: 0 });
        }
    }
    1
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    static mut VARIABLE: u64 = 7;

    #[test]
    fn variables_are_in_the_pages_and_constants_are_not() {
        let pages = writable_pages();
        let data = ProgramData(pages.iter().map(|p| Pages { offset: 1 << 20, ..*p }).collect());
        let variable = (&raw const VARIABLE).cast::<u8>();
        let offset = data.offset_of(variable, 8).unwrap();
        assert_eq!(offset - (1 << 20), (variable.addr() - pages[0].start) as u64);
        assert!(data.offset_of(c"constant".as_ptr().cast(), 1).is_none());
        assert!(data.offset_of(variable, pages[0].len).is_none());
        assert!(data.offset_of(std::ptr::without_provenance(usize::MAX), 1).is_none());
    }
}
