//! All-gather and product: the rows of all ranks, multiplied by each rank's own columns.
//!
//! Every rank has some rows of the first factor and all rows of some columns of the second one. A rank multiplies its
//! own rows first. Meanwhile the rows of the others arrive, one piece at a time.
//!
//! - [`Schedule::Direct`]: each rank gets pieces from their owner. It starts with the rank after itself, so that the
//!   ranks do not all read from the same owner. The owner signals that its rows are ready. A rank that has got all of
//!   them signals that it is done.
//! - [`Schedule::Ring`]: each rank puts its own pieces and those that arrive to the next rank. The next rank first
//!   signals that its buffer is free.

use symrail::{Team, TeamHeap};

use crate::error::Result;
use crate::exchange::{Exchange, Geometry, Sizes};
use crate::host;
use crate::product::Product;
use crate::program::gather::{Gather, numbers, words};
use crate::program::{Action, Program};
use crate::shards::{Schedule, Shards};
use crate::step::Observer;
use crate::weight::Weight;

/// A product of gathered rows. A plan is made once for a shape and runs any number of times. See the [module](self).
pub struct AllGatherMatmul {
    exchange: Exchange,
    shards: Shards,
    width: usize,
    program: Program,
}

impl AllGatherMatmul {
    /// Bytes of the team's heap that a plan needs on each rank.
    #[must_use]
    pub fn bytes(shards: &Shards, width: usize, schedule: Schedule) -> usize {
        Exchange::bytes(words(shards, schedule), numbers(shards, width))
    }

    /// Makes a plan for rows of `width` numbers. Collective over the team; each PE of the team is a rank. All ranks
    /// pass the same arguments.
    ///
    /// # Errors
    /// [`ParametersDiffer`](symrail::Error::ParametersDiffer) and [`TeamHeapFull`](symrail::Error::TeamHeapFull), on
    /// all ranks; an error that names a peer that does not answer.
    pub fn new(
        heap: &TeamHeap,
        team: &Team,
        shards: &Shards,
        width: usize,
        schedule: Schedule,
    ) -> Result<AllGatherMatmul> {
        let sizes = Sizes { words: words(shards, schedule), numbers: numbers(shards, width) };
        let exchange =
            Exchange::new(heap, team, Product::AllGatherMatmul, Geometry { shards, width, schedule }, sizes)?;
        let program = Gather { shards, width, schedule, me: exchange.me() }.program();
        Ok(AllGatherMatmul { exchange, shards: shards.clone(), width, program })
    }

    /// Returns the plan's memory to the heap. Collective over the team.
    ///
    /// # Errors
    /// An error that names a peer that does not answer.
    pub fn free(self, team: &Team) -> Result<()> {
        self.exchange.free(team)
    }

    /// Sets the function that the plan calls before each step.
    pub fn observe(&mut self, observer: Option<Observer>) {
        self.exchange.observe(observer);
    }

    /// Multiplies the rows of all ranks by this rank's weight. `own` holds this rank's rows; `output` receives all
    /// rows, of `weight.outputs` numbers each. All ranks of the team call it.
    ///
    /// # Errors
    /// [`Error::Length`](crate::Error::Length), before anything is sent. If a peer does not answer, an error names it,
    /// and the plan cannot be used again.
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
                // SAFETY: the rows have arrived, and no rank writes to them again in this round. The lengths were
                // checked.
                unsafe { weight.multiply(rows.len(), from, output.as_mut_ptr().wrapping_add(to)) };
                weight.add_bias(output, rows.clone());
            }
            _ => {}
        })
    }

    /// Copies the rows of all ranks as they were in the last round.
    ///
    /// # Errors
    /// [`Error::Length`](crate::Error::Length).
    pub fn gathered(&self, rows: &mut [f32]) -> Result<()> {
        self.exchange.check("the gathered rows", rows.len(), self.shards.rows() * self.width)?;
        self.exchange.load(0, rows);
        Ok(())
    }
}
