//! Threads that wait for answers. Where there are more of them than cores, one drives the engine for all, and the
//! others take turns.
//!
//! Polling threads take the cores from the engine and from peers. A turn that finds an answer costs one context switch.
//! A sleep that ends with an answer costs two more system calls, which is five times as much. So a waiting thread
//! yields some times, and sleeps if there is no answer by then. The driving thread's polls wake sleepers whose answers
//! have arrived, and it hands the engine over when it stops waiting. Alone it would drive once in a round of turns, and
//! requests of threads behind its turn would be sent a round later. So one of these threads also polls when half a
//! round has passed.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use symrail_proxy::channel::ReplySlot;

use super::view::DeviceView;
use super::waiter::Waiter;

/// Turns without an answer before a thread sleeps. A round trip needs two or three, and more with a busy peer.
const TURNS: u32 = 16;
/// The longest sleep before a thread checks its time limit.
const SLEEP: Duration = Duration::from_millis(100);

/// The shared state of a device's threads that wait for answers.
#[derive(Debug)]
pub(super) struct AnswerWaits {
    cores: usize,
    /// The number of waiting threads.
    waiting: AtomicUsize,
    /// Whether one of them drives the engine.
    driven: AtomicBool,
    /// The number of turns of the others.
    turns: AtomicUsize,
}

impl AnswerWaits {
    pub(super) fn new() -> AnswerWaits {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        AnswerWaits { cores, waiting: AtomicUsize::new(0), driven: AtomicBool::new(false), turns: AtomicUsize::new(0) }
    }
}

/// A thread's wait for an answer.
pub(super) struct AnswerWait<'a> {
    view: &'a DeviceView,
    waiter: Waiter<'a>,
    turns: u32,
    drives: bool,
}

impl<'a> AnswerWait<'a> {
    pub(super) fn new(view: &'a DeviceView) -> Self {
        view.answer_waits().waiting.fetch_add(1, Ordering::Relaxed);
        Self { view, waiter: Waiter::new(view), turns: 0, drives: false }
    }

    /// Waits for a moment. Returns `false` when the time is over.
    pub(super) fn pause(&mut self, slot: &ReplySlot) -> bool {
        let waits = self.view.answer_waits();
        let waiting = waits.waiting.load(Ordering::Relaxed);
        if waiting <= waits.cores {
            return self.waiter.pause();
        }
        self.drives |= !waits.driven.swap(true, Ordering::Relaxed);
        if self.drives || waits.turns.fetch_add(1, Ordering::Relaxed).is_multiple_of(waiting / 2) {
            return self.waiter.drive();
        }
        self.turns += 1;
        if self.turns <= TURNS {
            return self.waiter.take_turn();
        }
        self.waiter.sleep(|| slot.sleep(SLEEP, || waits.driven.load(Ordering::Relaxed)))
    }
}

impl Drop for AnswerWait<'_> {
    fn drop(&mut self) {
        let waits = self.view.answer_waits();
        let left = waits.waiting.fetch_sub(1, Ordering::Relaxed) - 1;
        if self.drives {
            waits.driven.store(false, Ordering::Relaxed);
        }
        // A thread that was woken for its answer may have been chosen to drive next.
        if left > 0 && (self.drives || !waits.driven.load(Ordering::Relaxed)) {
            let _ = self.view.parts().producers.iter().any(|producer| producer.wake_one());
        }
    }
}
