//! What a rank does in a round: steps in lanes. Pure; the host and GPUs carry them out.
//!
//! A lane is a queue: its steps are done one after the other. A GPU has a stream for each lane, the host one thread for
//! all of them. A step that needs another lane's says so ([`Entry::after`]), as an event of a stream does.
//!
//! Steps stand in an order in which a rank can do them all one by one, whatever it has to wait for, if the other ranks
//! do so too. Who waits for the first step that is left therefore never waits for ever for ranks that are alive.

pub(crate) mod gather;
pub(crate) mod pushed;
pub(crate) mod reduce;
#[cfg(test)]
mod simulated;

use std::ops::Range;

/// A word of each rank: its place among them.
pub(crate) type Word = usize;

/// A step of a program: its place.
pub(crate) type Place = usize;

/// The lane in which ranks multiply: on a GPU, the caller's stream.
pub(crate) const PRODUCTS: usize = 0;
/// The lane in which rows move.
pub(crate) const MOVES: usize = 1;
/// The lane of what arrives: waits for it, and sums of it.
pub(crate) const ARRIVALS: usize = 2;

/// Rows of the plan's matrix, and where a rank keeps them: their first number, in numbers from the first one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rows {
    pub rows: Range<usize>,
    pub at: usize,
    /// Numbers of a row.
    pub width: usize,
}

impl Rows {
    /// How many numbers they have.
    pub fn len(&self) -> usize {
        self.rows.len() * self.width
    }
}

/// The round of which a word is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Round {
    This,
    /// The one before this.
    Before,
}

/// One step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Action {
    /// Waits until a rank has told this one's word.
    Wait { from: usize, word: Word, round: Round },
    /// Tells a rank's word, behind all that the lane has put there before.
    Tell { to: usize, word: Word },
    /// Keeps this rank's rows, which the caller has, where others get them.
    Keep { rows: Rows },
    /// Gets rows of a rank to the same place here.
    Get { from: usize, rows: Rows },
    /// Puts rows that this rank keeps to a place of another one, and then tells its word.
    Put { to: usize, rows: Rows, at: usize, word: Word },
    /// Multiplies rows.
    Multiply { rows: Range<usize> },
    /// Multiplies rows of this rank that are where the caller has them.
    MultiplyOwn { rows: Range<usize> },
    /// Multiplies rows and adds what is kept for them at a place, and the bias: the caller gets the sums.
    MultiplyOnto { rows: Range<usize>, onto: usize },
    /// Puts rows of this rank that the caller has to the same place of another one, and then tells its word.
    Send { to: usize, rows: Rows, word: Word },
    /// The same with sums that the caller has got.
    Share { to: usize, rows: Rows, word: Word },
    /// Keeps sums that the caller has got.
    KeepSums { rows: Rows },
    /// Waits until what this lane has put has left.
    Settle,
    /// Adds numbers that are kept for these rows at each of the places, in their order, and the bias.
    Sum { rows: Rows, summands: Vec<usize>, shared: bool },
    /// Copies sums of another rank to the caller's.
    Take { rows: Rows },
}

/// A step, and when it can be done.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub lane: usize,
    pub action: Action,
    /// Steps of other lanes that have to have ended.
    pub after: Vec<Place>,
}

/// What a rank does in each round, and what it needs for it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Program {
    pub entries: Vec<Entry>,
    /// How many lanes there are.
    pub lanes: usize,
}

impl Program {
    /// Adds a step, behind those of its lane and others.
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

/// The other ranks, from the next one on.
pub(crate) fn others(me: usize, ranks: usize) -> impl Iterator<Item = usize> + Clone {
    (1..ranks).map(move |distance| (me + distance) % ranks)
}
