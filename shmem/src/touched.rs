//! Copies and clears memory without touching empty pages: pages that were never used take no memory, and shall not
//! start to.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt;

use nix::errno::Errno;
use nix::unistd::{Whence, lseek};

/// Pages whose state is read at a time.
const AT_ONCE: usize = 1 << 16;
/// Bits of a page's word in `/proc/self/pagemap`: it is in memory, or swapped out.
const TAKEN: u64 = 1 << 63 | 1 << 62;

/// Copies the pages of `source` that are not zero to `dest`, in which all bytes are zero.
///
/// # Safety
/// `source` is valid for `len` bytes and `dest` for writes of as many; they do not overlap. Addresses and `len` are
/// multiples of `page`.
pub(crate) unsafe fn copy(source: *const u8, dest: *mut u8, len: usize, page: usize) {
    for start in (0..len).step_by(page) {
        let (from, to) = (source.wrapping_add(start), dest.wrapping_add(start));
        // SAFETY: the page is part of the caller's ranges.
        unsafe {
            if !is_zero(from.cast(), page) {
                std::ptr::copy_nonoverlapping(from, to, page);
            }
        }
    }
}

/// As [`copy`], for memory that is zero where it was never touched: private, with no file behind it. Untouched pages
/// are not even read, which would take the kernel's time. If the kernel does not report them, all pages are read.
///
/// # Safety
/// As for [`copy`]; `page` is the system's page size.
pub(crate) unsafe fn copy_touched(source: *const u8, dest: *mut u8, len: usize, page: usize) {
    let first = source.addr() / page;
    let result = touched(first..first + len / page, |pages| {
        let start = (pages.start - first) * page;
        // SAFETY: the pages are part of the caller's ranges.
        unsafe { copy(source.wrapping_add(start), dest.wrapping_add(start), pages.len() * page, page) };
    });
    if let Err(error) = result {
        tracing::debug!(%error, "/proc/self/pagemap cannot be read; all static data is searched");
        // SAFETY: as above. Pages that were already copied are copied once more.
        unsafe { copy(source, dest, len, page) };
    }
}

/// Calls `each` with runs of pages of this process that have been touched, by page number.
fn touched(pages: Range<usize>, mut each: impl FnMut(Range<usize>)) -> io::Result<()> {
    let map = File::open("/proc/self/pagemap")?;
    let mut words = vec![0; AT_ONCE.min(pages.len()) * 8];
    for start in pages.clone().step_by(AT_ONCE) {
        let words = &mut words[..AT_ONCE.min(pages.end - start) * 8];
        map.read_exact_at(words, start as u64 * 8)?;
        let word = |word: &[u8; 8]| u64::from_ne_bytes(*word) & TAKEN != 0;
        let (mut page, (words, _)) = (start, words.as_chunks());
        for run in words.chunk_by(|a, b| word(a) == word(b)) {
            if word(&run[0]) {
                each(page..page + run.len());
            }
            page += run.len();
        }
    }
    Ok(())
}

/// # Safety
/// `page` is valid for reads of `bytes`, a multiple of 64, and aligned.
unsafe fn is_zero(page: *const [u64; 8], bytes: usize) -> bool {
    // SAFETY: the caller's promise.
    (0..bytes / 64).all(|i| unsafe { page.add(i).read() }.iter().fold(0, |all, word| all | word) == 0)
}

/// Zeroes the data of `file` in `len` bytes from `offset` on; `dest` is a shared mapping of them. Holes of the file
/// stay holes.
///
/// # Safety
/// `dest` is valid for writes, and nothing else uses it.
pub(crate) unsafe fn clear(file: BorrowedFd<'_>, offset: i64, dest: *mut u8, len: usize) {
    let end = offset.saturating_add(len as i64);
    let mut at = offset;
    while at < end {
        let data = match lseek(file, at, Whence::SeekData) {
            Ok(data) if data < end => data,
            // There is no further data.
            Ok(_) | Err(Errno::ENXIO) => return,
            Err(_) => at,
        };
        let hole = lseek(file, data, Whence::SeekHole).map_or(end, |hole| hole.min(end));
        // SAFETY: the range is inside the caller's.
        unsafe { dest.add((data - offset) as usize).write_bytes(0, (hole - data) as usize) };
        at = hole;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::num::NonZeroUsize;
    use std::os::fd::AsFd;

    use nix::sys::memfd::{MFdFlags, memfd_create};
    use nix::sys::mman::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
    use nix::sys::stat::fstat;

    use super::*;

    const PAGE: usize = 4096;
    const PAGES: usize = 100_000;

    #[test]
    fn pages_that_hold_nothing_take_nothing() {
        let len = NonZeroUsize::new(PAGES * PAGE).unwrap();
        let file = memfd_create("symrail-test", MFdFlags::MFD_CLOEXEC).unwrap();
        nix::unistd::ftruncate(&file, len.get() as i64).unwrap();
        let taken = || fstat(&file).unwrap().st_blocks as usize * 512 / PAGE;
        let both = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: new mappings at addresses of the kernel's choice, used within their bounds, and unmapped at the end.
        unsafe {
            let private = mmap_anonymous(None, len, both, MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE).unwrap();
            let shared = mmap(None, len, both, MapFlags::MAP_SHARED, file.as_fd(), 0).unwrap();
            let (source, dest) = (private.cast::<u8>().as_ptr(), shared.cast::<u8>().as_ptr());
            // Left over from an earlier use.
            dest.add(7 * PAGE).write(9);
            dest.add(70_000 * PAGE).write(9);
            for page in [0, 70_000, PAGES - 1] {
                source.add(page * PAGE + page % PAGE).write(5);
            }
            // Touched, and zero.
            source.add(500 * PAGE).write(0);
            clear(file.as_fd(), 0, dest, len.get());
            assert_eq!((dest.add(7 * PAGE).read(), dest.add(70_000 * PAGE).read()), (0, 0));
            assert_eq!(taken(), 2);
            copy_touched(source, dest, len.get(), PAGE);
            assert_eq!(taken(), 4);
            for page in [0, 70_000, PAGES - 1] {
                assert_eq!(dest.add(page * PAGE + page % PAGE).read(), 5);
            }
            munmap(private, len.get()).unwrap();
            munmap(shared, len.get()).unwrap();
        }
    }
}
