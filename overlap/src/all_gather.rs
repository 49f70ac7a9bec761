//! All-gather and product: the rows of all ranks, multiplied by each rank's own columns.
//!
//! Every rank has some rows of the first factor and all rows of some columns of the second one. It multiplies its own
//! rows first; meanwhile those of others come, one piece at a time.
//!
//! - [`Schedule::Direct`]: each rank gets pieces from their owner, starting behind its own rank, so that not everybody
//!   asks the same one. The owner tells that its rows are ready; who has all of them tells that it is done.
//! - [`Schedule::Ring`]: each rank puts pieces to the next one, its own and those that arrive. The next one tells first
//!   that there is room.

use std::collections::VecDeque;

use symrail::{Team, TeamHeap};

use crate::error::Result;
use crate::exchange::{Exchange, Product, Rows, Word};
use crate::shards::{Piece, Schedule, Shards};
use crate::step::{Observer, Step};
use crate::weight::Weight;

/// A product of gathered rows, made once for a shape and carried out any number of times. See the [module](self).
pub struct AllGatherMatmul<'rt> {
    exchange: Exchange<'rt>,
    shards: Shards,
    width: usize,
    schedule: Schedule,
}

impl<'rt> AllGatherMatmul<'rt> {
    /// Bytes of a team's heap that a plan takes on each rank.
    #[must_use]
    pub fn bytes(shards: &Shards, width: usize, schedule: Schedule) -> usize {
        Exchange::bytes(words(shards, schedule), shards.rows().saturating_mul(width))
    }

    /// Makes a plan for rows of `width` numbers. Collective over the team, of which each PE is a rank. All pass the
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
    ) -> Result<AllGatherMatmul<'rt>> {
        let sizes = (words(shards, schedule), shards.rows().saturating_mul(width));
        let exchange = Exchange::new(heap, team, Product::AllGatherMatmul, (shards, width, schedule), sizes)?;
        Ok(AllGatherMatmul { exchange, shards: shards.clone(), width, schedule })
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

    /// Multiplies the rows of all ranks by this rank's weight: `own` has this rank's rows, `output` takes all rows of
    /// `weight.outputs` numbers. Called by all ranks of the team.
    ///
    /// # Errors
    /// [`Error::Length`](crate::Error::Length), before anything is sent; a peer that does not answer: then the plan
    /// cannot be used again.
    pub fn run(&mut self, own: &[f32], weight: &Weight<'_>, output: &mut [f32]) -> Result<()> {
        let me = self.exchange.me();
        self.exchange.check("the rank's shard", own.len(), self.shards.of(me).len() * self.width)?;
        self.exchange.check("the output", output.len(), self.shards.rows().saturating_mul(weight.outputs))?;
        self.exchange.check_weight(weight, self.width)?;
        self.exchange.begin()?;
        match self.schedule {
            Schedule::Unfused => {
                self.offer(own)?;
                self.get_all()?;
                self.multiply(&Piece { rank: me, number: 0, rows: 0..self.shards.rows() }, weight, output);
            }
            Schedule::Direct { .. } => {
                self.offer(own)?;
                self.pull(weight, output)?;
            }
            Schedule::Ring { .. } => self.hand_on(own, weight, output)?,
        }
        self.exchange.end()
    }

    /// Copies the rows of all ranks, as they were in the last round.
    ///
    /// # Errors
    /// [`Error::Length`](crate::Error::Length).
    pub fn gathered(&self, rows: &mut [f32]) -> Result<()> {
        self.exchange.check("the gathered rows", rows.len(), self.shards.rows() * self.width)?;
        self.exchange.load(0, rows);
        Ok(())
    }

    /// Lets others get this rank's rows, once they have got those of the round before.
    fn offer(&mut self, own: &[f32]) -> Result<()> {
        let shard = self.shards.of(self.exchange.me());
        if shard.is_empty() {
            return Ok(());
        }
        for rank in self.exchange.others() {
            self.exchange.wait_for_previous(rank, self.done(rank))?;
        }
        self.exchange.store(shard.start * self.width, own);
        let ready = self.ready(self.exchange.me());
        self.exchange.others().try_for_each(|rank| self.exchange.tell(rank, ready))
    }

    /// Gets the rows of all other ranks.
    fn get_all(&mut self) -> Result<()> {
        let sources: Vec<usize> = self.exchange.others().filter(|&rank| !self.shards.of(rank).is_empty()).collect();
        for &rank in &sources {
            self.exchange.wait(rank, self.ready(rank))?;
            let rows = self.rows(&Piece { rank, number: 0, rows: self.shards.of(rank) });
            self.exchange.get(&rows, rank)?;
        }
        self.exchange.quiet()?;
        let done = self.done(self.exchange.me());
        sources.into_iter().try_for_each(|rank| self.exchange.tell(rank, done))
    }

    /// Multiplies each piece while the next one comes.
    fn pull(&mut self, weight: &Weight<'_>, output: &mut [f32]) -> Result<()> {
        let me = self.exchange.me();
        let order = std::iter::once(me).chain(self.exchange.others());
        let pieces: Vec<Piece> = order.flat_map(|rank| self.pieces(rank)).collect();
        let own = pieces.iter().take_while(|piece| piece.rank == me).count();
        // Pieces that are here, or on their way.
        let mut asked = own;
        for (i, piece) in pieces.iter().enumerate() {
            if i >= own {
                if asked == i {
                    self.exchange.wait(piece.rank, self.ready(piece.rank))?;
                    self.exchange.get(&self.rows(piece), piece.rank)?;
                    asked += 1;
                }
                self.exchange.quiet()?;
                if piece.rows.end == self.shards.of(piece.rank).end {
                    self.exchange.tell(piece.rank, self.done(me))?;
                }
            }
            if let Some(next) = pieces.get(asked)
                && asked == own.max(i + 1)
                && self.exchange.is_told(self.ready(next.rank))?
            {
                self.exchange.get(&self.rows(next), next.rank)?;
                asked += 1;
            }
            self.multiply(piece, weight, output);
        }
        Ok(())
    }

    /// Multiplies each piece while the next rank takes it and the one before sends others.
    fn hand_on(&mut self, own: &[f32], weight: &Weight<'_>, output: &mut [f32]) -> Result<()> {
        let (me, ranks) = (self.exchange.me(), self.exchange.ranks());
        let (next, before) = ((me + 1) % ranks, (me + ranks - 1) % ranks);
        self.exchange.store(self.shards.of(me).start * self.width, own);
        if ranks > 1 {
            self.exchange.tell(before, self.ready(me))?;
        }
        let mut to_send = VecDeque::new();
        for rank in (0..ranks).map(|distance| (me + ranks - distance) % ranks) {
            for piece in self.pieces(rank) {
                if rank != me {
                    // Nothing comes round before all have sent on what they have.
                    self.put_all(&mut to_send, next)?;
                    self.exchange.wait(before, self.arrived(&piece))?;
                }
                if rank != next {
                    to_send.push_back(piece.clone());
                }
                if self.exchange.is_told(self.ready(next))? {
                    self.put_all(&mut to_send, next)?;
                }
                self.multiply(&piece, weight, output);
            }
        }
        self.put_all(&mut to_send, next)
    }

    /// Puts pieces to the next rank, once it has room.
    fn put_all(&mut self, pieces: &mut VecDeque<Piece>, to: usize) -> Result<()> {
        if !pieces.is_empty() && !self.exchange.is_told(self.ready(to))? {
            self.exchange.wait(to, self.ready(to))?;
        }
        while let Some(piece) = pieces.pop_front() {
            let rows = self.rows(&piece);
            self.exchange.put(&rows, to, rows.at, self.arrived(&piece))?;
        }
        Ok(())
    }

    fn multiply(&mut self, piece: &Piece, weight: &Weight<'_>, output: &mut [f32]) {
        self.exchange.step(&Step::Multiply { rows: piece.rows.clone() });
        let (from, to) = (self.exchange.number(piece.rows.start * self.width), piece.rows.start * weight.outputs);
        // SAFETY: the rows are here, and nobody writes to them in this round any more. The lengths were checked.
        unsafe { weight.multiply(piece.rows.len(), from, output.as_mut_ptr().wrapping_add(to)) };
        weight.add_bias(output, piece.rows.clone());
    }

    fn pieces(&self, rank: usize) -> impl Iterator<Item = Piece> + use<> {
        self.shards.pieces(rank, self.schedule.piece_rows(&self.shards))
    }

    fn rows(&self, piece: &Piece) -> Rows {
        Rows { rows: piece.rows.clone(), at: piece.rows.start * self.width, width: self.width }
    }

    /// The word by which a rank tells that its rows can be got; in a ring, that it has room.
    fn ready(&self, rank: usize) -> Word {
        rank
    }

    /// The word by which a rank tells that it has got the rows.
    fn done(&self, rank: usize) -> Word {
        self.shards.ranks() + rank
    }

    /// The word by which the rank before tells that a piece has arrived.
    fn arrived(&self, piece: &Piece) -> Word {
        2 * self.shards.ranks() + piece.rank * self.shards.pieces_of_a_rank(self.schedule) + piece.number
    }
}

/// How many words a plan has.
fn words(shards: &Shards, schedule: Schedule) -> usize {
    shards.ranks() * (2 + shards.pieces_of_a_rank(schedule))
}
