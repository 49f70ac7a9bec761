//! Waits of the bare backends, like those of the runtime's host threads: they poll, yield when nothing has arrived for
//! some time, and finally give up.

use std::time::{Duration, Instant};

use crate::perf::error::{Error, Result};

/// Polls between two reads of the clock.
const POLLS: u32 = 16;
/// How long a thread polls without progress before it yields, and then how often it yields.
const BEFORE_YIELD: Duration = Duration::from_micros(20);
const BETWEEN_YIELDS: Duration = Duration::from_micros(50);

/// A wait for the other PE's word lasts so many times as long as one for an operation: the other PE measures meanwhile.
pub(super) const FOR_THE_OTHER: u32 = 60;

/// One wait of a PE.
pub(super) struct Wait {
    pe: u32,
    what: &'static str,
    timeout: Duration,
    polls: u32,
    since: Option<Instant>,
    yielded: Option<Instant>,
}

impl Wait {
    pub fn new(pe: u32, what: &'static str, timeout: Duration) -> Wait {
        Wait { pe, what, timeout, polls: 0, since: None, yielded: None }
    }

    /// Called after a poll that has not completed the wait.
    #[inline]
    pub fn step(&mut self) -> Result<()> {
        self.polls = self.polls.wrapping_add(1);
        if self.polls.is_multiple_of(POLLS) { self.look_at_clock() } else { Ok(()) }
    }

    fn look_at_clock(&mut self) -> Result<()> {
        let now = Instant::now();
        let waited = now - *self.since.get_or_insert(now);
        if waited > self.timeout {
            return Err(Error::Timeout { pe: self.pe, what: self.what, seconds: self.timeout.as_secs() });
        }
        if waited > BEFORE_YIELD && self.yielded.is_none_or(|then| now - then > BETWEEN_YIELDS) {
            std::thread::yield_now();
            self.yielded = Some(Instant::now());
        }
        Ok(())
    }
}
