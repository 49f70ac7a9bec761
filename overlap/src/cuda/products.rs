//! Products for callers who have tensors and no plans: as [`Products`](crate::Products), in the order of a stream.
//!
//! A call has two parts. The ranks agree ([`GpuProducts::agree`]), which tells how many rows the result has; then each
//! puts its round on a stream ([`GpuProducts::post`]). A round that was agreed on can be posted again, without a
//! collective.

use std::ops::Range;
use std::sync::Arc;

use symrail::kernels::cuda::{DevicePtr, Stream};
use symrail::{Runtime, Team, TeamHeap};
use symrail_cuda::cublaslt::{CublasLt, Number, Product as Multiplication};

use super::kernels::GpuKernels;
use super::plan::GpuPlan;
use super::shape::{GpuShape, Operands};
use crate::error::{Error, Result};
use crate::exchange::Product;
use crate::products::agree;
use crate::reduce::Reduced;
use crate::shards::{Schedule, Shards};
use crate::weight::Layout;

/// The plans that a team has made on GPUs. When the heap is full, plans of before are given up.
pub struct GpuProducts<'d> {
    kernels: &'d GpuKernels<'d>,
    heap: &'d TeamHeap<'d>,
    pieces: Option<usize>,
    /// Whether the proxy moves rows, once that is known.
    by_proxy: Option<bool>,
    plans: Vec<Known<'d>>,
    /// How many plans there have been.
    made: u64,
    /// Of all plans, since their rounds follow each other: it has a workspace of 32 MiB.
    lt: Option<Arc<CublasLt>>,
}

/// A plan that was made, and what for.
struct Known<'d> {
    number: u64,
    agreed: Agreed,
    plan: GpuPlan<'d>,
}

/// What all ranks have alike.
#[derive(Clone, PartialEq, Eq)]
struct Agreed {
    reduced: Option<Reduced>,
    shards: Shards,
    /// Numbers of a row that moves, and their type.
    width: usize,
    moved: Number,
    product: Number,
    schedule: Schedule,
}

/// What a rank passes to a product.
#[derive(Debug, Clone)]
pub struct GpuPassed {
    /// Who has the sums; `None` for an all-gather.
    pub reduced: Option<Reduced>,
    /// This rank's rows: of the first factor of an all-gather, of the sums of a reduction.
    pub own: usize,
    /// The rows of a reduction's first factor; for an all-gather 0, unless they are `known`.
    pub all: usize,
    /// All ranks know how many rows there are, and each has its share of them ([`Shards::split`]): then nothing is
    /// compared but when a plan is made, or under `SYMRAIL_CHECK_COLLECTIVES`.
    pub known: bool,
    /// Numbers of a row of the first factor, and of the weight.
    pub inputs: [usize; 2],
    /// Rows of the weight, by outputs.
    pub outputs: usize,
    /// Numbers of the bias.
    pub bias: Option<usize>,
    /// The types of the first factor's numbers, the weight's, and the product's and the bias's.
    pub numbers: [Number; 3],
    /// How the weight lies.
    pub layout: Layout,
    /// Where the factors are; where the result goes need not be known yet.
    pub operands: Operands,
}

/// A round that all ranks have agreed on.
#[derive(Debug, Clone)]
pub struct GpuRound {
    plan: u64,
    product: Product,
    multiplication: Multiplication,
    all: usize,
    result: usize,
}

impl GpuRound {
    /// The rows of all ranks.
    #[must_use]
    pub fn all(&self) -> usize {
        self.all
    }

    /// The rows of the result on this rank.
    #[must_use]
    pub fn result(&self) -> usize {
        self.result
    }
}

impl GpuPassed {
    fn product(&self) -> Product {
        self.reduced.map_or(Product::AllGatherMatmul, Reduced::product)
    }

    /// The shape of a plan for this.
    fn shape(&self, shards: Shards, schedule: Schedule) -> GpuShape {
        let GpuPassed { inputs: [inputs, _], outputs, numbers, layout, .. } = *self;
        GpuShape { shards, inputs, outputs, numbers, layout, schedule, chosen_for: None }
    }

    /// Whether this rank's arguments go together.
    fn check(&self, rt: &Runtime) -> Result<()> {
        let (pe, product, [of_rows, of_weight]) = (rt.my_pe(), self.product(), self.inputs);
        Error::unless_long(pe, product, "a row of the weight", of_weight, of_rows)?;
        Error::unless_long(pe, product, "the bias", self.bias.unwrap_or(self.outputs), self.outputs)?;
        self.shape(Shards::new(&[]), Schedule::Unfused).check(pe, product)
    }
}

impl<'d> GpuProducts<'d> {
    /// None yet. Plans take memory from the heap. A shard is cut into so many pieces, with 0 it is not; without a
    /// number, as [`Schedule::choose_on_gpu`] says.
    #[must_use]
    pub fn new(kernels: &'d GpuKernels<'d>, heap: &'d TeamHeap<'d>, pieces: Option<usize>) -> GpuProducts<'d> {
        GpuProducts { kernels, heap, pieces, by_proxy: None, plans: Vec::new(), made: 0, lt: None }
    }

    /// Finds a plan, or makes it. Collective over the team. Ranks compare what they pass by one collective of the host,
    /// or not at all if their shards are `known` and there is a plan.
    ///
    /// # Errors
    /// As for [`GpuAllGatherMatmul::new`](super::GpuAllGatherMatmul::new). Arguments of a rank that do not go together
    /// are an error on all that compare them; else the others wait for that rank in vain. So are those that cuBLASLt
    /// does not multiply, of which the others are told.
    pub fn agree(&mut self, team: &Team<'_>, passed: &GpuPassed) -> Result<GpuRound> {
        let (rt, product, gathers) = (self.heap.runtime(), passed.product(), passed.reduced.is_none());
        let [of_rows, _, of_product] = passed.numbers;
        let (width, moved) = if gathers { (passed.inputs[0], of_rows) } else { (passed.outputs, of_product) };
        let (me, settings) = (team.group().me() as usize, rt.settings());
        let fits = passed.check(rt);
        let shards = if passed.known && !settings.check_collectives {
            fits?;
            let shards = Shards::split(passed.all, team.group().size() as usize);
            Error::unless_long(rt.my_pe(), product, "the rank's share of the rows", passed.own, shards.of(me).len())?;
            shards
        } else {
            let parameters = [
                ("numbers of a row", width as u64),
                ("the rows of all shards", passed.all as u64),
                ("the type of numbers that move", moved as u64),
                ("the type of the product's numbers", of_product as u64),
                ("the pieces of a shard", self.pieces.map_or(0, |pieces| pieces as u64 + 1)),
            ];
            agree(team, product, fits, [passed.own, 0], &parameters)?.0
        };
        if passed.known || !gathers {
            Error::unless_long(rt.my_pe(), product, "the rows of all shards", shards.rows(), passed.all)?;
        }
        let by_proxy = match self.by_proxy {
            Some(known) => known,
            None => self.kernels.move_by_proxy(team)?,
        };
        self.by_proxy = Some(by_proxy);
        let schedule = match self.pieces {
            Some(pieces) => Schedule::in_pieces(&shards, pieces),
            None => Schedule::choose_on_gpu(&shards, width.saturating_mul(moved.bytes()), passed.reduced, by_proxy),
        };
        let agreed = Agreed { reduced: passed.reduced, shards, width, moved, product: of_product, schedule };
        let shape = passed.shape(agreed.shards.clone(), schedule);
        let all = agreed.shards.rows();
        let result = if passed.reduced == Some(Reduced::ToShards) { agreed.shards.of(me).len() } else { all };
        let place = match self.plans.iter().position(|known| known.agreed == agreed) {
            Some(place) => place,
            None => self.make(team, agreed, &shape)?,
        };
        let Known { number, plan, .. } = &mut self.plans[place];
        plan.set_multiplication(shape.multiplication());
        // cuBLASLt may refuse one rank's factors alone: the others are told.
        plan.choose(&passed.operands).inspect_err(|error| plan.give_up(error))?;
        Ok(GpuRound { plan: *number, product, multiplication: shape.multiplication(), all, result })
    }

    /// Puts a round on a stream; also, behind it, a copy of all rows to an address of the GPU, unless that is 0. The
    /// rounds of all products follow each other, on one stream or by events.
    ///
    /// # Safety
    /// As for [`GpuAllGatherMatmul::post`](super::GpuAllGatherMatmul::post), for the sizes that were agreed on; at
    /// `gathered` there is room for all rows.
    ///
    /// # Errors
    /// As there; [`Error::NoPlan`]; and what kernels have reported of rounds before.
    pub unsafe fn post(&mut self, stream: &Stream, round: &GpuRound, operands: &Operands, gathered: u64) -> Result<()> {
        let (pe, product) = (self.heap.runtime().my_pe(), round.product.name());
        let known = self.plans.iter_mut().find(|known| known.number == round.plan);
        let Known { plan, agreed, .. } = known.ok_or(Error::NoPlan { pe, product })?;
        plan.set_multiplication(round.multiplication);
        // SAFETY: the caller's promise.
        unsafe { plan.post(stream, operands) }?;
        if gathered == 0 {
            return Ok(());
        }
        // The others' rows are in the plan's memory, this rank's where the caller has them.
        let (pitch, own) = (agreed.width * agreed.moved.bytes(), agreed.shards.of(plan.group.me() as usize));
        let of_plan = |rows: &Range<usize>| plan.numbers_at + (rows.start * pitch) as u64;
        let before = 0..own.start;
        let behind = own.end..agreed.shards.rows();
        for (rows, from) in
            [(before.clone(), of_plan(&before)), (own, operands.rows), (behind.clone(), of_plan(&behind))]
        {
            let (to, bytes) = (gathered + (rows.start * pitch) as u64, (rows.len() * pitch) as u64);
            if bytes > 0 {
                // SAFETY: as above.
                unsafe { stream.copy(DevicePtr::new(to), DevicePtr::new(from), bytes) }?;
            }
        }
        Ok(())
    }

    /// Whether no round has failed so far: see [`GpuAllGatherMatmul::check`](super::GpuAllGatherMatmul::check).
    ///
    /// # Errors
    /// As there.
    pub fn check(&mut self) -> Result<()> {
        self.plans.iter_mut().try_for_each(|known| known.plan.check())
    }

    /// Gives the plans' memory back. Collective over the team.
    ///
    /// # Errors
    /// The driver's error; a peer that does not answer.
    pub fn free(&mut self, team: &Team<'_>) -> Result<()> {
        self.plans.drain(..).try_for_each(|known| known.plan.free(self.heap, team))
    }

    /// Makes a plan; in the place of those of before, if there is no room beside them.
    fn make(&mut self, team: &Team<'_>, agreed: Agreed, shape: &GpuShape) -> Result<usize> {
        let (kernels, heap, lt) = (self.kernels, self.heap, self.lt.clone());
        let make = || match agreed.reduced {
            None => GpuPlan::gather(kernels, heap, team, shape, lt.clone()),
            Some(reduced) => GpuPlan::reduce(kernels, heap, team, shape, reduced, lt.clone()),
        };
        let plan = match make() {
            Err(Error::Runtime(symrail::Error::TeamHeapFull { .. })) => {
                self.free(team)?;
                make()?
            }
            made => made?,
        };
        self.lt.get_or_insert_with(|| Arc::clone(&plan.lt));
        self.made += 1;
        self.plans.push(Known { number: self.made, agreed, plan });
        Ok(self.plans.len() - 1)
    }
}
