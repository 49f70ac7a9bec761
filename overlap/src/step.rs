//! What a plan does, step by step, for those who look on.

use std::ops::Range;

/// A step of a round, told before it is taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Waits for a word from a rank.
    Wait {
        /// Whose word.
        from: usize,
    },
    /// Waits until all that this rank has asked for is done.
    Quiet,
    /// Sets a word of a rank.
    Tell {
        /// Whose word.
        to: usize,
    },
    /// Starts to put rows to a rank.
    Put {
        /// To whom.
        to: usize,
        /// Which rows.
        rows: Range<usize>,
    },
    /// Starts to get rows from a rank.
    Get {
        /// From whom.
        from: usize,
        /// Which rows.
        rows: Range<usize>,
    },
    /// Multiplies rows.
    Multiply {
        /// Which rows.
        rows: Range<usize>,
    },
    /// Adds what all ranks have made of rows of this one.
    Sum {
        /// Which rows.
        rows: Range<usize>,
    },
}

/// Who is told of each step.
pub type Observer<'a> = Box<dyn FnMut(&Step) + Send + 'a>;
