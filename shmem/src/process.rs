//! Forks. A child has its parent's memory, but none of its threads, and shares its sockets, its devices and its place in the job.
//! So what belongs to a process is left alone in a child of it: it is neither used nor taken down there.

use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

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
            // SAFETY: registers a function that stays loaded and only counts. Where there is no memory for that, only the drop knows of forks.
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
