//! A thread that simulates many PEs, one at a time: what time it is for the one that runs, what that one holds in
//! memory, and how it lets the others run.
//!
//! Everything here belongs to the thread. Without a simulation nothing of it is in force.

use std::cell::Cell;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

/// When all simulations begin.
static BEGINNING: LazyLock<Instant> = LazyLock::new(Instant::now);

thread_local! {
    /// Nanoseconds since the beginning, in a simulation.
    static NOW: Cell<Option<u64>> = const { Cell::new(None) };
    static IDLE: Cell<Option<fn()>> = const { Cell::new(None) };
    /// Bytes that the running PE has taken and not given back since it was last asked for; how far counting is off.
    static HELD: Cell<i64> = const { Cell::new(0) };
    static UNCOUNTED: Cell<u32> = const { Cell::new(1) };
}

/// This moment in the simulation, if there is one.
#[inline]
pub(crate) fn now() -> Option<Instant> {
    NOW.get().map(|now| *BEGINNING + Duration::from_nanos(now))
}

/// Nanoseconds of the running PE since the simulation began; 0 without one.
#[must_use]
pub fn nanos() -> u64 {
    NOW.get().unwrap_or(0)
}

/// Sets the time of this thread, or goes back to the system's.
pub fn set_nanos(now: Option<u64>) {
    NOW.set(now);
}

/// The running PE is busy for so many nanoseconds.
pub fn spend(nanos: u64) {
    NOW.set(NOW.get().map(|now| now + nanos));
}

/// What a PE calls that finds nothing to do. It returns when there may be something.
pub fn set_idle(idle: Option<fn()>) {
    IDLE.set(idle);
}

/// Lets others run until there may be something to do.
pub fn idle() {
    if let Some(idle) = IDLE.get() {
        idle();
    }
}

/// Counts bytes that the running PE takes (or gives back, if negative). For the program's allocator.
#[inline]
pub fn count(bytes: i64) {
    if UNCOUNTED.get() == 0 {
        HELD.set(HELD.get() + bytes);
    }
}

/// Begins or ends counting.
pub fn set_counting(counts: bool) {
    UNCOUNTED.set(u32::from(!counts));
}

/// The bytes counted since this was last called.
#[must_use]
pub fn take_count() -> i64 {
    HELD.take()
}

/// Does something whose memory is not the running PE's: it belongs to what is simulated around it.
pub fn uncounted<R>(what: impl FnOnce() -> R) -> R {
    UNCOUNTED.set(UNCOUNTED.get() + 1);
    let result = what();
    UNCOUNTED.set(UNCOUNTED.get() - 1);
    result
}
