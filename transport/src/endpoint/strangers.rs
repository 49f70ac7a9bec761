//! What comes without the endpoint's token: dropped, counted, told of once, and in all at the end.

use super::{Core, Endpoint};

/// How much there was.
#[derive(Default)]
pub(super) struct Strangers(u64);

impl Core {
    /// A message or an immediate did not have this endpoint's token.
    #[cold]
    pub(super) fn count_stranger(&mut self, lane: usize) {
        self.strangers.0 += 1;
        if self.strangers.0 == 1 {
            tracing::warn!(
                rail = %self.caps[lane].name,
                "dropped a message that is not of this job; further ones are counted, and dropped in silence"
            );
        }
    }
}

impl Drop for Strangers {
    fn drop(&mut self) {
        if self.0 > 1 {
            tracing::warn!(messages = self.0, "dropped what was not of this job");
        }
    }
}

impl Endpoint {
    /// How many messages and immediates were dropped because they did not have this endpoint's token.
    #[must_use]
    pub fn strangers(&self) -> u64 {
        self.core.strangers.0
    }
}
