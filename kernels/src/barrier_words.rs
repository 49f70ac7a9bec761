//! Barriers of the devices of several PEs: they follow the steps of the runtime's plan for its own barriers, and signal
//! each other by words.
//!
//! A word holds the number of the last barrier that its writer has reached. There are two sets of words, which are used
//! in turn, because the puts that write them have no order. In a single set a number could arrive behind the next one,
//! and the word would fall back while its reader waits for the next number. A PE that writes to a set again has been in
//! a barrier with all PEs since, so its earlier write to the set has arrived. A PE can be one barrier ahead of another,
//! never two.

use symrail_transport::Pe;

/// Words in a set, and the limit of the steps' flags.
pub const SET: u64 = 32;
/// Words in both sets, each of 64 bits.
pub const WORDS: u64 = 2 * SET;

/// A PE's steps in a barrier, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Sets this flag of that PE.
    SignalPeer(Pe, u32),
    /// Waits for its own flag.
    WaitFlag(u32),
}

/// The index of a flag's word in both sets, in the barrier with this number.
pub(crate) fn word(number: u64, flag: u32) -> u64 {
    number % 2 * SET + u64::from(flag)
}
