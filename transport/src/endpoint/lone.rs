//! Whether the next small put will be followed by a quiet at once.
//!
//! `put; quiet` in a loop is fastest when the put asks for its own completion: one message there, one back. A stream of
//! puts, or a put whose effect is awaited in some other way, is fastest without. Which it will be is what it was
//! the last times.

/// A saturating counter, as branch predictors have it.
#[derive(Debug)]
pub(super) struct LonePuts {
    since_quiet: u32,
    /// 0 and 1 expect more puts, 2 and 3 expect a quiet.
    confidence: u8,
}

impl Default for LonePuts {
    fn default() -> Self {
        LonePuts { since_quiet: 0, confidence: 2 }
    }
}

impl LonePuts {
    /// Whether a put issued now should ask for its own completion.
    #[inline]
    pub fn expects_quiet(&self) -> bool {
        self.since_quiet == 0 && self.confidence >= 2
    }

    /// A small put was issued.
    #[inline]
    pub fn put(&mut self) {
        self.since_quiet = self.since_quiet.saturating_add(1);
        if self.since_quiet == 2 {
            self.confidence = self.confidence.saturating_sub(1);
        }
    }

    /// A quiet began.
    #[inline]
    pub fn quiet(&mut self) {
        if self.since_quiet == 1 {
            self.confidence = (self.confidence + 1).min(3);
        }
        self.since_quiet = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn follows_the_pattern_within_two_rounds() {
        let mut p = LonePuts::default();
        for _ in 0..3 {
            p.put();
            p.put();
            p.quiet();
        }
        assert!(!p.expects_quiet());
        for _ in 0..3 {
            p.put();
            p.quiet();
        }
        assert!(p.expects_quiet());
        p.put();
        assert!(!p.expects_quiet(), "a second put goes without");
    }
}
