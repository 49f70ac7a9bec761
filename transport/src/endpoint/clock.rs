//! The clock of an endpoint.

use std::time::Instant;

use symrail_core::clock;

/// The clock counts seconds in which a thread polled.
pub(super) struct Clock {
    opened: Instant,
    now: u32,
    last_tick: u32,
}

impl Clock {
    pub fn new() -> Clock {
        Clock { opened: clock::now(), now: 0, last_tick: 0 }
    }

    /// The seconds so far; they wrap.
    #[inline]
    pub fn now(&self) -> u32 {
        self.now
    }

    /// Microseconds of real time since opening; they wrap.
    #[inline]
    pub fn micros(&self) -> u32 {
        clock::since(self.opened).as_micros() as u32
    }

    /// Whether more than `limit` of the clock's seconds have passed since `since`.
    pub fn is_past(&self, since: u32, limit: u64) -> bool {
        u64::from(self.now.wrapping_sub(since)) > limit
    }

    /// Advances the clock by a second if `now_s` of the caller's clock is a new second. Returns whether it is.
    pub fn tick(&mut self, now_s: u32) -> bool {
        let new = now_s != self.last_tick;
        if new {
            (self.last_tick, self.now) = (now_s, self.now.wrapping_add(1));
        }
        new
    }
}
