//! Interrupts of waits: the check that a program installs to handle signals, and how waits call it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use symrail_core::clock;

/// Decides whether waits of the calling thread continue: returns the time until the next call, or `None` to end the
/// wait.
pub type GoOn = Arc<dyn Fn() -> Option<Duration> + Send + Sync>;

/// How long a thread has waited when it first calls the check.
const FIRST_POLL: Duration = Duration::from_millis(1);
/// How often a PE that sleeps while it joins calls the check.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// A wait that calls the check now and then.
#[allow(missing_debug_implementations)] // of the caller's closure
pub struct InterruptPoll<'a> {
    go_on: Option<&'a GoOn>,
    begun: Instant,
    next: Duration,
}

impl<'a> InterruptPoll<'a> {
    /// Begins a wait.
    pub(crate) fn new(go_on: Option<&'a GoOn>) -> InterruptPoll<'a> {
        InterruptPoll { go_on, begun: clock::now(), next: FIRST_POLL }
    }

    /// How long the wait has lasted, if it must end now. Calls the check only when that is due.
    pub fn ended(&mut self) -> Option<Duration> {
        let go_on = self.go_on?;
        let waited = clock::since(self.begun);
        if waited < self.next {
            return None;
        }
        match go_on() {
            Some(pause) => self.next = waited + pause,
            None => return Some(waited),
        }
        None
    }
}
