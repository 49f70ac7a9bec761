//! What time it is for an endpoint.

use std::time::Instant;

use symrail_core::clock;

/// An endpoint's time: seconds in which somebody polled.
pub(super) struct Clock {
    opened: Instant,
    now: u32,
    last_tick: u32,
}

impl Clock {
    pub fn new() -> Clock {
        Clock { opened: clock::now(), now: 0, last_tick: 0 }
    }

    /// Its seconds, which wrap.
    #[inline]
    pub fn now(&self) -> u32 {
        self.now
    }

    /// Microseconds of the wall's time, which wrap.
    #[inline]
    pub fn micros(&self) -> u32 {
        clock::since(self.opened).as_micros() as u32
    }

    /// Whether more than `limit` of its seconds have passed since one.
    pub fn is_past(&self, since: u32, limit: u64) -> bool {
        u64::from(self.now.wrapping_sub(since)) > limit
    }

    /// Whether this second of some other clock is a new one.
    pub fn tick(&mut self, now_s: u32) -> bool {
        let new = now_s != self.last_tick;
        if new {
            (self.last_tick, self.now) = (now_s, self.now.wrapping_add(1));
        }
        new
    }
}
