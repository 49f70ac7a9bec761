//! How devices of several PEs wait for one another: by the steps of a plan that the runtime makes, the same as for its
//! own barriers, and by words in which they tell one another.
//!
//! A word holds the number of the last barrier that its writer has reached. The words are in two sets, used in turn,
//! because nothing orders the puts that write them: in one set a number could arrive behind the next one, and the word
//! fall back under somebody who waits for that. Who writes to a set again has been in a barrier with everybody in
//! between, so what it wrote there before has arrived. A PE can be one barrier ahead of another, never two.

use symrail_transport::Pe;

/// Words of a set, and the bound of the steps' flags.
pub const SET: u64 = 32;
/// Words of both sets, each of 64 bits.
pub const WORDS: u64 = 2 * SET;

/// A PE's steps in a barrier, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Sets a flag of that PE.
    SignalPeer(Pe, u32),
    /// Waits until its own flag is set.
    WaitFlag(u32),
}

/// Where in both sets the word for a flag is, in the barrier with this number.
pub(crate) fn word(number: u64, flag: u32) -> u64 {
    number % 2 * SET + u64::from(flag)
}
