//! What comes without the endpoint's token: dropped, counted, told of once, and in all at the end.

use super::{Core, Endpoint};

impl Core {
    /// A message or an immediate did not have this endpoint's token.
    #[cold]
    pub(super) fn count_stranger(&mut self, lane: usize) {
        self.counters[lane].strangers += 1;
        if self.strangers() == 1 {
            tracing::warn!(
                rail = %self.caps[lane].name,
                "dropped a message that is not of this job; further ones are counted, and dropped in silence"
            );
        }
    }

    fn strangers(&self) -> u64 {
        self.counters.iter().map(|counters| counters.strangers).sum()
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        let messages = self.core.strangers();
        if messages > 1 {
            tracing::warn!(messages, "dropped in all: messages that were not of this job");
        }
    }
}
