//! Interrupts of waits: the check that a program installs to handle signals, how waits call it, and limits of waits.

use std::cell::Cell;
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

thread_local! {
    /// How long each wait of this thread may last.
    static LIMIT: Cell<Option<Duration>> = const { Cell::new(None) };
}

/// Runs `work`, in which each wait of this thread for other PEs ends after `limit` with
/// [`Error::Interrupted`](crate::Error::Interrupted). The note of
/// [`Runtime::set_interrupt`](crate::Runtime::set_interrupt) on interrupted collectives applies.
pub fn with_limit<R>(limit: Duration, work: impl FnOnce() -> R) -> R {
    struct Restore(Option<Duration>);
    impl Drop for Restore {
        fn drop(&mut self) {
            LIMIT.set(self.0);
        }
    }
    let _restore = Restore(LIMIT.replace(Some(limit)));
    work()
}

/// A wait that calls the check now and then.
#[allow(missing_debug_implementations)] // of the caller's closure
pub struct InterruptPoll<'a> {
    go_on: Option<&'a GoOn>,
    limit: Option<Duration>,
    begun: Instant,
    next: Duration,
}

impl<'a> InterruptPoll<'a> {
    /// Begins a wait.
    pub(crate) fn new(go_on: Option<&'a GoOn>) -> InterruptPoll<'a> {
        InterruptPoll { go_on, limit: LIMIT.get(), begun: clock::now(), next: FIRST_POLL }
    }

    /// How long the wait has lasted, if it must end now. Calls the check only when that is due.
    pub fn ended(&mut self) -> Option<Duration> {
        if self.go_on.is_none() && self.limit.is_none() {
            return None;
        }
        let waited = clock::since(self.begun);
        if self.limit.is_some_and(|limit| waited >= limit) {
            return Some(waited);
        }
        if waited >= self.next
            && let Some(go_on) = self.go_on
        {
            match go_on() {
                Some(pause) => self.next = waited + pause,
                None => return Some(waited),
            }
        }
        None
    }
}
