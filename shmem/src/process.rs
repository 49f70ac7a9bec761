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

/// Something that only the process that has made it may use. It is not dropped in another one.
pub(crate) struct OfProcess<T> {
    value: ManuallyDrop<T>,
    forks: u64,
    pid: u32,
}

impl<T> OfProcess<T> {
    pub fn new(value: T) -> OfProcess<T> {
        COUNTS.call_once(|| {
            // SAFETY: registers a function that stays loaded and only counts. Where there is no memory for that, only the drop knows of forks.
            unsafe { libc::pthread_atfork(None, None, Some(count_fork)) };
        });
        let (forks, pid) = (FORKS.load(Ordering::Relaxed), std::process::id());
        OfProcess { value: ManuallyDrop::new(value), forks, pid }
    }

    /// Whether this is the process that has made it.
    #[inline]
    pub fn is_here(&self) -> bool {
        FORKS.load(Ordering::Relaxed) == self.forks
    }

    /// The process that has made it.
    pub fn pid(&self) -> u32 {
        self.pid
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
        if self.is_here() && std::process::id() == self.pid {
            // SAFETY: it is dropped here alone, and not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        }
    }
}
