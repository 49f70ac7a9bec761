//! The clock for all waiting code: the system's, or that of a simulation in this thread.

use std::time::{Duration, Instant};

/// The current time.
#[inline]
#[must_use]
pub fn now() -> Instant {
    #[cfg(feature = "simulation")]
    if let Some(now) = crate::simulation::now() {
        return now;
    }
    Instant::now()
}

/// The time since a moment that [`now`] returned.
#[inline]
#[must_use]
pub fn since(moment: Instant) -> Duration {
    now().saturating_duration_since(moment)
}
