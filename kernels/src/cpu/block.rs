//! The barrier of a block's threads.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use super::error::DeviceError;
use super::view::DeviceView;
use super::waiter::Waiter;

/// Threads of one block wait for one another here. A thread that has ended is not waited for; one that ended with an
/// error breaks the barrier, because what the others wait for will not happen.
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

    /// Waits until every thread of the block that still runs has called this as often.
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

    /// A thread has ended.
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
        // Once broken it stays shut: those who were told and left must not make it look complete.
        if arrivals.arrived == arrivals.expected && !self.broken.load(Ordering::Relaxed) {
            arrivals.arrived = 0;
            self.round.fetch_add(1, Ordering::Release);
        }
    }
}
