//! What systems that exchange data in rounds have in common: plans, communicators and buffers that the PEs of a team
//! make together and then use any number of times.
//!
//! Their PEs signal each other through words of symmetric memory that hold numbers of rounds and only grow. So no PE
//! clears a word, and a word of an earlier round never passes for one of this round. A PE that gives up tells all
//! others through one further word, so that none of them waits for it. A call that fails after its start leaves the PEs in an
//! unknown state: all later calls are refused.
//!
//! | file | concept |
//! |---|---|
//! | `error` | the errors of rounds |
//! | [`signal_words`](SignalWords) | words that hold round numbers, and bounded waits for them |
//! | [`abort`](Abort) | the word of a PE that gives up |
//! | [`poison`](Poison) | refusing calls after a failed one |
//! | [`report`](Report) | kernels' reports of failed waits |
//!
//! A team's agreements are calls of [`Team`](crate::Team): `compare`, `compare_and_gather`, `all_or_none`, `all`.

mod abort;
mod error;
mod poison;
mod report;
mod signal_words;

pub use abort::Abort;
pub use error::Error;
pub use poison::Poison;
pub use report::Report;
pub use signal_words::SignalWords;
