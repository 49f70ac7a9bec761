//! What ends a wait although what it waits for has not come.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use symrail_core::clock;

use crate::interrupt::{GoOn, InterruptPoll};

/// How often a wait checks on the PEs that it needs.
pub(super) const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// One wait, which ends when a PE that it needs is lost, when its time limit has passed, or when the program ends it
/// ([`Runtime::set_interrupt`](crate::Runtime::set_interrupt), [`with_timeout`](crate::with_timeout)). The caller
/// pauses between its calls of [`ended`](BoundedWait::ended).
#[allow(missing_debug_implementations)] // of the program's closure
pub struct BoundedWait<'a> {
    begun: Instant,
    limit: Option<Duration>,
    next_check: Duration,
    interrupt: Interrupt<'a>,
}

/// How a wait learns that the program ends it.
enum Interrupt<'a> {
    Poll(InterruptPoll<'a>),
    Flag(&'a AtomicBool),
}

/// Why a wait has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// Its time limit has passed.
    TimedOut,
    /// The program ends it.
    Interrupted,
}

impl<'a> BoundedWait<'a> {
    /// Begins a wait, which lasts at most `limit`, if there is one.
    pub(crate) fn new(go_on: Option<&'a GoOn>, limit: impl Into<Option<Duration>>) -> BoundedWait<'a> {
        BoundedWait::with(Interrupt::Poll(InterruptPoll::new(go_on)), limit.into())
    }

    /// Begins a wait of a thread that may not ask the program itself: another one asks, and sets `interrupted`.
    #[must_use]
    pub fn watched(interrupted: &'a AtomicBool, limit: impl Into<Option<Duration>>) -> BoundedWait<'a> {
        BoundedWait::with(Interrupt::Flag(interrupted), limit.into())
    }

    fn with(interrupt: Interrupt<'a>, limit: Option<Duration>) -> BoundedWait<'a> {
        BoundedWait { begun: clock::now(), limit, next_check: CHECK_INTERVAL, interrupt }
    }

    /// Begins anew, because a part of what it waits for has come.
    pub fn restart(&mut self) {
        self.begun = clock::now();
        self.next_check = CHECK_INTERVAL;
        if let Interrupt::Poll(poll) = &mut self.interrupt {
            poll.restart();
        }
    }

    /// How long it has lasted.
    #[must_use]
    pub fn waited(&self) -> Duration {
        clock::since(self.begun)
    }

    /// Why the wait must end now, if it must: a lost PE comes before the time limit, and that before the program. Every 500 ms it calls `check`, with the time that it has lasted, to find
    /// out whether a PE that it needs is lost.
    ///
    /// # Errors
    /// That of `check`.
    pub fn ended<E>(&mut self, check: impl FnOnce(Duration) -> Result<(), E>) -> Result<Option<Ended>, E> {
        let waited = self.waited();
        if waited > self.next_check {
            self.next_check = waited + CHECK_INTERVAL;
            check(waited)?;
        }
        if self.limit.is_some_and(|limit| waited > limit) {
            return Ok(Some(Ended::TimedOut));
        }
        Ok(self.is_interrupted().then_some(Ended::Interrupted))
    }

    /// Whether the program ends it: for a wait that has no time limit and checks on no PE.
    pub fn is_interrupted(&mut self) -> bool {
        match &mut self.interrupt {
            Interrupt::Poll(poll) => poll.ended().is_some(),
            Interrupt::Flag(flag) => flag.load(Ordering::Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A wait that began so long ago.
    fn begun(ago: Duration, limit: Option<Duration>, interrupted: &AtomicBool) -> BoundedWait<'_> {
        let mut wait = BoundedWait::watched(interrupted, limit);
        wait.begun -= ago;
        wait
    }

    #[test]
    fn a_wait_checks_on_pes_only_when_that_is_due() {
        let (going, mut checks) = (AtomicBool::new(false), 0);
        let mut check = |wait: &mut BoundedWait<'_>| {
            let ended = wait.ended(|_| {
                checks += 1;
                Ok::<_, ()>(())
            });
            (ended, checks)
        };
        let mut short = begun(Duration::ZERO, None, &going);
        assert_eq!(check(&mut short), (Ok(None), 0));
        let mut long = begun(Duration::from_secs(3600), None, &going);
        assert_eq!(check(&mut long), (Ok(None), 1));
        assert_eq!(check(&mut long), (Ok(None), 1), "it has just checked");
        long.restart();
        assert_eq!(check(&mut long), (Ok(None), 1), "it has begun anew");
    }

    #[test]
    fn a_lost_pe_a_limit_and_the_program_end_a_wait() {
        let (hour, interrupted) = (Duration::from_secs(3600), AtomicBool::new(false));
        let live = |_| Ok::<_, &str>(());
        assert_eq!(begun(hour, Some(hour), &interrupted).ended(|_| Err("PE 1 is lost")), Err("PE 1 is lost"));
        assert_eq!(begun(hour, Some(2 * hour), &interrupted).ended(live), Ok(None));
        let mut wait = begun(hour, Some(hour - Duration::from_secs(1)), &interrupted);
        assert_eq!(wait.ended(live), Ok(Some(Ended::TimedOut)));
        wait.restart();
        assert_eq!(wait.ended(live), Ok(None));
        interrupted.store(true, Ordering::Relaxed);
        assert_eq!(wait.ended(live), Ok(Some(Ended::Interrupted)));
        let ends: GoOn = std::sync::Arc::new(|| None);
        let mut polled = BoundedWait::new(Some(&ends), None);
        assert_eq!(polled.ended(live), Ok(None), "the program is asked after a millisecond");
        while polled.waited() < 2 * Duration::from_millis(1) {
            std::hint::spin_loop();
        }
        assert_eq!(polled.ended(live), Ok(Some(Ended::Interrupted)));
    }
}
