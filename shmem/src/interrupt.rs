//! Interrupts of waits: the check that a program installs to handle signals, the limit of a caller's time, and how waits
//! ask for both.

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use symrail_core::clock;

/// Decides whether waits of the calling thread continue: returns the time until the next call, or `None` to end the
/// wait.
pub type GoOn = Arc<dyn Fn() -> Option<Duration> + Send + Sync>;

/// How long a thread has waited when it first calls the check.
const FIRST_POLL: Duration = Duration::from_millis(1);
/// The longest that a PE whose time is up asks the others for what they wait.
const GRACE: Duration = Duration::from_secs(1);
/// How often a PE that sleeps while it joins calls the check.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(50);

thread_local! {
    /// When the waits of this thread end. It has no destructor, because exit handlers wait, too.
    static DEADLINE: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Makes calls whose waits, all together, end after `timeout`, if there is one, with [`Error::Interrupted`](crate::Error::Interrupted) (of
/// joining: [`bootstrap::Error::Interrupted`](crate::bootstrap::Error::Interrupted)). It concerns this thread, and all
/// calls that wait: collectives, calls on the heap, finalizing, waits for words, quiets. What is said of interrupted
/// calls at [`Runtime::set_interrupt`](crate::Runtime::set_interrupt) holds for these, too. Inside of another such call, the
/// earlier end counts.
pub fn with_timeout<R>(timeout: impl Into<Option<Duration>>, calls: impl FnOnce() -> R) -> R {
    let until = timeout.into().and_then(|timeout| clock::now().checked_add(timeout));
    with_deadline(until.into_iter().chain(DEADLINE.get()).min(), calls)
}

/// Makes calls that find out why a wait has ended: they have [`GRACE`], whatever limit has passed.
pub(crate) fn with_grace_period<R>(calls: impl FnOnce() -> R) -> R {
    with_deadline(clock::now().checked_add(GRACE), calls)
}

fn with_deadline<R>(deadline: Option<Instant>, calls: impl FnOnce() -> R) -> R {
    struct Restore(Option<Instant>);
    impl Drop for Restore {
        fn drop(&mut self) {
            DEADLINE.set(self.0);
        }
    }
    let _before = Restore(DEADLINE.replace(deadline));
    calls()
}

/// A wait that calls the check now and then.
pub(crate) struct InterruptPoll<'a> {
    go_on: Option<&'a GoOn>,
    deadline: Option<Instant>,
    begun: Instant,
    next: Duration,
}

impl<'a> InterruptPoll<'a> {
    /// Begins a wait.
    pub(crate) fn new(go_on: Option<&'a GoOn>) -> InterruptPoll<'a> {
        InterruptPoll { go_on, deadline: DEADLINE.get(), begun: clock::now(), next: FIRST_POLL }
    }

    /// Begins the wait anew.
    pub(crate) fn restart(&mut self) {
        (self.begun, self.next) = (clock::now(), FIRST_POLL);
    }

    /// Whether anything may end the wait.
    pub(crate) fn may_end(&self) -> bool {
        self.go_on.is_some() || self.deadline.is_some()
    }

    /// How long the wait has lasted, if it must end now. Calls the check only when that is due.
    pub fn ended(&mut self) -> Option<Duration> {
        if !self.may_end() {
            return None;
        }
        let waited = clock::since(self.begun);
        if self.deadline.is_some_and(|deadline| clock::now() >= deadline) {
            return Some(waited);
        }
        let go_on = self.go_on?;
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
