//! The steps of a rank in a round, in lanes. Programs are pure; the host and GPUs carry them out.
//!
//! A lane is a queue: its steps are performed one after the other. A GPU has a stream for each lane; the host has one
//! thread for all of them. A step that depends on a step of another lane lists it ([`Entry::after`]), like an event of
//! a stream.
//!
//! The order of the steps is one in which a rank can perform them one by one, with all its waits, if the other ranks do
//! so too. So a rank that waits for its first remaining step never waits for ever for ranks that are alive.

pub(crate) mod gather;
pub(crate) mod pushed;
pub(crate) mod reduce;
#[cfg(test)]
mod simulated;

use std::ops::Range;

/// A signal word of each rank: its index among them.
pub(crate) type Word = usize;

/// A step of a program: its index.
pub(crate) type Place = usize;

/// The lane in which ranks multiply; on a GPU, the caller's stream.
pub(crate) const PRODUCTS: usize = 0;
/// The lane in which rows move.
pub(crate) const MOVES: usize = 1;
/// The lane of arrivals: waits for them, and sums of them.
pub(crate) const ARRIVALS: usize = 2;

/// Rows of the plan's matrix, and where a rank stores them: `at` is the index of their first number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rows {
    pub rows: Range<usize>,
    pub at: usize,
    /// Numbers of a row.
    pub width: usize,
}

impl Rows {
    /// The number of their elements.
    pub fn len(&self) -> usize {
        self.rows.len() * self.width
    }
}

/// The round of a word that a step waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Round {
    This,
    /// The round before this one.
    Before,
}

/// One step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Action {
    /// Waits until a rank has set this rank's word.
    Wait { from: usize, word: Word, round: Round },
    /// Sets a rank's word, after all that the lane has put there before.
    Signal { to: usize, word: Word },
    /// Copies this rank's rows from the caller's memory to where others get them.
    Keep { rows: Rows },
    /// Gets rows of a rank to the same place of this rank.
    Get { from: usize, rows: Rows },
    /// Puts rows that this rank stores to a place of another rank, and then sets its word.
    Put { to: usize, rows: Rows, at: usize, word: Word },
    /// Multiplies rows.
    Multiply { rows: Range<usize> },
    /// Multiplies rows of this rank in the caller's memory.
    MultiplyOwn { rows: Range<usize> },
    /// Multiplies rows, and adds the numbers that are stored at a place, and the bias. The caller gets the sums.
    MultiplyOnto { rows: Range<usize>, onto: usize },
    /// Puts rows of this rank from the caller's memory to the same place of another rank, and then sets its word.
    Send { to: usize, rows: Rows, word: Word },
    /// Puts sums of the caller's output to the same place of another rank, and then sets its word.
    Share { to: usize, rows: Rows, word: Word },
    /// Copies sums of the caller's output to where others get them.
    KeepSums { rows: Rows },
    /// Waits until the puts of this lane have completed.
    Quiet,
    /// Adds the numbers that are stored for these rows at each of the places, in their order, and the bias.
    Sum { rows: Rows, summands: Vec<usize>, shared: bool },
    /// Copies sums of another rank to the caller's output.
    Take { rows: Rows },
}

/// A step, and the steps that it depends on.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub lane: usize,
    pub action: Action,
    /// Steps of other lanes that must have ended before.
    pub after: Vec<Place>,
}

/// The steps of a rank in each round, and the number of lanes for them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Program {
    pub entries: Vec<Entry>,
    /// The number of lanes.
    pub lanes: usize,
}

impl Program {
    /// Adds a step after those of its lane and those in `after`.
    fn push(&mut self, lane: usize, action: Action, after: &[Place]) -> Place {
        self.lanes = self.lanes.max(lane + 1);
        self.entries.push(Entry { lane, action, after: after.to_vec() });
        self.entries.len() - 1
    }

    /// A program of one step.
    pub fn of_one(action: Action) -> Program {
        let mut program = Program::default();
        program.push(PRODUCTS, action, &[]);
        program
    }

    /// The steps of a lane, in their order.
    pub fn of_lane(&self, lane: usize) -> impl Iterator<Item = Place> + '_ {
        (0..self.entries.len()).filter(move |&place| self.entries[place].lane == lane)
    }
}

/// The other ranks, starting with the next one.
pub(crate) fn others(me: usize, ranks: usize) -> impl Iterator<Item = usize> + Clone {
    (1..ranks).map(move |distance| (me + distance) % ranks)
}
