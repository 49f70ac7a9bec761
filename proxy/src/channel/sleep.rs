//! Requesters that sleep until their answer arrives.
//!
//! A requester announces that it sleeps, then checks for its answer once more. The consumer stores the answer, then
//! checks whether the requester sleeps. A SeqCst fence separates the two steps on both sides, so one of the two
//! observes the other's store.

use std::sync::PoisonError;
use std::time::Duration;

use super::sync::{AtomicBool, AtomicU64, Mutex, Ordering, Thread, current, fence, park};

/// The threads that sleep, by entry of a reply table.
#[derive(Debug)]
pub(super) struct SleepingThreads {
    entries: Box<[Sleep]>,
    /// The number of threads that sleep or are about to: while there are none, no entry is read.
    count: AtomicU64,
}

#[derive(Debug)]
struct Sleep {
    asleep: AtomicBool,
    thread: Mutex<Option<Thread>>,
}

impl SleepingThreads {
    pub(super) fn new(entries: usize) -> Self {
        let sleep = |_| Sleep { asleep: AtomicBool::new(false), thread: Mutex::new(None) };
        Self { entries: (0..entries).map(sleep).collect(), count: AtomicU64::new(0) }
    }

    /// Sleeps as the owner of an entry until another thread wakes it, for at most `longest`. It does not sleep if
    /// `stay` returns `false`.
    pub(super) fn sleep(&self, entry: u32, longest: Duration, stay: impl Fn() -> bool) {
        let Some(sleep) = self.entries.get(entry as usize) else { return };
        self.count.fetch_add(1, Ordering::Relaxed);
        *sleep.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(current());
        sleep.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if stay() {
            park(longest);
        }
        sleep.asleep.store(false, Ordering::Relaxed);
        self.count.fetch_sub(1, Ordering::Relaxed);
    }

    /// Wakes the owners of entries whose answers are stored.
    pub(super) fn wake(&self, entries: impl Iterator<Item = u32>) {
        fence(Ordering::SeqCst);
        if self.any() {
            entries.filter_map(|entry| self.entries.get(entry as usize)).for_each(|sleep| _ = sleep.wake());
        }
    }

    /// Wakes one requester that still sleeps, if there is any.
    pub(super) fn wake_one(&self) -> bool {
        fence(Ordering::SeqCst);
        self.any() && self.entries.iter().any(Sleep::wake)
    }

    /// Whether any thread sleeps or is about to. The caller's fence is before it.
    fn any(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0
    }
}

impl Sleep {
    fn wake(&self) -> bool {
        let slept = self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::Relaxed);
        if slept && let Some(thread) = &*self.thread.lock().unwrap_or_else(PoisonError::into_inner) {
            thread.unpark();
        }
        slept
    }
}
