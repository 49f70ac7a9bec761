//! Products for callers that have tensors and no plans: like [`Products`](crate::Products), in stream order.
//!
//! A call has two parts. The ranks agree ([`GpuProducts::agree`]), which returns how many rows the result has. Then
//! each rank enqueues its round on a stream ([`GpuProducts::post`]). A round that the ranks agreed on can be enqueued
//! again without a collective.

use std::ops::Range;
use std::sync::Arc;

use symrail::kernels::cuda::{DevicePtr, Stream};
use symrail::{Runtime, Team, TeamHeap};
use symrail_core::DataType;
use symrail_cuda::cublaslt::{CublasLt, Product as Multiplication};

use super::kernels::GpuKernels;
use super::plan::GpuPlan;
use super::shape::{GpuShape, Operands};
use crate::error::{Error, Result};
use crate::product::{Product, Reduced};
use crate::products::agree;
use crate::shards::{Schedule, Shards};
use crate::weight::Layout;

/// The plans that a team has made on GPUs. When the heap is full, earlier plans are freed, but not those of captured
/// rounds: a graph may be replayed at any time, and its kernels use the plan's memory here and at the other ranks.
pub struct GpuProducts {
    pieces: Option<usize>,
    /// Whether the proxy moves rows, once a call has found out.
    by_proxy: Option<bool>,
    plans: Vec<Known>,
    /// How many plans this has made.
    made: u64,
    /// Shared by all plans, since their rounds run one after the other: its workspace is 32 MiB.
    lt: Option<Arc<CublasLt>>,
    kernels: GpuKernels,
    heap: TeamHeap,
}

/// A plan, and the parameters that it was made for.
struct Known {
    number: u64,
    agreed: Agreed,
    schedule: Schedule,
    plan: GpuPlan,
    /// Whether this rank has captured a round.
    captured: bool,
}

/// The parameters that are the same on all ranks.
#[derive(Clone, PartialEq, Eq)]
struct Agreed {
    reduced: Option<Reduced>,
    shards: Shards,
    /// Numbers of a row that moves, and their type.
    width: usize,
    moved: DataType,
    product: DataType,
}

/// The arguments of a rank.
#[derive(Debug, Clone)]
pub struct GpuPassed {
    /// The ranks that get the sums; `None` for an all-gather.
    pub reduced: Option<Reduced>,
    /// The number of this rank's rows: of the first factor of an all-gather, of the sums of a reduction.
    pub own: usize,
    /// The number of rows of a reduction's first factor; for an all-gather 0, unless they are `known`.
    pub all: usize,
    /// Whether all ranks know the number of rows and each has its share of them ([`Shards::split`]). Then the ranks
    /// compare their arguments only when a plan is made, or under `SYMRAIL_CHECK_COLLECTIVES`.
    pub known: bool,
    /// Numbers of a row of the first factor, and of the weight.
    pub inputs: [usize; 2],
    /// The number of outputs of the weight.
    pub outputs: usize,
    /// The length of the bias.
    pub bias: Option<usize>,
    /// The types of the first factor's numbers, the weight's, and the product's and the bias's.
    pub numbers: [DataType; 3],
    /// The order of the weight's numbers.
    pub layout: Layout,
    /// The addresses of the factors; that of the result need not be known yet.
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
    /// The number of rows of all ranks.
    #[must_use]
    pub fn all(&self) -> usize {
        self.all
    }

    /// The number of rows of the result on this rank.
    #[must_use]
    pub fn result(&self) -> usize {
        self.result
    }
}

impl GpuPassed {
    fn product(&self) -> Product {
        self.reduced.map_or(Product::AllGatherMatmul, Reduced::product)
    }

    /// The shape of a plan for these arguments.
    fn shape(&self, shards: Shards, schedule: Schedule) -> GpuShape {
        let GpuPassed { inputs: [inputs, _], outputs, numbers, layout, .. } = *self;
        GpuShape { shards, inputs, outputs, numbers, layout, schedule, chosen_for: None }
    }

    /// Checks that this rank's arguments match each other.
    fn check(&self, rt: &Runtime) -> Result<()> {
        let (pe, product, [of_rows, of_weight]) = (rt.my_pe(), self.product(), self.inputs);
        Error::unless_long(pe, product, "a row of the weight", of_weight, of_rows)?;
        Error::unless_long(pe, product, "the bias", self.bias.unwrap_or(self.outputs), self.outputs)?;
        self.shape(Shards::new(&[]), Schedule::Unfused).check(pe, product)
    }
}

impl GpuProducts {
    /// Starts without plans. Plans allocate from the heap. `pieces` is the number of pieces of a shard; with 0 a shard
    /// is not cut. Without a number, [`Schedule::choose_on_gpu`] or [`Schedule::choose_by_proxy`] decides, for the
    /// first product of a plan.
    #[must_use]
    pub fn new(kernels: &GpuKernels, heap: &TeamHeap, pieces: Option<usize>) -> GpuProducts {
        GpuProducts {
            kernels: kernels.clone(),
            heap: heap.clone(),
            pieces,
            by_proxy: None,
            plans: Vec::new(),
            made: 0,
            lt: None,
        }
    }

    /// Waits until the GPU has ended all rounds, and proxies have delivered their data.
    ///
    /// # Errors
    /// An error of the driver.
    pub fn finish(&self) -> Result<()> {
        self.kernels.finish()
    }

    /// Finds a plan, or makes it. Collective over the team. Ranks compare their arguments with one collective of the
    /// host, or not at all if their shards are `known` and there is a plan.
    ///
    /// # Errors
    /// As for [`GpuAllGatherMatmul::new`](super::GpuAllGatherMatmul::new), where
    /// [`TeamHeapFull`](symrail::Error::TeamHeapFull) means that the heap has no space beside the plans of captured
    /// rounds. If the arguments of a rank do not match each other, all ranks that compare them get an error; ranks that
    /// do not compare wait for that rank in vain. If cuBLASLt does not support a rank's factors, that rank gets an error
    /// and signals the others that it gave up.
    pub fn agree(&mut self, team: &Team, passed: &GpuPassed) -> Result<GpuRound> {
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
        let agreed = Agreed { reduced: passed.reduced, shards, width, moved, product: of_product };
        let all = agreed.shards.rows();
        let result = if passed.reduced == Some(Reduced::ToShards) { agreed.shards.of(me).len() } else { all };
        let place = match self.plans.iter().position(|known| known.agreed == agreed) {
            Some(place) => place,
            None => self.make(team, agreed, passed)?,
        };
        let Known { number, agreed, schedule, plan, .. } = &mut self.plans[place];
        let multiplication = passed.shape(agreed.shards.clone(), *schedule).multiplication();
        plan.set_multiplication(multiplication);
        // cuBLASLt may refuse one rank's factors alone. That rank then signals the others.
        plan.choose(&passed.operands).inspect_err(|error| plan.give_up(error))?;
        Ok(GpuRound { plan: *number, product, multiplication, all, result })
    }

    /// Enqueues a round on a stream, followed by a copy of all rows to the GPU address `gathered`, unless that is 0.
    /// The rounds of all products run one after the other, on one stream or ordered by events.
    ///
    /// # Safety
    /// As for [`GpuAllGatherMatmul::post`](super::GpuAllGatherMatmul::post), for the agreed sizes. `gathered` has space
    /// for all rows.
    ///
    /// # Errors
    /// As for [`GpuAllGatherMatmul::post`](super::GpuAllGatherMatmul::post); [`Error::NoPlan`]; errors that kernels
    /// have reported for earlier rounds.
    pub unsafe fn post(&mut self, stream: &Stream, round: &GpuRound, operands: &Operands, gathered: u64) -> Result<()> {
        let (pe, product) = (self.heap.runtime().my_pe(), round.product.name());
        let known = self.plans.iter_mut().find(|known| known.number == round.plan);
        let Known { plan, agreed, captured, .. } = known.ok_or(Error::NoPlan { pe, product })?;
        *captured |= stream.is_capturing()?;
        plan.set_multiplication(round.multiplication);
        // SAFETY: the caller's promise.
        unsafe { plan.post(stream, operands) }?;
        if gathered == 0 {
            return Ok(());
        }
        // The others' rows are in the plan's memory, this rank's own in the caller's.
        let (pitch, own) = (agreed.width * agreed.moved.size(), agreed.shards.of(plan.group.me() as usize));
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

    /// Returns an error if a round has failed so far: see
    /// [`GpuAllGatherMatmul::check`](super::GpuAllGatherMatmul::check).
    ///
    /// # Errors
    /// As for [`GpuAllGatherMatmul::check`](super::GpuAllGatherMatmul::check).
    pub fn check(&mut self) -> Result<()> {
        self.plans.iter_mut().try_for_each(|known| known.plan.check())
    }

    /// Returns the plans' memory to the heap. Graphs that have captured rounds are not replayed any more. Collective
    /// over the team.
    ///
    /// # Errors
    /// An error of the driver; an error that names a peer that does not answer.
    pub fn free(&mut self, team: &Team) -> Result<()> {
        self.plans.drain(..).try_for_each(|known| known.plan.free(team))
    }

    /// The schedule of a new plan. Collective over the team if it depends on what only the ranks together know: whether
    /// the proxy moves rows, and the most outputs, or inputs, of a rank.
    fn schedule(&mut self, team: &Team, agreed: &Agreed, passed: &GpuPassed) -> Result<Schedule> {
        if let Some(pieces) = self.pieces {
            return Ok(Schedule::in_pieces(&agreed.shards, pieces));
        }
        let by_proxy = match self.by_proxy {
            Some(known) => known,
            None => self.kernels.move_by_proxy(team)?,
        };
        self.by_proxy = Some(by_proxy);
        let row_bytes = agreed.width.saturating_mul(agreed.moved.size());
        if !by_proxy {
            return Ok(Schedule::choose_on_gpu(&agreed.shards, row_bytes, agreed.reduced));
        }
        let mut work = [if agreed.reduced.is_some() { passed.inputs[0] } else { passed.outputs } as u64];
        team.max_of_all(&mut work)?;
        Ok(Schedule::choose_by_proxy(&agreed.shards, row_bytes, work[0] as usize))
    }

    /// Frees the plans of which no rank has captured a round. Collective over the team.
    fn evict(&mut self, team: &Team) -> Result<()> {
        team.compare("making room for a plan", &[("the number of plans", self.plans.len() as u64)])?;
        let mut captured: Vec<u64> = self.plans.iter().map(|known| known.captured.into()).collect();
        team.max_of_all(&mut captured)?;
        for (known, captured) in std::mem::take(&mut self.plans).into_iter().zip(captured) {
            if captured == 0 {
                known.plan.free(team)?;
            } else {
                self.plans.push(known);
            }
        }
        Ok(())
    }

    /// Makes a plan. If the heap has no space for it beside the earlier plans, makes room first.
    fn make(&mut self, team: &Team, agreed: Agreed, passed: &GpuPassed) -> Result<usize> {
        let schedule = self.schedule(team, &agreed, passed)?;
        let shape = &passed.shape(agreed.shards.clone(), schedule);
        let (kernels, heap, lt) = (self.kernels.clone(), self.heap.clone(), self.lt.clone());
        let make = || match agreed.reduced {
            None => GpuPlan::gather(&kernels, &heap, team, shape, lt.clone()),
            Some(reduced) => GpuPlan::reduce(&kernels, &heap, team, shape, reduced, lt.clone()),
        };
        let plan = match make() {
            Err(Error::Runtime(symrail::Error::TeamHeapFull { .. })) => {
                self.evict(team)?;
                make()?
            }
            made => made?,
        };
        self.lt.get_or_insert_with(|| Arc::clone(&plan.lt));
        self.made += 1;
        self.plans.push(Known { number: self.made, agreed, schedule, plan, captured: false });
        Ok(self.plans.len() - 1)
    }
}
