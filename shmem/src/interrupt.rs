//! Ending waits from within: what a program that handles signals gives, and how waits ask it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use symrail_core::clock;

/// Says whether waits of the calling thread are to go on: after how long to ask again, or `None` if they are to end.
pub type GoOn = Arc<dyn Fn() -> Option<Duration> + Send + Sync>;

/// How long a thread has waited when it first asks whether to go on.
const FIRST_POLL: Duration = Duration::from_millis(1);
/// How often a PE asks that sleeps while it joins.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// A wait that asks now and then whether to go on.
#[allow(missing_debug_implementations)] // of what a caller gave
pub struct InterruptPoll<'a> {
    go_on: Option<&'a GoOn>,
    begun: Instant,
    next: Duration,
}

impl<'a> InterruptPoll<'a> {
    /// A wait that begins.
    pub(crate) fn new(go_on: Option<&'a GoOn>) -> InterruptPoll<'a> {
        InterruptPoll { go_on, begun: clock::now(), next: FIRST_POLL }
    }

    /// How long it has waited, if it is to end now. Asks only when it is time to.
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
