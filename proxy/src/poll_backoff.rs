//! How long the proxy thread polls, and how often it checks while other threads drive the engine.

use std::time::{Duration, Instant};

/// How long the proxy thread polls after the last event with a spare core. It is long, because a wake-up takes from 5
/// µs to 200 µs (on virtual machines), and a peer's request to a PE that computes should not wait for it.
pub(crate) const POLL: Duration = Duration::from_millis(5);
/// How long the proxy thread polls after the last event without a spare core: at least a little more than a round trip
/// over TCP, so that a request-reply exchange finds the thread awake. The rail does not report peers' writes, so only a
/// sleep that was cut short shows them. Then the thread polls for longer, up to the second value.
const SHORT_POLL: Duration = Duration::from_micros(50);
const LONGEST_SHORT_POLL: Duration = Duration::from_millis(2);
/// The shortest sleep that is worthwhile. After a shorter one the thread polls for longer.
const SHORTEST_USEFUL_SLEEP: Duration = Duration::from_micros(200);
/// A sleep that ended within this time found bytes that had arrived before: a peer writes much, which the rail does not
/// report. A poll that moves such bytes may take longer than the thread polls without events.
const AT_ONCE: Duration = Duration::from_micros(20);
/// How often the proxy thread checks whether host threads still drive the engine. A peer may wait this long when the PE
/// changes from waiting to computing. Each check costs the thread on the core a context switch, so the interval grows
/// while host threads continue. It grows further while each check finds one of them driving, because a PE that
/// mostly computes is not found so several times in a row.
const FIRST_INTERVAL: Duration = Duration::from_micros(100);
const RARE_CHECK: Duration = Duration::from_micros(400);
const RAREST_CHECK: Duration = Duration::from_millis(2);

/// The decision how long to poll without events. Callers pass the time.
pub(crate) struct PollBackoff {
    shortest: Duration,
    longest: Duration,
    /// How long to poll after the next event, and until when to poll.
    span: Duration,
    until: Instant,
    /// The last sleep ended at once.
    in_vain: bool,
}

impl PollBackoff {
    pub fn new(spare_core: bool, now: Instant) -> PollBackoff {
        let (shortest, longest) = if spare_core { (POLL, POLL) } else { (SHORT_POLL, LONGEST_SHORT_POLL) };
        PollBackoff { shortest, longest, span: shortest, until: now, in_vain: false }
    }

    /// Whether polling is still worthwhile.
    pub fn goes_on(&self, now: Instant) -> bool {
        now < self.until
    }

    /// How long polling has not been worthwhile.
    pub fn idle_for(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.until)
    }

    /// Notes an event.
    pub fn go_on(&mut self, now: Instant) {
        self.until = now + self.span;
    }

    /// Notes that host threads have driven the engine: their last event counts as the proxy thread's.
    pub fn take_over(&mut self, now: Instant) {
        self.until = now + self.shortest;
    }

    /// Whether the last sleep ended at once, so that several polls are worthwhile before another one.
    pub fn slept_in_vain(&self) -> bool {
        self.in_vain
    }

    /// Notes that a sleep that began at `asleep` is over; `woken`: an event ended it.
    pub fn wake(&mut self, woken: bool, asleep: Instant, now: Instant) {
        self.in_vain = woken && now - asleep < AT_ONCE;
        if !woken {
            return;
        }
        self.span =
            if now - asleep < SHORTEST_USEFUL_SLEEP { (self.span * 2).min(self.longest) } else { self.shortest };
        self.go_on(now);
    }
}

/// The time between checks of the proxy thread while other threads drive the engine.
pub(crate) struct PassiveInterval(Duration);

impl PassiveInterval {
    pub fn new() -> PassiveInterval {
        PassiveInterval(FIRST_INTERVAL)
    }

    /// Whether the interval may be longer than left-behind work should wait.
    pub fn is_long(&self) -> bool {
        self.0 > RARE_CHECK
    }

    /// The time until the next check. `rarely`: this check found a driving thread, and no work for the proxy thread.
    pub fn next(&mut self, rarely: bool) -> Duration {
        let longest = if rarely { RAREST_CHECK } else { RARE_CHECK };
        let next = self.0.min(longest);
        self.0 = (next * 2).min(longest);
        next
    }

    /// Notes that no other thread drives the engine any more.
    pub fn end(&mut self) {
        self.0 = FIRST_INTERVAL;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_become_rarer_while_others_go_on() {
        let mut passive = PassiveInterval::new();
        let mut next =
            |found: &[bool]| -> Vec<_> { found.iter().map(|&rarely| passive.next(rarely).as_micros()).collect() };
        assert_eq!(next(&[false; 4]), [100, 200, 400, 400]);
        assert_eq!(next(&[true; 5]), [400, 800, 1600, 2000, 2000]);
        assert_eq!(next(&[false, true, true, false]), [400, 400, 800, 400], "once not found is enough");
        passive.end();
        assert_eq!(passive.next(true), FIRST_INTERVAL);
    }

    #[test]
    fn short_sleeps_without_a_spare_core_make_it_poll_for_longer() {
        let start = Instant::now();
        let at = |us| start + Duration::from_micros(us);
        let mut poll_backoff = PollBackoff::new(false, start);
        assert!(!poll_backoff.goes_on(at(0)));
        poll_backoff.go_on(at(0));
        assert!(poll_backoff.goes_on(at(49)) && !poll_backoff.goes_on(at(50)));
        for (span, now) in [100, 200, 400, 800, 1600, 2000, 2000].into_iter().zip((10_000..).step_by(10_000)) {
            poll_backoff.wake(true, at(now - 199), at(now));
            assert!(poll_backoff.goes_on(at(now + span - 1)) && !poll_backoff.goes_on(at(now + span)), "{span} µs");
        }
        assert_eq!(poll_backoff.idle_for(at(100_000)), Duration::from_micros(28_000));
        // An event of host threads is no reason for the longer span.
        poll_backoff.take_over(at(200_000));
        assert!(poll_backoff.goes_on(at(200_049)) && !poll_backoff.goes_on(at(200_050)));
        // A worthwhile sleep is no reason either.
        poll_backoff.wake(true, at(300_000), at(300_200));
        assert!(poll_backoff.goes_on(at(300_249)) && !poll_backoff.goes_on(at(300_250)));
    }

    #[test]
    fn a_sleep_that_ends_at_once_was_in_vain() {
        let start = Instant::now();
        let at = |us| start + Duration::from_micros(us);
        for spare_core in [false, true] {
            let mut poll_backoff = PollBackoff::new(spare_core, start);
            let mut after = |woken, us: u64| {
                poll_backoff.wake(woken, at(1000), at(1000 + us));
                poll_backoff.slept_in_vain()
            };
            assert_eq!(
                [after(true, 19), after(false, 19), after(true, 20), after(true, 0)],
                [true, false, false, true]
            );
        }
    }

    #[test]
    fn with_a_spare_core_it_polls_for_as_long_whatever_sleeps_were() {
        let start = Instant::now();
        let at = |us| start + Duration::from_micros(us);
        let mut poll_backoff = PollBackoff::new(true, start);
        for (asleep, now) in [(1_000, 1_001), (20_000, 30_000)] {
            poll_backoff.wake(true, at(asleep), at(now));
            assert!(poll_backoff.goes_on(at(now + 4_999)) && !poll_backoff.goes_on(at(now + 5_000)));
        }
    }
}
