//! Prediction of whether a caller waits for the operation that it issues now.
//!
//! `put; quiet` in a loop is fastest when the put asks for its own completion: one message there, one back. A stream of
//! puts, or a put whose effect the caller awaits in another way, is fastest without. The same holds for AMOs and signals
//! and their acknowledgements. The prediction is that the caller acts as it did the last times. It is for all providers:
//! also a NIC's write is injected without a completion if no quiet is expected to follow.

/// Predicts whether a quiet follows the next operation at once: a saturating counter, as in branch predictors.
#[derive(Debug)]
pub(super) struct WaitPredictor {
    since_quiet: u32,
    /// 0 and 1 expect more operations, 2 and 3 expect a quiet.
    confidence: u8,
}

impl Default for WaitPredictor {
    fn default() -> Self {
        WaitPredictor { since_quiet: 0, confidence: 2 }
    }
}

impl WaitPredictor {
    /// Whether an operation issued now should ask for its own completion.
    #[inline]
    fn expects_quiet(&self) -> bool {
        self.since_quiet == 0 && self.confidence >= 2
    }

    /// Counts an operation. Returns whether it should ask for its own completion.
    #[inline]
    pub fn is_next_alone(&mut self) -> bool {
        let alone = self.expects_quiet();
        self.issued();
        alone
    }

    #[inline]
    pub fn issued(&mut self) {
        self.since_quiet = self.since_quiet.saturating_add(1);
        if self.since_quiet == 2 {
            self.confidence = self.confidence.saturating_sub(1);
        }
    }

    /// Notes that a quiet began, or that all issued operations are complete where the issuer announces no wait.
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
        let mut p = WaitPredictor::default();
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
