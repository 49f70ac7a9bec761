//! Forks. A child has its parent's memory, but none of its threads, and shares its sockets, its devices and its place
//! in the job. So what belongs to a process is left alone in a child of it: it is neither used nor taken down there.

use std::mem::ManuallyDrop;
use std::num::NonZeroUsize;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::error::{Error, Result};

/// Forks between the process that loaded the library and this one.
static FORKS: AtomicU64 = AtomicU64::new(0);
static COUNTS: Once = Once::new();

extern "C" fn count_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// The process that has made something, unless this is a child that was forked from it.
#[derive(Clone, Copy)]
pub(crate) struct Process {
    forks: u64,
    pid: u32,
}

impl Process {
    /// This one.
    pub fn this() -> Process {
        COUNTS.call_once(|| {
            // SAFETY: registers a function that stays loaded and only counts. Where there is no memory for that, only
            // the drop knows of forks.
            unsafe { libc::pthread_atfork(None, None, Some(count_fork)) };
        });
        Process { forks: FORKS.load(Ordering::Relaxed), pid: std::process::id() }
    }

    /// Whether this is that process.
    #[inline]
    pub fn is_here(self) -> bool {
        FORKS.load(Ordering::Relaxed) == self.forks
    }

    /// Its number.
    pub fn pid(self) -> u32 {
        self.pid
    }
}

/// Something that is dropped only in the process that has made it.
pub(crate) struct OfProcess<T> {
    value: ManuallyDrop<T>,
    process: Process,
}

impl<T> OfProcess<T> {
    pub fn new(value: T, process: Process) -> OfProcess<T> {
        OfProcess { value: ManuallyDrop::new(value), process }
    }
}

impl<T> Deref for OfProcess<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for OfProcess<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

impl<T> Drop for OfProcess<T> {
    fn drop(&mut self) {
        if self.process.is_here() && std::process::id() == self.process.pid {
            // SAFETY: it is dropped here alone, and not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        }
    }
}

/// Numbers that are all 0 in every child that is forked from this process.
///
/// The kernel wipes them there. So whoever has to load one of them anyway learns at no cost that it is in a child. A
/// kernel that cannot wipe memory (before Linux 4.14) leaves children the numbers.
pub(crate) struct WipedOnFork {
    numbers: NonNull<usize>,
    len: usize,
}

// SAFETY: the memory is its own until it is dropped, and only read.
unsafe impl Send for WipedOnFork {}
// SAFETY: as for `Send`.
unsafe impl Sync for WipedOnFork {}

impl WipedOnFork {
    pub fn new(numbers: &[usize]) -> Result<WipedOnFork> {
        let (protection, flags) = (ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, MapFlags::MAP_PRIVATE);
        let (len, bytes) = (numbers.len(), bytes_of(numbers));
        // SAFETY: new memory, which nobody else knows, with room for the numbers.
        let numbers = unsafe {
            let memory = mmap_anonymous(None, bytes, protection, flags)
                .map_err(|reason| Error::System { what: "taking memory", reason: reason.to_string() })?;
            let _ = madvise(memory, bytes.get(), MmapAdvise::MADV_WIPEONFORK);
            let copy = memory.cast::<usize>();
            copy.copy_from_nonoverlapping(NonNull::from(numbers).cast(), len);
            copy
        };
        Ok(WipedOnFork { numbers, len })
    }
}

/// The bytes of some numbers, and at least one: nothing cannot be mapped.
fn bytes_of(numbers: &[usize]) -> NonZeroUsize {
    NonZeroUsize::new(size_of_val(numbers)).unwrap_or(NonZeroUsize::MIN)
}

impl Deref for WipedOnFork {
    type Target = [usize];

    #[inline]
    fn deref(&self) -> &[usize] {
        // SAFETY: so many numbers are there from `new` to `drop`, and nobody changes them.
        unsafe { std::slice::from_raw_parts(self.numbers.as_ptr(), self.len) }
    }
}

impl Drop for WipedOnFork {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and borrowed by nobody any more.
        let _ = unsafe { munmap(self.numbers.cast(), bytes_of(self).get()) };
    }
}
