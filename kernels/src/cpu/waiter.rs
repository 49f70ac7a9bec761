//! How every wait waits.

use std::thread;
use std::time::{Duration, Instant};

use symrail_core::Backoff;
use symrail_core::wait::Pause;

use super::error::DeviceError;
use super::view::DeviceView;

/// Rounds of spinning, then rounds of yielding, then sleeps of this length.
const SPINS: u32 = 64;
const YIELDS: u32 = 448;
const SLEEP: Duration = Duration::from_micros(20);

/// One wait: spins, then yields, lending the thread to the engine all the while, then sleeps; and ends in time.
pub(super) struct Waiter<'a> {
    view: &'a DeviceView,
    rounds: u32,
    backoff: Backoff,
    deadline: Option<Instant>,
}

impl<'a> Waiter<'a> {
    pub(super) fn new(view: &'a DeviceView) -> Self {
        Self { view, rounds: 0, backoff: Backoff::new(SPINS, YIELDS, SLEEP), deadline: None }
    }

    /// Waits a little. `false` when the time is over.
    pub(super) fn pause(&mut self) -> bool {
        let sleeps = self.backoff.next() == Pause::Sleep;
        if !self.is_in_time(sleeps) {
            return false;
        }
        // Who sleeps leaves the engine to the proxy thread, which else would take it for driven.
        match !sleeps && (self.view.parts().progress)() {
            true => self.backoff.reset(),
            false => self.backoff.pause(),
        }
        true
    }

    /// Lends the thread to the engine, for others too; the core goes to them in between. `false` when the time is over.
    pub(super) fn drive(&mut self) -> bool {
        let in_time = self.is_in_time(false);
        if in_time && !(self.view.parts().progress)() {
            thread::yield_now();
        }
        in_time
    }

    /// Lets other threads run, one of which drives the engine. `false` when the time is over.
    pub(super) fn take_turn(&mut self) -> bool {
        let in_time = self.is_in_time(false);
        if in_time {
            thread::yield_now();
        }
        in_time
    }

    /// Sleeps as `sleep` does. `false` when the time is over.
    pub(super) fn sleep(&mut self, sleep: impl FnOnce()) -> bool {
        let in_time = self.is_in_time(true);
        if in_time {
            sleep();
        }
        in_time
    }

    /// Whether the time is not over yet. The clock is read now and then only, or `always`: most waits end before the
    /// first time.
    fn is_in_time(&mut self, always: bool) -> bool {
        self.rounds = self.rounds.wrapping_add(1);
        if !self.rounds.is_multiple_of(16) && !always {
            return true;
        }
        let now = Instant::now();
        now < *self.deadline.get_or_insert(now + self.view.parts().timeout)
    }

    pub(super) fn timed_out(&self, what: String) -> DeviceError {
        DeviceError::WaitTimeout { what, seconds: self.view.parts().timeout.as_secs() }
    }
}
