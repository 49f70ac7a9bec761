//! Forks. A child has its parent's memory but none of its threads, and shares its sockets, its devices and its place in
//! the job. So a child neither uses nor destroys resources that belong to its parent.

use std::mem::ManuallyDrop;
use std::num::NonZeroUsize;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::error::{Error, Result};

/// The number of forks between the process that loaded the library and this one.
static FORKS: AtomicU64 = AtomicU64::new(0);
static COUNTS: Once = Once::new();

extern "C" fn count_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// The process that created a resource; a child that was forked from it is a different process.
#[derive(Clone, Copy)]
pub(crate) struct Process {
    forks: u64,
    pid: u32,
}

impl Process {
    /// This process.
    pub fn this() -> Process {
        COUNTS.call_once(|| {
            // SAFETY: registers a function that stays loaded and only counts. If there is no memory to register it,
            // only drop detects forks.
            unsafe { libc::pthread_atfork(None, None, Some(count_fork)) };
        });
        Process { forks: FORKS.load(Ordering::Relaxed), pid: std::process::id() }
    }

    /// Whether this process is that one.
    #[inline]
    pub fn is_here(self) -> bool {
        FORKS.load(Ordering::Relaxed) == self.forks
    }

    /// Its process id.
    pub fn pid(self) -> u32 {
        self.pid
    }
}

/// A value that is dropped only in the process that created it.
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
            // SAFETY: only this line drops it, and nothing uses it afterwards.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        }
    }
}

/// Numbers that are all 0 in every child that is forked from this process.
///
/// The kernel wipes them there. So code that loads one of them anyway detects at no cost that it runs in a child. A
/// kernel that cannot wipe memory (before Linux 4.14) leaves children the numbers.
pub(crate) struct WipedOnFork {
    numbers: NonNull<usize>,
    len: usize,
}

// SAFETY: nothing else owns the memory until it is dropped, and it is only read.
unsafe impl Send for WipedOnFork {}
// SAFETY: as for `Send`.
unsafe impl Sync for WipedOnFork {}

impl WipedOnFork {
    pub fn new(numbers: &[usize]) -> Result<WipedOnFork> {
        let (protection, flags) = (ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, MapFlags::MAP_PRIVATE);
        let (len, bytes) = (numbers.len(), bytes_of(numbers));
        // SAFETY: new memory that no other code knows, large enough for the numbers.
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

/// The bytes of some numbers, and at least one: a mapping cannot be empty.
fn bytes_of(numbers: &[usize]) -> NonZeroUsize {
    NonZeroUsize::new(size_of_val(numbers)).unwrap_or(NonZeroUsize::MIN)
}

impl Deref for WipedOnFork {
    type Target = [usize];

    #[inline]
    fn deref(&self) -> &[usize] {
        // SAFETY: so many numbers exist from `new` to `drop`, and nothing changes them.
        unsafe { std::slice::from_raw_parts(self.numbers.as_ptr(), self.len) }
    }
}

impl Drop for WipedOnFork {
    fn drop(&mut self) {
        // SAFETY: `new` mapped it, and no borrow is left.
        let _ = unsafe { munmap(self.numbers.cast(), bytes_of(self).get()) };
    }
}
