//! Products for callers that have arrays and no plans: the arguments of a call select a plan, or a new one is made.

use std::collections::BTreeMap;

use symrail::{Runtime, Team, TeamHeap};

use crate::all_gather::AllGatherMatmul;
use crate::error::{Error, Result};
use crate::product::{Product, Reduced};
use crate::reduce::MatmulReduce;
use crate::shards::{Schedule, Shards};
use crate::weight::Weight;

/// The plans that a team has made. All ranks call it together and compare their arguments, so that they find the same
/// plan or make it together. When the heap is full, earlier plans are freed.
pub struct Products {
    pieces: Option<usize>,
    // In an order that is the same on all ranks, which free them together.
    gathers: BTreeMap<Shape, AllGatherMatmul>,
    reductions: BTreeMap<(Shape, Reduced), MatmulReduce>,
    heap: TeamHeap,
}

/// The product of the rows of all ranks.
#[derive(Debug, Clone, PartialEq)]
pub struct Gathered {
    /// The number of rows of all ranks.
    pub rows: usize,
    /// Their product with the rank's weight.
    pub product: Vec<f32>,
    /// The rows themselves, if the caller wanted them.
    pub gathered: Option<Vec<f32>>,
}

/// The parameters that a plan was made for.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Shape {
    shards: Shards,
    width: usize,
    schedule: Schedule,
}

/// The arguments of a rank: its rows, those of all ranks where it knows them, the numbers of a row that moves, and the
/// number of multiplications that each of these numbers takes part in.
struct Passed {
    own: usize,
    all: usize,
    width: usize,
    work: usize,
}

impl Products {
    /// Starts without plans. Plans allocate from the heap. `pieces` is the number of pieces of a shard; with 0 a shard
    /// is not cut. Without a number, [`Schedule::choose`] decides.
    #[must_use]
    pub fn new(heap: &TeamHeap, pieces: Option<usize>) -> Products {
        Products { heap: heap.clone(), pieces, gathers: BTreeMap::new(), reductions: BTreeMap::new() }
    }

    /// Multiplies the rows of all ranks by this rank's weight. `own` has `rows` rows of `weight.inputs` numbers; each
    /// rank may pass any number of rows. The rows of all ranks are returned, too, if they are `wanted`. Collective over
    /// the team.
    ///
    /// # Errors
    /// As for [`AllGatherMatmul::new`] and [`AllGatherMatmul::run`]. If the arguments of one rank do not match each
    /// other, all ranks get an error.
    pub fn all_gather_matmul(
        &mut self,
        team: &Team,
        own: &[f32],
        rows: usize,
        weight: &Weight<'_>,
        wanted: bool,
    ) -> Result<Gathered> {
        let (pe, product) = (self.runtime().my_pe(), Product::AllGatherMatmul);
        let fits = Error::unless_long(pe, product, "the rank's shard", own.len(), rows.saturating_mul(weight.inputs));
        let fits = fits.and_then(|()| weight.check(pe, product, weight.inputs));
        let passed = Passed { own: rows, all: 0, width: weight.inputs, work: weight.outputs };
        let shape = self.agree(team, product, fits, &passed)?;
        let mut plan = match self.gathers.remove(&shape) {
            Some(plan) => plan,
            None => {
                self.make(team, |heap| AllGatherMatmul::new(heap, team, &shape.shards, shape.width, shape.schedule))?
            }
        };
        let rows = shape.shards.rows();
        let mut product = vec![0.0; rows * weight.outputs];
        let mut gathered = wanted.then(|| vec![0.0; rows * weight.inputs]);
        let done = plan.run(own, weight, &mut product);
        let loaded = gathered.as_mut().map_or(Ok(()), |rows| plan.gathered(rows));
        self.gathers.insert(shape, plan);
        done.and(loaded).map(|()| Gathered { rows, product, gathered })
    }

    /// Multiplies `all` rows, of `weight.inputs` numbers each, by this rank's weight, and adds the products of all
    /// ranks. `own` is how many of the rows belong to this rank. Returns the sums of these rows, or of all rows.
    /// Collective over the team.
    ///
    /// # Errors
    /// As for [`MatmulReduce::new`] and [`MatmulReduce::run`]. If the arguments of one rank do not match each other,
    /// all ranks get an error.
    pub fn matmul_reduce(
        &mut self,
        team: &Team,
        rows: &[f32],
        all: usize,
        own: usize,
        weight: &Weight<'_>,
        reduced: Reduced,
    ) -> Result<Vec<f32>> {
        let (pe, product) = (self.runtime().my_pe(), reduced.product());
        let fits = Error::unless_long(pe, product, "the rank's columns", rows.len(), all.saturating_mul(weight.inputs));
        let fits = fits.and_then(|()| weight.check(pe, product, weight.inputs));
        let shape =
            self.agree(team, product, fits, &Passed { own, all, width: weight.outputs, work: weight.inputs })?;
        let key = (shape, reduced);
        let shape = &key.0;
        Error::unless_long(pe, product, "the rows of all shards", shape.shards.rows(), all)?;
        let mut plan = match self.reductions.remove(&key) {
            Some(plan) => plan,
            None => self.make(team, |heap| {
                MatmulReduce::new(heap, team, &shape.shards, shape.width, shape.schedule, reduced)
            })?,
        };
        let mut output = vec![0.0; if reduced == Reduced::ToShards { own } else { all } * weight.outputs];
        let done = plan.run(rows, weight, &mut output);
        self.reductions.insert(key, plan);
        done.map(|()| output)
    }

    /// Makes no product, and lets all ranks know: the arguments of this one were refused before it could make the call,
    /// for a product whose sums are `reduced`, or for the product of all rows. Collective over the team.
    ///
    /// # Errors
    /// A peer that does not answer.
    pub fn refuse(&self, team: &Team, reduced: Option<Reduced>) -> Result<()> {
        let product = reduced.map_or(Product::AllGatherMatmul, Reduced::product);
        let refused = Error::Refused { pe: self.runtime().my_pe(), product: product.name() };
        match self.agree(team, product, Err(refused), &Passed { own: 0, all: 0, width: 0, work: 0 }) {
            Err(Error::Refused { .. }) => Ok(()),
            told => told.map(drop),
        }
    }

    /// Returns the plans' memory to the heap. Collective over the team.
    ///
    /// # Errors
    /// An error that names a peer that does not answer.
    pub fn free(&mut self, team: &Team) -> Result<()> {
        std::mem::take(&mut self.gathers).into_values().try_for_each(|plan| plan.free(team))?;
        std::mem::take(&mut self.reductions).into_values().try_for_each(|plan| plan.free(team))
    }

    /// Makes a plan. If the heap has no space for it beside the earlier plans, frees these first.
    fn make<P>(&mut self, team: &Team, make: impl Fn(&TeamHeap) -> Result<P>) -> Result<P> {
        match make(&self.heap) {
            Err(Error::Runtime(symrail::Error::TeamHeapFull { .. })) => {
                self.free(team)?;
                make(&self.heap)
            }
            made => made,
        }
    }

    /// Agrees on the shape and the schedule of all ranks.
    fn agree(&self, team: &Team, product: Product, fits: Result<()>, passed: &Passed) -> Result<Shape> {
        let parameters = [
            ("numbers of a row", passed.width as u64),
            ("the rows of all shards", passed.all as u64),
            ("the pieces of a shard", self.pieces.map_or(0, |pieces| pieces as u64 + 1)),
        ];
        let (shards, work) = agree(team, product, fits, [passed.own, passed.work], &parameters)?;
        let schedule = match self.pieces {
            Some(pieces) => Schedule::in_pieces(&shards, pieces),
            None => Schedule::choose(&shards, passed.width, work),
        };
        Ok(Shape { shards, width: passed.width, schedule })
    }

    fn runtime(&self) -> &Runtime {
        self.heap.runtime()
    }
}

/// The shards of all ranks and the most multiplications of one of their rows, if the ranks pass the same arguments and
/// each rank's arguments match each other. Uses one collective, and more only to report what differs.
pub(crate) fn agree(
    team: &Team,
    product: Product,
    fits: Result<()>,
    [own, work]: [usize; 2],
    parameters: &[(&'static str, u64)],
) -> Result<(Shards, usize)> {
    let all = [&[("the kind of product", product as u64)], parameters].concat();
    let gathered = team.compare_and_gather(product.name(), fits, &all, &[own as u64, work as u64])?;
    let each = || gathered.chunks_exact(2);
    let rows: Vec<usize> = each().map(|of_rank| of_rank[0] as usize).collect();
    let most = each().map(|of_rank| of_rank[1] as usize).max();
    Ok((Shards::new(&rows), most.unwrap_or(0)))
}
