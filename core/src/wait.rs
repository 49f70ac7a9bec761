//! Back-off for waiting threads, and locking.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Locks a mutex whose content a panic cannot leave inconsistent.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A wait that uses less of a core the longer it lasts: it spins, then yields, then sleeps.
#[derive(Debug, Clone)]
pub struct Backoff {
    spins: u32,
    yields: u32,
    sleep: Duration,
    rounds: u32,
}

/// The kind of a round of a [`Backoff`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pause {
    /// It spins.
    Spin,
    /// It yields the core.
    Yield,
    /// It sleeps.
    Sleep,
}

impl Backoff {
    /// `spins` rounds of spinning, then `yields` rounds of yielding, then sleeps of this length.
    #[must_use]
    pub const fn new(spins: u32, yields: u32, sleep: Duration) -> Backoff {
        Backoff { spins, yields, sleep, rounds: 0 }
    }

    /// The kind of the next round.
    #[must_use]
    pub fn next(&self) -> Pause {
        match self.rounds {
            rounds if rounds < self.spins => Pause::Spin,
            rounds if rounds - self.spins < self.yields => Pause::Yield,
            _ => Pause::Sleep,
        }
    }

    /// Waits for one round.
    pub fn pause(&mut self) {
        match self.next() {
            Pause::Spin => std::hint::spin_loop(),
            Pause::Yield => std::thread::yield_now(),
            Pause::Sleep => return std::thread::sleep(self.sleep),
        }
        self.rounds += 1;
    }

    /// Notes an event: the next rounds spin again.
    pub fn reset(&mut self) {
        self.rounds = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_takes_less_and_less() {
        let mut backoff = Backoff::new(2, 1, Duration::ZERO);
        let mut seen = Vec::new();
        for _ in 0..5 {
            seen.push(backoff.next());
            backoff.pause();
        }
        assert_eq!(seen, [Pause::Spin, Pause::Spin, Pause::Yield, Pause::Sleep, Pause::Sleep]);
        backoff.reset();
        assert_eq!(backoff.next(), Pause::Spin);
    }
}
