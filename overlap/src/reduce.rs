//! Product and reduction: each rank has some columns of the first factor and the same rows of the second one, so that
//! its product is one summand of each number.
//!
//! Rows belong to ranks. A rank multiplies those of the others first, starting behind itself, and puts each piece to
//! its owner while it multiplies the next one; its own come last. The owner adds a piece once it has been multiplied by
//! all, between its products.
//! Sums are formed in the order in which pieces come, which is the same each time: the rank before the owner, the one
//! before that, and so on, and the owner itself. So the bits of a sum do not depend on schedules and delays.
//!
//! With [`Reduced::Everywhere`] owners put their sums to all ranks.

use symrail::{Team, TeamHeap};

use crate::error::Result;
use crate::exchange::{Exchange, Product};
use crate::host;
use crate::program::reduce::{Reduce, numbers, words};
use crate::program::{Action, Program};
use crate::shards::{Schedule, Shards};
use crate::step::Observer;
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
    reduced: Reduced,
    program: Program,
}

impl<'rt> MatmulReduce<'rt> {
    /// Bytes of a team's heap that a plan takes on each rank.
    #[must_use]
    pub fn bytes(shards: &Shards, width: usize, schedule: Schedule, reduced: Reduced) -> usize {
        Exchange::bytes(words(shards, schedule), numbers(shards, width, reduced))
    }

    /// Makes a plan for sums of `width` numbers a row. Collective over the team, of which each PE is a rank. All pass
    /// the same.
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
        let sizes = (words(shards, schedule), numbers(shards, width, reduced));
        let exchange = Exchange::new(heap, team, reduced.product(), (shards, width, schedule), sizes)?;
        let program = Reduce { shards, width, schedule, reduced, me: exchange.me() }.program();
        Ok(MatmulReduce { exchange, shards: shards.clone(), width, reduced, program })
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

    /// Multiplies all rows (`values`), of `weight.inputs` numbers each, by this rank's weight, and adds the products of
    /// all ranks. `output` takes this rank's rows of the sums, or all of them. Each sum has its owner's bias. Called by
    /// all ranks of the team.
    ///
    /// # Errors
    /// [`Error::Length`](crate::Error::Length), before anything is sent; a peer that does not answer: then the plan
    /// cannot be used again.
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
                // SAFETY: the lengths were checked. Nobody else uses the room for products, and what was put from there
                // in the round before has left.
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
