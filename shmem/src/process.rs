//! Forks. A child has its parent's memory but none of its threads, and shares its sockets, its devices and its place in
//! the job. So a child neither uses nor destroys resources that belong to its parent.

use std::mem::ManuallyDrop;
use std::num::NonZeroUsize;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Once;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

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

/// Whether this PE is in the job: in the process that joined, until it has left.
pub(crate) struct Membership {
    process: Process,
    /// The number of forks as that process counts them; [`LEFT`], which no process counts, once the PE has left. So
    /// operations find forks and the PE's end by one comparison.
    forks: AtomicU64,
}

const LEFT: u64 = u64::MAX;

impl Membership {
    pub fn of(process: Process) -> Membership {
        Membership { process, forks: AtomicU64::new(process.forks) }
    }

    /// Whether operations are performed.
    #[inline]
    pub fn lasts(&self) -> bool {
        FORKS.load(Ordering::Relaxed) == self.forks.load(Ordering::Relaxed)
    }

    /// Ends it, in the process that joined.
    pub fn end(&self) {
        self.forks.store(LEFT, Ordering::Relaxed);
    }

    /// The process that joined.
    pub fn process(&self) -> Process {
        self.process
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

/// Numbers that are all 0 in every child that is forked from this process, and once they were wiped here.
///
/// The kernel wipes them in children. So code that loads one of them anyway detects at no cost that it runs in a child.
/// A kernel that cannot wipe memory (before Linux 4.14) leaves children the numbers.
pub(crate) struct WipedOnFork {
    numbers: NonNull<AtomicUsize>,
    len: usize,
}

// SAFETY: nothing else owns the memory until it is dropped, and its numbers are atomics.
unsafe impl Send for WipedOnFork {}
// SAFETY: as for `Send`.
unsafe impl Sync for WipedOnFork {}

impl WipedOnFork {
    pub fn new(numbers: &[usize]) -> Result<WipedOnFork> {
        let (protection, flags) = (ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, MapFlags::MAP_PRIVATE);
        let (len, bytes) = (numbers.len(), bytes_for(numbers.len()));
        // SAFETY: new memory that no other code knows, large enough for the numbers.
        let numbers = unsafe {
            let memory = mmap_anonymous(None, bytes, protection, flags)
                .map_err(|reason| Error::System { what: "taking memory", reason: reason.to_string() })?;
            let _ = madvise(memory, bytes.get(), MmapAdvise::MADV_WIPEONFORK);
            let copy = memory.cast::<usize>();
            copy.copy_from_nonoverlapping(NonNull::from(numbers).cast(), len);
            copy.cast()
        };
        Ok(WipedOnFork { numbers, len })
    }

    /// A number; `None` beyond the last one.
    #[inline]
    pub fn get(&self, index: usize) -> Option<usize> {
        self.all().get(index).map(|number| number.load(Ordering::Relaxed))
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// A copy of all numbers.
    pub fn to_vec(&self) -> Vec<usize> {
        self.all().iter().map(|number| number.load(Ordering::Relaxed)).collect()
    }

    /// Sets all numbers to 0.
    pub fn wipe(&self) {
        self.all().iter().for_each(|number| number.store(0, Ordering::Relaxed));
    }

    #[inline]
    fn all(&self) -> &[AtomicUsize] {
        // SAFETY: so many numbers exist from `new` to `drop`, and all accesses to them are atomic.
        unsafe { std::slice::from_raw_parts(self.numbers.as_ptr(), self.len) }
    }
}

/// The bytes of `len` numbers, and at least one: a mapping cannot be empty.
fn bytes_for(len: usize) -> NonZeroUsize {
    NonZeroUsize::new(len * size_of::<usize>()).unwrap_or(NonZeroUsize::MIN)
}

impl Drop for WipedOnFork {
    fn drop(&mut self) {
        // SAFETY: `new` mapped it, and no borrow is left.
        let _ = unsafe { munmap(self.numbers.cast(), bytes_for(self.len).get()) };
    }
}
