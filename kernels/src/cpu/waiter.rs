//! The back-off of every wait.

use std::thread;
use std::time::{Duration, Instant};

use symrail_core::Backoff;
use symrail_core::wait::Pause;

use super::error::DeviceError;
use super::view::DeviceView;

/// Rounds of spinning, rounds of yielding, and the length of sleeps after that.
const SPINS: u32 = 64;
const YIELDS: u32 = 448;
const SLEEP: Duration = Duration::from_micros(20);

/// One wait: it spins, then yields, both while lending the thread to the engine, and then sleeps. It ends within the
/// time-out.
pub(super) struct Waiter<'a> {
    view: &'a DeviceView,
    rounds: u32,
    backoff: Backoff,
    deadline: Option<Instant>,
}

impl<'a> Waiter<'a> {
    #[inline]
    pub(super) fn new(view: &'a DeviceView) -> Self {
        Self { view, rounds: 0, backoff: Backoff::new(SPINS, YIELDS, SLEEP), deadline: None }
    }

    /// Waits for a moment. Returns `false` when the time is over.
    pub(super) fn pause(&mut self) -> bool {
        let sleeps = self.backoff.next() == Pause::Sleep;
        if !self.is_in_time(sleeps) {
            return false;
        }
        // A sleeping thread leaves the engine to the proxy thread, which otherwise would assume that this thread drives
        // it.
        match !sleeps && (self.view.parts().progress)() {
            true => self.backoff.reset(),
            false => self.backoff.pause(),
        }
        true
    }

    /// Lends the thread to the engine on behalf of other threads, too, and yields. Returns `false` when the time is
    /// over.
    pub(super) fn drive(&mut self) -> bool {
        let in_time = self.is_in_time(false);
        if in_time && !(self.view.parts().progress)() {
            thread::yield_now();
        }
        in_time
    }

    /// Yields to other threads, one of which drives the engine. Returns `false` when the time is over.
    pub(super) fn take_turn(&mut self) -> bool {
        let in_time = self.is_in_time(false);
        if in_time {
            thread::yield_now();
        }
        in_time
    }

    /// Sleeps by calling `sleep`. Returns `false` when the time is over.
    pub(super) fn sleep(&mut self, sleep: impl FnOnce()) -> bool {
        let in_time = self.is_in_time(true);
        if in_time {
            sleep();
        }
        in_time
    }

    /// Whether there is time left. It reads the clock only at intervals, or if `always`: most waits end before the
    /// first interval.
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
