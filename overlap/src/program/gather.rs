//! The programs of products of gathered rows: see [`all_gather`](crate::all_gather).

use super::{ARRIVALS, Action, MOVES, PRODUCTS, Place, Program, Round, Rows, Word, others};
use crate::shards::{Piece, Schedule, Shards};

/// A product of gathered rows from the view of one rank.
#[derive(Debug, Clone)]
pub(crate) struct Gather<'a> {
    pub shards: &'a Shards,
    /// Numbers of a row.
    pub width: usize,
    pub schedule: Schedule,
    pub me: usize,
}

/// The number of words of each rank.
pub(crate) fn words(shards: &Shards, schedule: Schedule) -> usize {
    shards.ranks() * (2 + shards.pieces_of_a_rank(schedule))
}

/// The number of numbers that each rank stores: all rows.
pub(crate) fn numbers(shards: &Shards, width: usize) -> usize {
    shards.rows().saturating_mul(width)
}

impl Gather<'_> {
    /// The rank's program.
    pub fn program(&self) -> Program {
        let mut program = Program::default();
        match self.schedule {
            Schedule::Unfused => self.unfused(&mut program),
            Schedule::Direct { .. } => self.direct(&mut program),
            Schedule::Ring { .. } => self.ring(&mut program),
        }
        program
    }

    /// Gets the rows of each rank in a lane of their own, and multiplies all rows at once.
    fn unfused(&self, program: &mut Program) {
        let mut here: Vec<Place> = Vec::new();
        self.offer(program);
        let sources = self.others().filter(|&rank| !self.shards.of(rank).is_empty());
        for (i, rank) in sources.enumerate() {
            let lane = MOVES + i;
            program.push(lane, self.wait(rank, self.ready(rank)), &[]);
            here.push(program.push(lane, Action::Get { from: rank, rows: self.rows(self.shards.of(rank)) }, &[]));
            program.push(lane, Action::Signal { to: rank, word: self.done(self.me) }, &[]);
        }
        program.push(PRODUCTS, Action::Multiply { rows: 0..self.shards.rows() }, &here);
    }

    /// Gets each piece while the one before it is multiplied.
    fn direct(&self, program: &mut Program) {
        self.offer(program);
        for piece in self.pieces(self.me) {
            program.push(PRODUCTS, Action::Multiply { rows: piece.rows }, &[]);
        }
        for rank in self.others() {
            for piece in self.pieces(rank) {
                if piece.number == 0 {
                    program.push(MOVES, self.wait(rank, self.ready(rank)), &[]);
                }
                let get = Action::Get { from: rank, rows: self.rows(piece.rows.clone()) };
                let here = program.push(MOVES, get, &[]);
                if piece.rows.end == self.shards.of(rank).end {
                    program.push(MOVES, Action::Signal { to: rank, word: self.done(self.me) }, &[]);
                }
                program.push(PRODUCTS, Action::Multiply { rows: piece.rows }, &[here]);
            }
        }
    }

    /// Multiplies each piece while the next rank gets it and the rank before sends others.
    fn ring(&self, program: &mut Program) {
        let ranks = self.shards.ranks();
        let (next, before) = ((self.me + 1) % ranks, (self.me + ranks - 1) % ranks);
        let own = self.shards.of(self.me);
        let kept = program.push(PRODUCTS, Action::Keep { rows: self.rows(own) }, &[]);
        if ranks > 1 {
            program.push(PRODUCTS, Action::Signal { to: before, word: self.ready(self.me) }, &[]);
            program.push(MOVES, self.wait(next, self.ready(next)), &[kept]);
        }
        for rank in (0..ranks).map(|distance| (self.me + ranks - distance) % ranks) {
            for piece in self.pieces(rank) {
                let mut here = Vec::new();
                if rank != self.me {
                    here.push(program.push(ARRIVALS, self.wait(before, self.arrived(&piece)), &[]));
                }
                // The rank before a piece's owner does not send the piece on, since the owner has it.
                if rank != next {
                    let (rows, word) = (self.rows(piece.rows.clone()), self.arrived(&piece));
                    let at = rows.at;
                    program.push(MOVES, Action::Put { to: next, rows, at, word }, &here);
                }
                program.push(PRODUCTS, Action::Multiply { rows: piece.rows }, &here);
            }
        }
    }

    /// Lets others get this rank's rows, once they have got those of the round before.
    fn offer(&self, program: &mut Program) {
        let own = self.shards.of(self.me);
        if own.is_empty() {
            return;
        }
        for rank in self.others() {
            let word = self.done(rank);
            program.push(PRODUCTS, Action::Wait { from: rank, word, round: Round::Before }, &[]);
        }
        program.push(PRODUCTS, Action::Keep { rows: self.rows(own) }, &[]);
        for rank in self.others() {
            program.push(PRODUCTS, Action::Signal { to: rank, word: self.ready(self.me) }, &[]);
        }
    }

    pub(super) fn wait(&self, from: usize, word: Word) -> Action {
        Action::Wait { from, word, round: Round::This }
    }

    pub(super) fn others(&self) -> impl Iterator<Item = usize> + use<> {
        others(self.me, self.shards.ranks())
    }

    pub(super) fn pieces(&self, rank: usize) -> impl Iterator<Item = Piece> + use<> {
        self.shards.pieces(rank, self.schedule.piece_rows(self.shards))
    }

    pub(super) fn rows(&self, rows: std::ops::Range<usize>) -> Rows {
        Rows { at: rows.start * self.width, rows, width: self.width }
    }

    /// The word by which a rank signals that its rows can be got; in a ring, that its buffer is free.
    fn ready(&self, rank: usize) -> Word {
        rank
    }

    /// The word by which a rank signals that it has got the rows.
    pub(super) fn done(&self, rank: usize) -> Word {
        self.shards.ranks() + rank
    }

    /// The word by which the rank before signals that a piece has arrived.
    pub(super) fn arrived(&self, piece: &Piece) -> Word {
        2 * self.shards.ranks() + piece.rank * self.shards.pieces_of_a_rank(self.schedule) + piece.number
    }
}
