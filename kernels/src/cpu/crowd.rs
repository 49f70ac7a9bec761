//! Threads that wait for answers: where they are more than cores, one drives the engine for all, and the others sleep.
//!
//! Threads that all poll, or yield to one another, take the cores from the engine and from peers. The one that drives
//! has the others woken as their answers come, and hands the engine over when it leaves.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use symrail_proxy::channel::ReplySlot;

use super::view::DeviceView;
use super::waiter::Waiter;

/// The longest sleep until a thread looks whether its time is over.
const SLEEP: Duration = Duration::from_millis(100);

/// What the threads of a device that wait for answers know of one another.
#[derive(Debug)]
pub(super) struct Crowd {
    cores: usize,
    /// How many wait.
    asking: AtomicUsize,
    /// One of them drives the engine.
    driven: AtomicBool,
}

impl Crowd {
    pub(super) fn new() -> Crowd {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Crowd { cores, asking: AtomicUsize::new(0), driven: AtomicBool::new(false) }
    }
}

/// A thread's wait for an answer.
pub(super) struct Asking<'a> {
    view: &'a DeviceView,
    waiter: Waiter<'a>,
    drives: bool,
}

impl<'a> Asking<'a> {
    pub(super) fn new(view: &'a DeviceView) -> Self {
        view.crowd().asking.fetch_add(1, Ordering::Relaxed);
        Self { view, waiter: Waiter::new(view), drives: false }
    }

    /// Waits a little. `false` when the time is over.
    pub(super) fn pause(&mut self, slot: &ReplySlot) -> bool {
        let crowd = self.view.crowd();
        let is_crowd = crowd.asking.load(Ordering::Relaxed) > crowd.cores;
        self.drives |= is_crowd && !crowd.driven.swap(true, Ordering::Relaxed);
        match (is_crowd, self.drives) {
            (true, false) => self.waiter.sleep(|| slot.sleep(SLEEP, || crowd.driven.load(Ordering::Relaxed))),
            (true, true) => self.waiter.drive(),
            (false, _) => self.waiter.pause(),
        }
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        let crowd = self.view.crowd();
        let left = crowd.asking.fetch_sub(1, Ordering::Relaxed) - 1;
        if self.drives {
            crowd.driven.store(false, Ordering::Relaxed);
        }
        // A thread that was woken for an answer may have been the one that was to drive next.
        if left > 0 && (self.drives || !crowd.driven.load(Ordering::Relaxed)) {
            let _ = self.view.parts().producers.iter().any(|producer| producer.wake_one());
        }
    }
}
