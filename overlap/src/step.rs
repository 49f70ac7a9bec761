//! The steps of a plan, for observers.

use std::ops::Range;

/// A step of a round. The plan reports it before it performs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Waits for a word from a rank.
    Wait {
        /// The rank that sets the word.
        from: usize,
    },
    /// Waits until all operations that this rank has started have completed.
    Quiet,
    /// Sets a word of a rank.
    Signal {
        /// The rank that owns the word.
        to: usize,
    },
    /// Starts to put rows to a rank.
    Put {
        /// The destination rank.
        to: usize,
        /// The rows.
        rows: Range<usize>,
    },
    /// Starts to get rows from a rank.
    Get {
        /// The source rank.
        from: usize,
        /// The rows.
        rows: Range<usize>,
    },
    /// Multiplies rows.
    Multiply {
        /// The rows.
        rows: Range<usize>,
    },
    /// Adds the products of all ranks for rows of this rank.
    Sum {
        /// The rows.
        rows: Range<usize>,
    },
}

/// A function that a plan calls before each step.
pub type Observer = Box<dyn FnMut(&Step) + Send>;
