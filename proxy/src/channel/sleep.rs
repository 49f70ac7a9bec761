//! Requesters that sleep until their answer comes.
//!
//! A requester says that it sleeps, then loads once more; who has an answer for it stores the answer, then loads
//! whether it sleeps. Between the two steps of each is a SeqCst fence, so one of the two sees the other's.

use std::sync::PoisonError;
use std::time::Duration;

use super::sync::{AtomicBool, Mutex, Ordering, Thread, current, fence, park};

/// The threads that sleep, by entry of a reply table.
#[derive(Debug)]
pub(super) struct SleepingThreads(Box<[Sleep]>);

#[derive(Debug)]
struct Sleep {
    asleep: AtomicBool,
    thread: Mutex<Option<Thread>>,
}

impl SleepingThreads {
    pub(super) fn new(entries: usize) -> Self {
        let sleep = |_| Sleep { asleep: AtomicBool::new(false), thread: Mutex::new(None) };
        Self((0..entries).map(sleep).collect())
    }

    /// Sleeps as the owner of an entry, until somebody wakes it and for `longest` at most; not at all if it need not
    /// `stay`.
    pub(super) fn sleep(&self, entry: u32, longest: Duration, stay: impl Fn() -> bool) {
        let Some(sleep) = self.0.get(entry as usize) else { return };
        *sleep.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(current());
        sleep.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if stay() {
            park(longest);
        }
        sleep.asleep.store(false, Ordering::Relaxed);
    }

    /// Wakes the owners of entries whose answers are stored.
    pub(super) fn wake(&self, entries: impl Iterator<Item = u32>) {
        fence(Ordering::SeqCst);
        entries.filter_map(|entry| self.0.get(entry as usize)).for_each(|sleep| _ = sleep.wake());
    }

    /// Wakes one that still sleeps, if there is any.
    pub(super) fn wake_one(&self) -> bool {
        fence(Ordering::SeqCst);
        self.0.iter().any(Sleep::wake)
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
