//! The barrier of a block's threads.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use super::error::DeviceError;
use super::view::DeviceView;
use super::waiter::Waiter;

/// The barrier of the threads of one block. It does not wait for threads that have ended. A thread that ends with an
/// error breaks the barrier, because the others would wait for ever.
#[derive(Debug)]
pub(super) struct Block {
    id: usize,
    arrivals: Mutex<Arrivals>,
    round: AtomicU64,
    broken: AtomicBool,
}

#[derive(Debug)]
struct Arrivals {
    expected: usize,
    arrived: usize,
}

impl Block {
    pub(super) fn new(id: usize, threads: usize) -> Self {
        let arrivals = Mutex::new(Arrivals { expected: threads, arrived: 0 });
        Self { id, arrivals, round: AtomicU64::new(0), broken: AtomicBool::new(false) }
    }

    pub(super) fn id(&self) -> usize {
        self.id
    }

    /// Waits until every running thread of the block has called this as often.
    pub(super) fn sync(&self, view: &DeviceView) -> Result<(), DeviceError> {
        let mut arrivals = self.lock();
        let round = self.round.load(Ordering::Relaxed);
        arrivals.arrived += 1;
        self.open_if_complete(&mut arrivals);
        drop(arrivals);
        let mut waiter = Waiter::new(view);
        loop {
            if self.round.load(Ordering::Acquire) != round {
                return Ok(());
            }
            if self.broken.load(Ordering::Acquire) {
                return Err(DeviceError::BlockBroken { block: self.id });
            }
            if !waiter.pause() {
                self.leave(false);
                return Err(waiter.timed_out(format!("the barrier of block {}", self.id)));
            }
        }
    }

    /// Notes the end of a thread.
    pub(super) fn leave(&self, well: bool) {
        let mut arrivals = self.lock();
        if !well {
            self.broken.store(true, Ordering::Release);
            return;
        }
        arrivals.expected -= 1;
        self.open_if_complete(&mut arrivals);
    }

    fn lock(&self) -> MutexGuard<'_, Arrivals> {
        symrail_core::lock(&self.arrivals)
    }

    fn open_if_complete(&self, arrivals: &mut Arrivals) {
        // A broken barrier stays broken: threads that leave because of that must not make it look complete.
        if arrivals.arrived == arrivals.expected && !self.broken.load(Ordering::Relaxed) {
            arrivals.arrived = 0;
            self.round.fetch_add(1, Ordering::Release);
        }
    }
}
