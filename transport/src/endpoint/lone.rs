//! Whether the next operation will be followed by a quiet at once.
//!
//! `put; quiet` in a loop is fastest when the put asks for its own completion: one message there, one back. A stream of
//! puts, or a put whose effect is awaited in some other way, is fastest without. So it is with AMOs and signals and
//! their acknowledgements. Which it will be is what it was the last times.

/// How soon the end of an operation is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hurry {
    /// A later quiet asks for it.
    No,
    /// Somebody waits for it, as for others that are issued about now: it may travel with them.
    Soon,
    /// Somebody waits for it alone.
    Alone,
}

/// A saturating counter, as branch predictors have it.
#[derive(Debug)]
pub(super) struct Lone {
    since_quiet: u32,
    /// 0 and 1 expect more operations, 2 and 3 expect a quiet.
    confidence: u8,
}

impl Default for Lone {
    fn default() -> Self {
        Lone { since_quiet: 0, confidence: 2 }
    }
}

impl Lone {
    /// Whether an operation issued now should ask for its own completion.
    #[inline]
    fn expects_quiet(&self) -> bool {
        self.since_quiet == 0 && self.confidence >= 2
    }

    /// An operation is issued. Whether it should ask for its own completion.
    #[inline]
    pub fn is_next_alone(&mut self) -> bool {
        let alone = self.expects_quiet();
        self.issued();
        alone
    }

    #[inline]
    fn issued(&mut self) {
        self.since_quiet = self.since_quiet.saturating_add(1);
        if self.since_quiet == 2 {
            self.confidence = self.confidence.saturating_sub(1);
        }
    }

    /// A quiet began; or all that was issued is complete, where nobody says that he waits.
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
        let mut p = Lone::default();
        for _ in 0..3 {
            p.issued();
            p.issued();
            p.quiet();
        }
        assert!(!p.expects_quiet());
        for _ in 0..3 {
            p.issued();
            p.quiet();
        }
        assert!(p.expects_quiet());
        p.issued();
        assert!(!p.expects_quiet(), "a second one goes without");
    }
}
