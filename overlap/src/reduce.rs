//! Product and reduction: each rank has some columns of the first factor and the same rows of the second one. So its
//! product is one summand of each number.
//!
//! Each row belongs to a rank. A rank multiplies the rows of the others first, starting with the rank after itself, and
//! puts each piece to its owner while it multiplies the next one. Its own rows come last. The owner adds a piece
//! between its products, once all ranks have multiplied it.
//!
//! The owner forms each sum in an order that is the same each time: the product of the rank before the owner, of the
//! one before that, and so on, and its own. So the bits of a sum do not depend on schedules and delays.
//!
//! With [`Reduced::Everywhere`] owners put their sums to all ranks.

use symrail::{Team, TeamHeap};

use crate::error::Result;
use crate::exchange::{Exchange, Geometry, Sizes};
use crate::host;
use crate::product::Reduced;
use crate::program::reduce::{Reduce, numbers, words};
use crate::program::{Action, Program};
use crate::shards::{Schedule, Shards};
use crate::step::Observer;
use crate::weight::Weight;

/// A product whose summands are on all ranks. A plan is made once for a shape and runs any number of times. See the
/// [module](self).
pub struct MatmulReduce {
    exchange: Exchange,
    shards: Shards,
    width: usize,
    reduced: Reduced,
    program: Program,
}

impl MatmulReduce {
    /// Bytes of the team's heap that a plan needs on each rank.
    #[must_use]
    pub fn bytes(shards: &Shards, width: usize, schedule: Schedule, reduced: Reduced) -> usize {
        Exchange::bytes(words(shards, schedule), numbers(shards, width, reduced))
    }

    /// Makes a plan for sums of `width` numbers a row. Collective over the team; each PE of the team is a rank. All
    /// ranks pass the same arguments.
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
        reduced: Reduced,
    ) -> Result<MatmulReduce> {
        let sizes = Sizes { words: words(shards, schedule), numbers: numbers(shards, width, reduced) };
        let exchange = Exchange::new(heap, team, reduced.product(), Geometry { shards, width, schedule }, sizes)?;
        let program = Reduce { shards, width, schedule, reduced, me: exchange.me() }.program();
        Ok(MatmulReduce { exchange, shards: shards.clone(), width, reduced, program })
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

    /// Multiplies all rows (`values`), of `weight.inputs` numbers each, by this rank's weight, and adds the products of
    /// all ranks. `output` receives this rank's rows of the sums, or all of them. The owner of a sum adds its own bias.
    /// All ranks of the team call it.
    ///
    /// # Errors
    /// [`Error::Length`](crate::Error::Length), before anything is sent. If a peer does not answer, an error names it,
    /// and the plan cannot be used again.
    pub fn run(&mut self, values: &[f32], weight: &Weight<'_>, output: &mut [f32]) -> Result<()> {
        let wanted = match self.reduced {
            Reduced::ToShards => self.shards.of(self.exchange.me()),
            Reduced::Everywhere => 0..self.shards.rows(),
        };
        self.exchange.check("the rank's columns", values.len(), self.shards.rows().saturating_mul(weight.inputs))?;
        self.exchange.check("a row of the weight", weight.outputs, self.width)?;
        self.exchange.check("the output", output.len(), wanted.len() * self.width)?;
        self.exchange.check_weight(weight, weight.inputs)?;
        let (width, first) = (self.width, wanted.start);
        host::carry_out(&mut self.exchange, &self.program, |exchange, action| match action {
            Action::Multiply { rows } => {
                let from = values.as_ptr().wrapping_add(rows.start * weight.inputs);
                let to = exchange.number(rows.start * width);
                // SAFETY: the lengths were checked. No other rank uses the memory for products, and the puts from there
                // in the round before have completed.
                unsafe { weight.multiply(rows.len(), from, to) };
            }
            Action::Sum { rows, summands, shared } => {
                let sums = &mut output[(rows.rows.start - first) * width..(rows.rows.end - first) * width];
                let mut places = summands.iter();
                places.by_ref().take(1).for_each(|&at| exchange.load(at, sums));
                places.for_each(|&at| exchange.add(at, sums));
                weight.add_bias(sums, 0..rows.rows.len());
                if *shared {
                    exchange.store(rows.at, sums);
                }
            }
            Action::Take { rows } => {
                exchange.load(rows.at, &mut output[(rows.rows.start - first) * width..(rows.rows.end - first) * width]);
            }
            _ => {}
        })
    }
}
