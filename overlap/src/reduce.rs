//! Product and reduction: each rank has some columns of the first factor and the same rows of the second one, so that
//! its product is one summand of each number.
//!
//! Rows belong to ranks. A rank multiplies those of the others first, starting behind itself, and puts each piece to
//! its owner while it multiplies the next one; its own come last. The owner adds what has arrived between its products.
//! Sums are formed in the order in which pieces come, which is the same each time: the rank before the owner, the one
//! before that, and so on, and the owner itself. So the bits of a sum do not depend on schedules and delays.
//!
//! With [`Reduced::Everywhere`] owners put their sums to all ranks.

use std::collections::VecDeque;

use symrail::{Team, TeamHeap};

use crate::error::Result;
use crate::exchange::{Exchange, Product, Rows, Word};
use crate::shards::{Piece, Schedule, Shards};
use crate::step::{Observer, Step};
use crate::weight::Weight;

/// Who has the sums.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reduced {
    /// Each rank has those of its rows: a reduce-scatter.
    ToShards,
    /// Each rank has all: an all-reduce.
    Everywhere,
}

impl Reduced {
    pub(crate) fn product(self) -> Product {
        match self {
            Reduced::ToShards => Product::MatmulReduceScatter,
            Reduced::Everywhere => Product::MatmulAllReduce,
        }
    }
}

/// A product whose summands are on all ranks, made once for a shape and carried out any number of times. See the
/// [module](self).
pub struct MatmulReduce<'rt> {
    exchange: Exchange<'rt>,
    shards: Shards,
    width: usize,
    schedule: Schedule,
    reduced: Reduced,
}

impl<'rt> MatmulReduce<'rt> {
    /// Bytes of a team's heap that a plan takes on each rank.
    #[must_use]
    pub fn bytes(shards: &Shards, width: usize, schedule: Schedule, reduced: Reduced) -> usize {
        Exchange::bytes(words(shards, schedule), rooms(shards, reduced).saturating_mul(width))
    }

    /// Makes a plan for sums of `width` numbers a row. Collective over the team, of which each PE is a rank. All pass the
    /// same.
    ///
    /// # Errors
    /// [`ParametersDiffer`](symrail::Error::ParametersDiffer), [`TeamHeapFull`](symrail::Error::TeamHeapFull), on all
    /// ranks; a peer that does not answer.
    pub fn new(
        heap: &'rt TeamHeap<'rt>,
        team: &Team<'rt>,
        shards: &Shards,
        width: usize,
        schedule: Schedule,
        reduced: Reduced,
    ) -> Result<MatmulReduce<'rt>> {
        let sizes = (words(shards, schedule), rooms(shards, reduced).saturating_mul(width));
        let exchange = Exchange::new(heap, team, reduced.product(), (shards, width, schedule), sizes)?;
        Ok(MatmulReduce { exchange, shards: shards.clone(), width, schedule, reduced })
    }

    /// Gives the plan's memory back. Collective over the team.
    ///
    /// # Errors
    /// A peer that does not answer.
    pub fn free(self, team: &Team<'rt>) -> Result<()> {
        self.exchange.free(team)
    }

    /// Has somebody told of each step.
    pub fn observe(&mut self, observer: Option<Observer<'rt>>) {
        self.exchange.observe(observer);
    }

    /// Multiplies all rows, of `weight.inputs` numbers each, by this rank's weight, and adds the products of all ranks.
    /// `output` takes this rank's rows of the sums, or all of them. Each sum has its owner's bias. Called by all ranks of
    /// the team.
    ///
    /// # Errors
    /// [`Error::Length`](crate::Error::Length), before anything is sent; a peer that does not answer: then the plan
    /// cannot be used again.
    pub fn run(&mut self, rows: &[f32], weight: &Weight<'_>, output: &mut [f32]) -> Result<()> {
        let own = self.shards.of(self.exchange.me());
        let wanted = match self.reduced {
            Reduced::ToShards => own.clone(),
            Reduced::Everywhere => 0..self.shards.rows(),
        };
        self.exchange.check("the rank's columns", rows.len(), self.shards.rows().saturating_mul(weight.inputs))?;
        self.exchange.check("a row of the weight", weight.outputs, self.width)?;
        self.exchange.check("the output", output.len(), wanted.len() * self.width)?;
        self.exchange.check_weight(weight, weight.inputs)?;
        self.exchange.begin()?;
        for rank in self.exchange.others() {
            self.exchange.tell(rank, self.ready(self.exchange.me()))?;
        }
        let sums = &mut output[(own.start - wanted.start) * self.width..][..own.len() * self.width];
        let mut round =
            Round { added: vec![0; self.pieces(self.exchange.me()).count()], to_send: VecDeque::new(), sums };
        self.multiply_all(rows, weight, &mut round)?;
        self.put_ready(&mut round, true)?;
        self.finish(weight, &mut round)?;
        if self.reduced == Reduced::Everywhere {
            self.collect(output)?;
        }
        self.exchange.end()
    }

    /// Multiplies the rows of all ranks, and does between products what can be done without waiting.
    fn multiply_all(&mut self, rows: &[f32], weight: &Weight<'_>, round: &mut Round<'_>) -> Result<()> {
        let me = self.exchange.me();
        let order = self.exchange.others().chain([me]);
        let pieces = order.flat_map(|rank| self.pieces(rank)).collect::<Vec<_>>();
        if self.schedule == Schedule::Unfused {
            self.multiply(0..self.shards.rows(), rows, weight);
            round.to_send.extend(pieces.into_iter().filter(|piece| piece.rank != me));
            return Ok(());
        }
        for piece in pieces {
            self.multiply(piece.rows.clone(), rows, weight);
            if piece.rank != me {
                round.to_send.push_back(piece);
            }
            self.put_ready(round, false)?;
            for piece in self.pieces(me) {
                self.add_arrived(&piece, round, false)?;
            }
        }
        Ok(())
    }

    fn multiply(&mut self, rows: std::ops::Range<usize>, from: &[f32], weight: &Weight<'_>) {
        self.exchange.step(&Step::Multiply { rows: rows.clone() });
        let from = from.as_ptr().wrapping_add(rows.start * weight.inputs);
        let to = self.exchange.number(self.product_at(rows.start));
        // SAFETY: the lengths were checked. Nobody else uses the room for products, and what was put from there in the
        // round before has left.
        unsafe { weight.multiply(rows.len(), from, to) };
    }

    /// Puts pieces to their owners, if these have room; or waits until they have.
    fn put_ready(&mut self, round: &mut Round<'_>, wait: bool) -> Result<()> {
        let ranks = self.exchange.ranks();
        for _ in 0..round.to_send.len() {
            let Some(piece) = round.to_send.pop_front() else { break };
            let (to, ready) = (piece.rank, self.ready(piece.rank));
            if wait {
                self.exchange.wait(to, ready)?;
            } else if !self.exchange.is_told(ready)? {
                round.to_send.push_back(piece);
                continue;
            }
            let distance = (to + ranks - self.exchange.me()) % ranks;
            let at = self.summand_at(distance, piece.rows.start - self.shards.of(to).start);
            let rows = Rows { at: self.product_at(piece.rows.start), rows: piece.rows.clone(), width: self.width };
            self.exchange.put(&rows, to, at, self.arrived(distance, &piece))?;
        }
        Ok(())
    }

    /// Adds what has arrived of other ranks for a piece of this one, in their order; or waits for all of it.
    fn add_arrived(&mut self, piece: &Piece, round: &mut Round<'_>, wait: bool) -> Result<()> {
        let ranks = self.exchange.ranks();
        let start = piece.rows.start - self.shards.of(piece.rank).start;
        let sums = &mut round.sums[start * self.width..][..piece.rows.len() * self.width];
        while round.added[piece.number] + 1 < ranks {
            let distance = round.added[piece.number] + 1;
            let from = (piece.rank + ranks - distance) % ranks;
            let arrived = self.arrived(distance, piece);
            if wait {
                self.exchange.wait(from, arrived)?;
            } else if !self.exchange.is_told(arrived)? {
                break;
            }
            self.exchange.step(&Step::Add { from, rows: piece.rows.clone() });
            let at = self.summand_at(distance, start);
            if distance == 1 {
                self.exchange.load(at, sums);
            } else {
                self.exchange.add(at, sums);
            }
            round.added[piece.number] = distance;
        }
        Ok(())
    }

    /// Ends the sums of this rank's rows, and sends each piece to all others if they are to have it.
    fn finish(&mut self, weight: &Weight<'_>, round: &mut Round<'_>) -> Result<()> {
        let me = self.exchange.me();
        let first = self.shards.of(me).start;
        for piece in self.pieces(me) {
            self.add_arrived(&piece, round, true)?;
            let own = piece.rows.start - first..piece.rows.end - first;
            let sums = &mut round.sums[own.start * self.width..own.end * self.width];
            let product = self.product_at(piece.rows.start);
            if self.exchange.ranks() == 1 {
                self.exchange.load(product, sums);
            } else {
                self.exchange.add(product, sums);
            }
            weight.add_bias(sums, 0..own.len());
            if self.reduced == Reduced::ToShards {
                continue;
            }
            let at = self.sum_at(piece.rows.start);
            self.exchange.store(at, sums);
            for rank in self.exchange.others() {
                self.exchange.wait(rank, self.ready(rank))?;
                let rows = Rows { rows: piece.rows.clone(), at, width: self.width };
                self.exchange.put(&rows, rank, at, self.summed(&piece))?;
            }
        }
        Ok(())
    }

    /// Takes the sums of the others' rows.
    fn collect(&mut self, output: &mut [f32]) -> Result<()> {
        for rank in self.exchange.others() {
            for piece in self.pieces(rank) {
                self.exchange.wait(rank, self.summed(&piece))?;
                let to = &mut output[piece.rows.start * self.width..piece.rows.end * self.width];
                self.exchange.load(self.sum_at(piece.rows.start), to);
            }
        }
        Ok(())
    }

    fn pieces(&self, rank: usize) -> impl Iterator<Item = Piece> + use<> {
        self.shards.pieces(rank, self.schedule.piece_rows(&self.shards))
    }

    /// Where this rank keeps its product's row.
    fn product_at(&self, row: usize) -> usize {
        row * self.width
    }

    /// Where an owner keeps a row of the product of the rank that is so many before it.
    fn summand_at(&self, distance: usize, row: usize) -> usize {
        (self.shards.rows() + (distance - 1) * self.shards.largest() + row) * self.width
    }

    /// Where all ranks keep a row of the sums.
    fn sum_at(&self, row: usize) -> usize {
        (rooms(&self.shards, Reduced::ToShards) + row) * self.width
    }

    /// The word by which a rank tells that it has room for this round.
    fn ready(&self, rank: usize) -> Word {
        rank
    }

    /// The word by which the rank that is so many before a piece's owner tells that its product has arrived.
    fn arrived(&self, distance: usize, piece: &Piece) -> Word {
        self.shards.ranks() + distance * self.shards.pieces_of_a_rank(self.schedule) + piece.number
    }

    /// The word by which the owner of a piece tells that its sums have arrived.
    fn summed(&self, piece: &Piece) -> Word {
        let pieces = self.shards.pieces_of_a_rank(self.schedule);
        self.shards.ranks() * (1 + pieces) + piece.rank * pieces + piece.number
    }
}

/// What has become of a round.
struct Round<'a> {
    /// For each piece of this rank, how many others' products were added.
    added: Vec<usize>,
    /// Pieces whose owners have not been asked for room, or had none.
    to_send: VecDeque<Piece>,
    /// This rank's rows of the sums.
    sums: &'a mut [f32],
}

/// How many words a plan has.
fn words(shards: &Shards, schedule: Schedule) -> usize {
    shards.ranks() * (1 + 2 * shards.pieces_of_a_rank(schedule))
}

/// How many rows there is room for: this rank's product, the others' for its shard, all sums.
fn rooms(shards: &Shards, reduced: Reduced) -> usize {
    let sums = if reduced == Reduced::Everywhere { shards.rows() } else { 0 };
    shards.rows() + shards.ranks().saturating_sub(1) * shards.largest() + sums
}
