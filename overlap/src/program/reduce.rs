//! The programs of products that are summed over ranks: see [`reduce`](crate::reduce).

use super::{ARRIVALS, Action, MOVES, PRODUCTS, Place, Program, Round, Rows, Word, others};
use crate::product::Reduced;
use crate::shards::{Piece, Schedule, Shards};

/// A product that is summed, from the view of one rank.
#[derive(Debug, Clone)]
pub(crate) struct Reduce<'a> {
    pub shards: &'a Shards,
    /// Numbers of a row.
    pub width: usize,
    pub schedule: Schedule,
    pub reduced: Reduced,
    pub me: usize,
}

/// The number of words of each rank.
pub(crate) fn words(shards: &Shards, schedule: Schedule) -> usize {
    shards.ranks() * (1 + 2 * shards.pieces_of_a_rank(schedule))
}

/// The number of numbers that each rank stores: its product, the others' products for its shard, all sums.
pub(crate) fn numbers(shards: &Shards, width: usize, reduced: Reduced) -> usize {
    let sums = if reduced == Reduced::Everywhere { shards.rows() } else { 0 };
    (rooms(shards) + sums).saturating_mul(width)
}

/// Where an owner stores a row of the product of the rank that is `distance` before it.
pub(crate) fn summand_at(shards: &Shards, width: usize, distance: usize, row: usize) -> usize {
    (shards.rows() + (distance - 1) * shards.largest() + row) * width
}

/// The number of rows that are stored before those of all sums.
fn rooms(shards: &Shards) -> usize {
    shards.rows() + shards.ranks().saturating_sub(1) * shards.largest()
}

impl Reduce<'_> {
    /// The rank's program.
    pub fn program(&self) -> Program {
        let mut program = Program::default();
        for rank in self.others() {
            program.push(PRODUCTS, Action::Signal { to: rank, word: self.ready(self.me) }, &[]);
        }
        let unfused = self.schedule == Schedule::Unfused;
        let all = unfused.then(|| program.push(PRODUCTS, Action::Multiply { rows: 0..self.shards.rows() }, &[]));
        let multiply = |program: &mut Program, piece: &Piece| {
            all.unwrap_or_else(|| program.push(PRODUCTS, Action::Multiply { rows: piece.rows.clone() }, &[]))
        };
        for rank in self.others() {
            for piece in self.pieces(rank) {
                let made = multiply(&mut program, &piece);
                if piece.number == 0 {
                    program.push(MOVES, self.wait(rank, self.ready(rank)), &[]);
                }
                self.put_summand(&mut program, MOVES, &piece, &[made]);
            }
        }
        let own: Vec<(Piece, Place)> =
            self.pieces(self.me).map(|piece| (piece.clone(), multiply(&mut program, &piece))).collect();
        for (piece, made) in own {
            self.sum(&mut program, &piece, made);
        }
        if self.reduced == Reduced::Everywhere {
            for rank in self.others() {
                for piece in self.pieces(rank) {
                    program.push(ARRIVALS, self.wait(rank, self.summed(&piece)), &[]);
                    program.push(ARRIVALS, Action::Take { rows: self.sums(&piece) }, &[]);
                }
            }
        }
        program
    }

    /// Puts a piece of this rank's product to its owner.
    pub(super) fn put_summand(&self, program: &mut Program, lane: usize, piece: &Piece, after: &[Place]) {
        let distance = (piece.rank + self.shards.ranks() - self.me) % self.shards.ranks();
        let at = self.summand_at(distance, piece.rows.start - self.shards.of(piece.rank).start);
        let rows = Rows { at: piece.rows.start * self.width, rows: piece.rows.clone(), width: self.width };
        let put = Action::Put { to: piece.rank, rows, at, word: self.arrived(distance, piece) };
        program.push(lane, put, after);
    }

    /// Adds a piece of this rank once all ranks have sent theirs, and puts the sums to the others if they want them. A
    /// rank that has sent products of this round has already copied the sums of the one before.
    fn sum(&self, program: &mut Program, piece: &Piece, made: Place) {
        let (ranks, start) = (self.shards.ranks(), piece.rows.start - self.shards.of(self.me).start);
        let mut summands = Vec::new();
        for distance in 1..ranks {
            let from = (self.me + ranks - distance) % ranks;
            // The wait follows the product: a GPU's kernel that waited longer would occupy a multiprocessor that the
            // product needs.
            program.push(ARRIVALS, self.wait(from, self.arrived(distance, piece)), &[made]);
            summands.push(self.summand_at(distance, start));
        }
        summands.push(piece.rows.start * self.width);
        let (rows, shared) = (self.sums(piece), self.reduced == Reduced::Everywhere);
        let at = rows.at;
        let summed = program.push(ARRIVALS, Action::Sum { rows: rows.clone(), summands, shared }, &[made]);
        if !shared {
            return;
        }
        for rank in self.others() {
            let put = Action::Put { to: rank, rows: rows.clone(), at, word: self.summed(piece) };
            program.push(MOVES, put, &[summed]);
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

    /// Where an owner stores a row of the product of the rank that is `distance` before it.
    pub(super) fn summand_at(&self, distance: usize, row: usize) -> usize {
        summand_at(self.shards, self.width, distance, row)
    }

    /// The sums of a piece: where all ranks store them, if all ranks want them.
    pub(super) fn sums(&self, piece: &Piece) -> Rows {
        let at = (rooms(self.shards) + piece.rows.start) * self.width;
        Rows { rows: piece.rows.clone(), at, width: self.width }
    }

    /// The word by which a rank signals that its buffers are free for this round.
    pub(super) fn ready(&self, rank: usize) -> Word {
        rank
    }

    /// The word by which the rank that is `distance` before a piece's owner signals that its product has arrived.
    pub(super) fn arrived(&self, distance: usize, piece: &Piece) -> Word {
        self.shards.ranks() + distance * self.shards.pieces_of_a_rank(self.schedule) + piece.number
    }

    /// The word by which the owner of a piece signals that its sums have arrived.
    pub(super) fn summed(&self, piece: &Piece) -> Word {
        let pieces = self.shards.pieces_of_a_rank(self.schedule);
        self.shards.ranks() * (1 + pieces) + piece.rank * pieces + piece.number
    }
}
