//! Products for callers who have arrays and no plans: what all ranks pass to a call finds a plan, or makes one.

use std::collections::HashMap;

use symrail::{Runtime, Team, TeamHeap};

use crate::all_gather::AllGatherMatmul;
use crate::error::{Error, Result};
use crate::exchange::Product;
use crate::reduce::{MatmulReduce, Reduced};
use crate::shards::{Schedule, Shards};
use crate::weight::Weight;

/// The plans that a team has made. Its calls are made by all ranks together, which compare what they pass: so they find
/// the same plan, or make it together. When the heap is full, plans of before are given up.
pub struct Products<'rt> {
    heap: &'rt TeamHeap<'rt>,
    pieces: Option<usize>,
    gathers: HashMap<Shape, AllGatherMatmul<'rt>>,
    reductions: HashMap<(Shape, Reduced), MatmulReduce<'rt>>,
}

/// The product of the rows of all ranks.
#[derive(Debug, Clone, PartialEq)]
pub struct Gathered {
    /// How many rows there are.
    pub rows: usize,
    /// Their product with the rank's weight.
    pub product: Vec<f32>,
    /// The rows themselves, if they were wanted.
    pub gathered: Option<Vec<f32>>,
}

/// What a plan was made for.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Shape {
    shards: Shards,
    width: usize,
    schedule: Schedule,
}

/// What a rank passes: its rows, those of all ranks where it knows them, numbers of a row that moves, and how many
/// multiplications each of them takes part in.
struct Passed {
    own: usize,
    all: usize,
    width: usize,
    work: usize,
}

impl<'rt> Products<'rt> {
    /// None yet. Plans take memory from the heap. A shard is cut into so many pieces, with 0 it is not; without a
    /// number, as [`Schedule::choose`] says.
    #[must_use]
    pub fn new(heap: &'rt TeamHeap<'rt>, pieces: Option<usize>) -> Products<'rt> {
        Products { heap, pieces, gathers: HashMap::new(), reductions: HashMap::new() }
    }

    /// Multiplies the rows of all ranks by this rank's weight: `own` has so many `rows` of `weight.inputs` numbers, as
    /// many as this rank likes. The rows of all ranks come back, too, if they are `wanted`. Collective over the team.
    ///
    /// # Errors
    /// As for [`AllGatherMatmul::new`] and [`AllGatherMatmul::run`]; arguments of a rank that do not go together are an
    /// error on all.
    pub fn all_gather_matmul(
        &mut self,
        team: &Team<'rt>,
        (own, rows): (&[f32], usize),
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
    /// ranks. `own` is how many of the rows belong to this rank. Returns these, or all of them. Collective over the
    /// team.
    ///
    /// # Errors
    /// As for [`MatmulReduce::new`] and [`MatmulReduce::run`]; arguments of a rank that do not go together are an error
    /// on all.
    pub fn matmul_reduce(
        &mut self,
        team: &Team<'rt>,
        (rows, all, own): (&[f32], usize, usize),
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

    /// Gives the plans' memory back. Collective over the team.
    ///
    /// # Errors
    /// A peer that does not answer.
    pub fn free(&mut self, team: &Team<'rt>) -> Result<()> {
        // Ranks may do so in different orders: nobody uses a plan once all have come here.
        self.gathers.drain().try_for_each(|(_, plan)| plan.free(team))?;
        self.reductions.drain().try_for_each(|(_, plan)| plan.free(team))
    }

    /// Makes a plan; in the place of those of before, if there is no room beside them.
    fn make<P>(&mut self, team: &Team<'rt>, make: impl Fn(&'rt TeamHeap<'rt>) -> Result<P>) -> Result<P> {
        match make(self.heap) {
            Err(Error::Runtime(symrail::Error::TeamHeapFull { .. })) => {
                self.free(team)?;
                make(self.heap)
            }
            made => made,
        }
    }

    /// What all ranks pass, and how they carry it out.
    fn agree(&self, team: &Team<'_>, product: Product, fits: Result<()>, passed: &Passed) -> Result<Shape> {
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

    fn runtime(&self) -> &'rt Runtime {
        self.heap.runtime()
    }
}

/// The shards of all ranks and the most multiplications of one of their rows, if what they pass is the same and the
/// arguments of all of them fit. One collective, and more only to say what differs.
pub(crate) fn agree(
    team: &Team<'_>,
    product: Product,
    fits: Result<()>,
    [own, work]: [usize; 2],
    parameters: &[(&'static str, u64)],
) -> Result<(Shards, usize)> {
    let mut all =
        vec![("whether the arguments go together", u64::from(fits.is_ok())), ("the kind of product", product as u64)];
    all.extend(parameters);
    let digest = all.iter().fold(parameters.len() as u64, |digest, (_, value)| {
        (digest.rotate_left(23) ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    });
    let gathered = team.gather(&[digest, own as u64, work as u64])?;
    let each = || gathered.chunks_exact(3);
    // All ranks see the same numbers, so that all compare what they pass, or none.
    if each().any(|of_rank| of_rank[0] != digest) {
        let compared = team.compare(product.name(), &all);
        fits?;
        compared?;
        return Err(Error::OtherRefused { pe: team.group().pe(team.group().me()), product: product.name() });
    }
    fits?;
    let rows: Vec<usize> = each().map(|of_rank| of_rank[1] as usize).collect();
    let most = each().map(|of_rank| of_rank[2] as usize).max();
    Ok((Shards::new(&rows), most.unwrap_or(0)))
}
