//! Threads that wait for answers: where they are more than cores, one drives the engine for all, and the others take
//! turns.
//!
//! Threads that all poll take the cores from the engine and from peers. A turn that finds an answer costs one switch of
//! threads; a sleep that ends with one costs two system calls more, five times as much. So who waits yields some
//! times, and sleeps if no answer has come by then. The one that drives has sleepers woken as their answers come, and
//! hands the engine over when it leaves. It alone would drive once a round of turns: what others ask for behind its
//! turn would be sent a round later. So one of them polls, too, when half a round has passed.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use symrail_proxy::channel::ReplySlot;

use super::view::DeviceView;
use super::waiter::Waiter;

/// Turns without an answer before a thread sleeps. A round trip takes two or three, which a busy peer prolongs.
const TURNS: u32 = 16;
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
    /// Turns of the others.
    turns: AtomicUsize,
}

impl Crowd {
    pub(super) fn new() -> Crowd {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Crowd { cores, asking: AtomicUsize::new(0), driven: AtomicBool::new(false), turns: AtomicUsize::new(0) }
    }
}

/// A thread's wait for an answer.
pub(super) struct Asking<'a> {
    view: &'a DeviceView,
    waiter: Waiter<'a>,
    turns: u32,
    drives: bool,
}

impl<'a> Asking<'a> {
    pub(super) fn new(view: &'a DeviceView) -> Self {
        view.crowd().asking.fetch_add(1, Ordering::Relaxed);
        Self { view, waiter: Waiter::new(view), turns: 0, drives: false }
    }

    /// Waits a little. `false` when the time is over.
    pub(super) fn pause(&mut self, slot: &ReplySlot) -> bool {
        let crowd = self.view.crowd();
        let asking = crowd.asking.load(Ordering::Relaxed);
        if asking <= crowd.cores {
            return self.waiter.pause();
        }
        self.drives |= !crowd.driven.swap(true, Ordering::Relaxed);
        if self.drives || crowd.turns.fetch_add(1, Ordering::Relaxed).is_multiple_of(asking / 2) {
            return self.waiter.drive();
        }
        self.turns += 1;
        if self.turns <= TURNS {
            return self.waiter.take_turn();
        }
        self.waiter.sleep(|| slot.sleep(SLEEP, || crowd.driven.load(Ordering::Relaxed)))
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
