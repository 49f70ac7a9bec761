//! All-gather and product: the rows of all ranks, multiplied by each rank's own columns.
//!
//! Every rank has some rows of the first factor and all rows of some columns of the second one. It multiplies its own
//! rows first; meanwhile those of others come, one piece at a time.
//!
//! - [`Schedule::Direct`]: each rank gets pieces from their owner, starting behind its own rank, so that not everybody
//!   asks the same one. The owner tells that its rows are ready; who has all of them tells that it is done.
//! - [`Schedule::Ring`]: each rank puts pieces to the next one, its own and those that arrive. The next one tells first
//!   that there is room.

use symrail::{Team, TeamHeap};

use crate::error::Result;
use crate::exchange::{Exchange, Product};
use crate::host;
use crate::program::gather::{Gather, numbers, words};
use crate::program::{Action, Program};
use crate::shards::{Schedule, Shards};
use crate::step::Observer;
use crate::weight::Weight;

/// A product of gathered rows, made once for a shape and carried out any number of times. See the [module](self).
pub struct AllGatherMatmul<'rt> {
    exchange: Exchange<'rt>,
    shards: Shards,
    width: usize,
    program: Program,
}

impl<'rt> AllGatherMatmul<'rt> {
    /// Bytes of a team's heap that a plan takes on each rank.
    #[must_use]
    pub fn bytes(shards: &Shards, width: usize, schedule: Schedule) -> usize {
        Exchange::bytes(words(shards, schedule), numbers(shards, width))
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
        let sizes = (words(shards, schedule), numbers(shards, width));
        let exchange = Exchange::new(heap, team, Product::AllGatherMatmul, (shards, width, schedule), sizes)?;
        let program = Gather { shards, width, schedule, me: exchange.me() }.program();
        Ok(AllGatherMatmul { exchange, shards: shards.clone(), width, program })
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
        let width = self.width;
        host::carry_out(&mut self.exchange, &self.program, |exchange, action| match action {
            Action::Keep { rows } => exchange.store(rows.at, own),
            Action::Multiply { rows } => {
                let (from, to) = (exchange.number(rows.start * width), rows.start * weight.outputs);
                // SAFETY: the rows are here, and nobody writes to them in this round any more. The lengths were
                // checked.
                unsafe { weight.multiply(rows.len(), from, output.as_mut_ptr().wrapping_add(to)) };
                weight.add_bias(output, rows.clone());
            }
            _ => {}
        })
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
}
