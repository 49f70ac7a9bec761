//! A simulation of many PEs in one thread, one at a time: the running PE's time and memory, and a way to let other PEs
//! run.
//!
//! All state here belongs to the thread. It has no effect without a simulation.

use std::cell::Cell;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

/// The start of all simulations.
static BEGINNING: LazyLock<Instant> = LazyLock::new(Instant::now);

thread_local! {
    /// Nanoseconds since the start, in a simulation.
    static NOW: Cell<Option<u64>> = const { Cell::new(None) };
    static IDLE: Cell<Option<fn()>> = const { Cell::new(None) };
    /// Bytes that the running PE has allocated and not freed since the last query, and how often counting is turned
    /// off.
    static HELD: Cell<i64> = const { Cell::new(0) };
    static UNCOUNTED: Cell<u32> = const { Cell::new(1) };
}

/// The current time in the simulation, if there is one.
#[inline]
pub(crate) fn now() -> Option<Instant> {
    NOW.get().map(|now| *BEGINNING + Duration::from_nanos(now))
}

/// The running PE's nanoseconds since the simulation began; 0 without one.
#[must_use]
pub fn nanos() -> u64 {
    NOW.get().unwrap_or(0)
}

/// Sets the time of this thread, or returns to the system's.
pub fn set_nanos(now: Option<u64>) {
    NOW.set(now);
}

/// Advances the running PE's time by so many nanoseconds, for which it is busy.
pub fn spend(nanos: u64) {
    NOW.set(NOW.get().map(|now| now + nanos));
}

/// Sets the function that an idle PE calls. The function returns when there may be work.
pub fn set_idle(idle: Option<fn()>) {
    IDLE.set(idle);
}

/// Lets other PEs run until there may be work.
pub fn idle() {
    if let Some(idle) = IDLE.get() {
        idle();
    }
}

/// Counts bytes that the running PE allocates (or frees, if negative). The program's allocator calls it.
#[inline]
pub fn count(bytes: i64) {
    if UNCOUNTED.get() == 0 {
        HELD.set(HELD.get() + bytes);
    }
}

/// Turns counting on or off.
pub fn set_counting(counts: bool) {
    UNCOUNTED.set(u32::from(!counts));
}

/// The bytes counted since the last call.
#[must_use]
pub fn take_count() -> i64 {
    HELD.take()
}

/// Runs code whose memory does not count as the running PE's: it belongs to the simulated environment.
pub fn uncounted<R>(what: impl FnOnce() -> R) -> R {
    UNCOUNTED.set(UNCOUNTED.get() + 1);
    let result = what();
    UNCOUNTED.set(UNCOUNTED.get() - 1);
    result
}
