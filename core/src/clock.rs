//! What time it is, for all that waits: the system's, or that of a simulation whose thread this is.

use std::time::{Duration, Instant};

/// This moment.
#[inline]
#[must_use]
pub fn now() -> Instant {
    #[cfg(feature = "simulation")]
    if let Some(now) = crate::simulation::now() {
        return now;
    }
    Instant::now()
}

/// How long ago a moment was that [`now`] has given.
#[inline]
#[must_use]
pub fn since(moment: Instant) -> Duration {
    now().saturating_duration_since(moment)
}
