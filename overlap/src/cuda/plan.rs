//! Plans on GPUs.

use std::collections::HashMap;
use std::sync::Arc;

use symrail::kernels::cuda::{DeviceBuffer, Event, PinnedBuffer, Stream};
use symrail::rounds::Report;
use symrail::team::heap::{Block, aligned};
use symrail::{Group, Runtime, Team, TeamHeap};
use symrail_core::DataType;
use symrail_core::layout;
use symrail_cuda::cublaslt::{Chosen, CublasLt, Product as Multiplication};

use super::at_once::{self, AtOnce};
use super::kernels::GpuKernels;
use super::layout::{FirstWait, Plan};
use super::shape::{GpuShape, Operands};
use crate::error::{Error, Result};
use crate::exchange::{Geometry, Sizes, bytes_of_words, compare};
use crate::product::{Product, Reduced};
use crate::program::gather::{self, Gather};
use crate::program::reduce::{self, Reduce};
use crate::program::{Action, Program, pushed};
use crate::shards::Schedule;

/// The alignment of scales' addresses that cuBLASLt needs.
pub(super) const SCALE_ALIGN: u64 = 16;
/// The most streams of a plan beside the caller's: the driver has eight queues, unless CUDA_DEVICE_MAX_CONNECTIONS sets
/// another number.
const MOST_STREAMS: usize = 3;

/// A product of gathered rows on a GPU: see [`AllGatherMatmul`](crate::AllGatherMatmul).
pub struct GpuAllGatherMatmul(GpuPlan);

/// A product that is summed over ranks, on a GPU: see [`MatmulReduce`](crate::MatmulReduce).
pub struct GpuMatmulReduce(GpuPlan);

macro_rules! rounds {
    ($plan:ident) => {
        impl $plan {
            /// Enqueues a round on a stream. Work that follows on the stream runs after the round; the host waits for
            /// nothing. All ranks of the team call it, in the same order for all plans. The rounds of one plan run one
            /// after the other, on one stream or ordered by events. A graph can capture a round; all ranks can replay
            /// it.
            ///
            /// Behind a wait that has failed this rank sets no word, so none multiplies or sums what has not come. Copy
            /// engines may still move rows to the other ranks' memory for the plan, which is void by then: the wait has
            /// told these ranks first, and their [`check`](Self::check) says so.
            ///
            /// # Safety
            /// The operands are memory of the shape's sizes that the GPU reaches. They and the plan stay valid until
            /// the stream has completed the round. Nothing else writes to the operands until then.
            ///
            /// # Errors
            /// An error of the driver or of cuBLASLt: then this rank signals the others that it gave up.
            /// [`Poisoned`](symrail::rounds::Error::Poisoned) after an error. [`check`](Self::check) reports errors of
            /// peers.
            pub unsafe fn post(&mut self, stream: &Stream, operands: &Operands) -> Result<()> {
                // SAFETY: the caller's promise.
                unsafe { self.0.post(stream, operands) }
            }

            /// Returns an error if a round has failed so far. It reads a word on the driver's default stream, and waits
            /// for no other stream.
            ///
            /// # Errors
            /// [`Error::Round`], after which the plan cannot be used again; an error of the
            /// device.
            pub fn check(&mut self) -> Result<()> {
                self.0.check()
            }

            /// Makes the GPU do nothing for up to `most` nanoseconds, at random, before each wait and before each word
            /// that it sets: for tests.
            pub fn delay(&mut self, most: u64, seed: u64) {
                self.0.delays = (most > 0).then_some((most, seed));
            }

            /// Returns the plan's memory to the heap when the GPU has completed all its work. Collective over the team.
            ///
            /// # Errors
            /// An error of the driver; an error that names a peer that does not answer.
            pub fn free(self, team: &Team) -> Result<()> {
                self.0.free(team)
            }
        }
    };
}
rounds!(GpuAllGatherMatmul);
rounds!(GpuMatmulReduce);

impl GpuAllGatherMatmul {
    /// Makes a plan. Collective over the team; each PE of the team is a rank.
    ///
    /// # Errors
    /// As for [`AllGatherMatmul::new`](crate::AllGatherMatmul::new); [`Error::Unsupported`]; an error of the driver, or
    /// of the search for cuBLASLt.
    pub fn new(kernels: &GpuKernels, heap: &TeamHeap, team: &Team, shape: &GpuShape) -> Result<Self> {
        GpuPlan::gather(kernels, heap, team, shape, None).map(GpuAllGatherMatmul)
    }

    /// The GPU address of the gathered rows, valid after a round until the next one. The rows of the others are there,
    /// with space for this rank's own among them.
    #[must_use]
    pub fn gathered(&self) -> u64 {
        self.0.numbers_at
    }
}

impl GpuMatmulReduce {
    /// Makes a plan. Collective over the team; each PE of the team is a rank.
    ///
    /// # Errors
    /// As for [`GpuAllGatherMatmul::new`].
    pub fn new(kernels: &GpuKernels, heap: &TeamHeap, team: &Team, shape: &GpuShape, reduced: Reduced) -> Result<Self> {
        GpuPlan::reduce(kernels, heap, team, shape, reduced, None).map(GpuMatmulReduce)
    }
}

/// What a plan multiplies, and the memory for what moves.
struct Kind {
    product: Product,
    /// The type of numbers that move, and how many a row has.
    moved: DataType,
    width: usize,
    sizes: Sizes,
}

/// The state that both kinds of plans have.
pub(super) struct GpuPlan {
    pub lt: Arc<CublasLt>,
    pub group: Group,
    pub product: Product,
    pub program: Program,
    pub multiplication: Multiplication,
    /// The number of rows for which cuBLASLt's algorithm is chosen, for pieces of any number of rows.
    pub chosen_for: Option<usize>,
    /// The algorithm chosen so far for each product and alignment.
    pub chosen: HashMap<Multiplication, Chosen>,
    /// The type of numbers that move.
    pub moved: DataType,
    /// The first row of this rank's shard, and of the output.
    pub own_from: usize,
    pub first: usize,
    pub block: Block,
    /// The addresses of the words, of the numbers behind them, and of the word that ranks set when they give up.
    pub words_at: u64,
    pub numbers_at: u64,
    pub gone_at: u64,
    pub own: DeviceBuffer,
    /// How many of the program's first steps are waits that the kernel at the round's begin performs; `waits_at` is the
    /// address of their list.
    pub first_waits: usize,
    /// Whether the round waits for the proxy's puts at the program's end only.
    pub quiets: bool,
    /// Whether each put starts after the one before it has been delivered.
    pub in_order: bool,
    pub waits_at: u64,
    /// For a gather on a heap in host memory: the rows in GPU memory, where products read them fast.
    pub rows_here: Option<DeviceBuffer>,
    /// If rounds are not cut: the kernel's arguments. Such a round is this kernel and the product.
    pub at_once: Option<AtOnce>,
    /// Copies of 8-bit numbers' scales whose addresses cuBLASLt does not accept.
    pub scales: DeviceBuffer,
    /// The address of each sum's list of summands, by the index of the sum.
    pub summands: Vec<u64>,
    pub report: PinnedBuffer,
    /// The streams of all lanes but that of products; the lanes share them in turn. Steps are enqueued in the program's
    /// order, so that a step never queues behind one that a rank can only perform later.
    pub streams: Vec<Stream>,
    /// Recorded after the round's begin, after each lane's end, and after each step that other lanes depend on.
    pub begun: Event,
    pub ended: Vec<Event>,
    pub steps: Vec<Option<Event>>,
    pub delays: Option<(u64, u64)>,
    pub broken: bool,
    pub kernels: GpuKernels,
}

impl GpuPlan {
    /// As [`GpuAllGatherMatmul::new`]. Plans whose rounds all follow each other can share one `lt`.
    pub fn gather(
        kernels: &GpuKernels,
        heap: &TeamHeap,
        team: &Team,
        shape: &GpuShape,
        lt: Option<Arc<CublasLt>>,
    ) -> Result<GpuPlan> {
        let (shards, width, schedule) = (&shape.shards, shape.inputs, shape.schedule);
        let sizes = Sizes { words: gather::words(shards, schedule), numbers: gather::numbers(shards, width) };
        let kind = Kind { product: Product::AllGatherMatmul, moved: shape.numbers[0], width, sizes };
        GpuPlan::new(kernels, heap, team, shape, lt, &kind, |me, reaches| {
            let gather = Gather { shards, width, schedule, me };
            match schedule {
                Schedule::Ring { .. } => gather.program(),
                _ => pushed::gather(&gather, reaches),
            }
        })
    }

    /// As [`GpuPlan::gather`].
    pub fn reduce(
        kernels: &GpuKernels,
        heap: &TeamHeap,
        team: &Team,
        shape: &GpuShape,
        reduced: Reduced,
        lt: Option<Arc<CublasLt>>,
    ) -> Result<GpuPlan> {
        let (shards, width, schedule) = (&shape.shards, shape.outputs, shape.schedule);
        let sizes = Sizes { words: reduce::words(shards, schedule), numbers: reduce::numbers(shards, width, reduced) };
        let kind = Kind { product: reduced.product(), moved: shape.numbers[2], width, sizes };
        // cuBLASLt adds a bias to products of 8-bit numbers only if the product is of 16-bit numbers.
        let in_products = shape.numbers[0].size() != 1 || shape.numbers[2] != DataType::Float32;
        let mut plan = GpuPlan::new(kernels, heap, team, shape, lt, &kind, |me, reaches| {
            let reduce = Reduce { shards, width, schedule, reduced, me };
            match in_products && pushed::sums_in_products(shards.ranks()) {
                true => pushed::reduce(&reduce, reaches),
                false => reduce.program(),
            }
        })?;
        plan.first = if reduced == Reduced::ToShards { shards.of(plan.group.me() as usize).start } else { 0 };
        Ok(plan)
    }

    fn new(
        kernels: &GpuKernels,
        heap: &TeamHeap,
        team: &Team,
        shape: &GpuShape,
        lt: Option<Arc<CublasLt>>,
        kind: &Kind,
        program: impl FnOnce(usize, &dyn Fn(usize) -> bool) -> Program,
    ) -> Result<GpuPlan> {
        let &Kind { product, moved, width, sizes: Sizes { words, numbers } } = kind;
        let (device, group) = (kernels.device(), team.group());
        let gpu = device.gpu();
        let (me, ranks) = (group.me() as usize, group.size() as usize);
        compare(
            heap,
            team,
            product,
            Geometry { shards: &shape.shards, width, schedule: shape.schedule },
            &[
                ("the type of numbers that move", moved as u64),
                ("the type of the product's numbers", shape.numbers[2] as u64),
                ("the rows that the sums are chosen for", shape.chosen_for.map_or(0, |rows| rows as u64 + 1)),
            ],
        )?;
        // A plan with `chosen_for` promises the bits of products that are cut, so its rows do not move at once.
        let reach = device.state().reach();
        let at_once = team.all(
            ranks > 1
                && shape.schedule == Schedule::Unfused
                && shape.chosen_for.is_none()
                && !matches!(product, Product::MatmulAllReduce)
                && reach.in_gpus()
                && (0..ranks).all(|rank| device.is_mapped(group.pe(rank as u32))),
        )?;
        let most_bytes = shape.shards.largest().saturating_mul(width).saturating_mul(moved.size());
        let words_of_blocks = if at_once { at_once::words(ranks, most_bytes) } else { 0 };
        // Each step that can fail for one rank alone runs before the heap is used. Then all ranks learn whether one
        // failed.
        let made = (|| {
            shape.check(device.runtime().my_pe(), product)?;
            let program = match at_once {
                true => Program::of_one(Action::Multiply { rows: 0..shape.shards.rows() }),
                false => program(me, &|rank| device.is_mapped(group.pe(rank as u32))),
            };
            let gathers = matches!(product, Product::AllGatherMatmul);
            let rows_here = if gathers && !device.state().reach().in_gpus() {
                Some(gpu.alloc(numbers.saturating_mul(moved.size()).max(1))?)
            } else {
                None
            };
            let streams =
                (1..program.lanes.min(1 + MOST_STREAMS)).map(|_| Stream::new(gpu)).collect::<Result<Vec<_>, _>>()?;
            let ended = streams.iter().map(|_| Event::new(gpu)).collect::<Result<Vec<_>, _>>()?;
            let mut steps: Vec<Option<Event>> = program.entries.iter().map(|_| None).collect();
            for &needed in program.entries.iter().flat_map(|entry| &entry.after) {
                steps[needed].get_or_insert(Event::new(gpu)?);
            }
            let (own, waits_at, summands) = image(gpu, &program, &group)?;
            let (scales, report) = (gpu.alloc(2 * SCALE_ALIGN as usize)?, PinnedBuffer::new(gpu, Report::BYTES)?);
            let lt = lt.map_or_else(|| CublasLt::load(gpu, &[]).map(Arc::new), Ok)?;
            let list = if at_once { Some(gpu.alloc(at_once::list_bytes(ranks))?) } else { None };
            let lists = (own, waits_at, summands, list);
            Ok::<_, Error>((program, streams, ended, steps, lists, rows_here, scales, report, lt, Event::new(gpu)?))
        })();
        let (program, streams, ended, steps, (own, waits_at, summands, list), rows_here, scales, report, lt, begun) =
            team.all_or_none(product.name(), made)?;
        // One further word is the alarm.
        let word_bytes = bytes_of_words(words.saturating_add(1 + words_of_blocks));
        let bytes = aligned(word_bytes.saturating_add(numbers.saturating_mul(moved.size())));
        let block = heap.take_words(team, bytes)?;
        let words_at = device.address(block.base);
        let gone_at = words_at + 8 * words as u64;
        let plan = Plan::new(own.at().get(), words_at, report.device().get(), words, ranks);
        own.write(0, &layout::bytes(&[plan]))?;
        let numbers_at = words_at + word_bytes as u64;
        let at_once = list.map(|list| {
            let (size, words, numbers) = (moved.size(), gone_at + 8, numbers_at);
            let places = at_once::Places { product, shards: &shape.shards, width, size, group, words, numbers };
            AtOnce::new(list, reach, &places)
        });
        Ok(GpuPlan {
            kernels: kernels.clone(),
            lt,
            group,
            product,
            first_waits: pushed::first_waits(&program),
            in_order: one_after_the_other(device.runtime()),
            quiets: program.entries.iter().any(|entry| entry.action == Action::Quiet),
            waits_at,
            rows_here,
            at_once: at_once.transpose()?,
            program,
            multiplication: shape.multiplication(),
            chosen_for: shape.chosen_for,
            chosen: HashMap::new(),
            moved,
            own_from: shape.shards.of(me).start,
            first: 0,
            block,
            words_at,
            numbers_at,
            gone_at,
            own,
            summands,
            scales,
            report,
            streams,
            begun,
            ended,
            steps,
            delays: None,
            broken: false,
        })
    }

    /// Sets a weight of another size, layout or type for the next rounds. The ranks may differ in these.
    pub fn set_multiplication(&mut self, multiplication: Multiplication) {
        self.multiplication = multiplication;
    }

    /// Returns the plan's memory to the heap. Collective over the team.
    pub fn free(self, team: &Team) -> Result<()> {
        self.kernels.finish()?;
        Ok(self.block.free(team)?)
    }
}

/// Whether the proxy should start a put of a piece after those before it have arrived. That is so with one rail whose
/// peer's proxy copies all requests in flight by itself (`shm`): that proxy reads no word before it has copied all of
/// them, so that pieces that are in flight together arrive together. Other rails need no such order: a window limits
/// the bytes in flight (TCP), NICs put in order, and several rails move one piece each.
fn one_after_the_other(rt: &Runtime) -> bool {
    matches!(&rt.rails()[..], [rail] if rail.software && rail.window == u64::MAX)
}

/// Allocates a [`Plan`], followed by the PEs of the team, the first waits and the summands of each sum. Returns it
/// with the addresses of these.
fn image(
    gpu: &Arc<symrail::kernels::cuda::Gpu>,
    program: &Program,
    group: &Group,
) -> Result<(DeviceBuffer, u64, Vec<u64>)> {
    let mut words: Vec<u64> = (0..group.size()).map(|rank| u64::from(group.pe(rank))).collect();
    let waits_at = (size_of::<Plan>() + 8 * words.len()) as u64;
    for entry in &program.entries[..pushed::first_waits(program)] {
        if let &Action::Wait { from, word, .. } = &entry.action {
            let wait = FirstWait { word: word as u64, pe: group.pe(from as u32).into() };
            words.extend(layout::words(&[wait]));
        }
    }
    let mut at = vec![0; program.entries.len()];
    for (place, entry) in program.entries.iter().enumerate() {
        if let Action::Sum { summands, .. } = &entry.action {
            at[place] = (size_of::<Plan>() + 8 * words.len()) as u64;
            words.extend(summands.iter().map(|&summand| summand as u64));
        }
    }
    let own = gpu.alloc(size_of::<Plan>() + 8 * words.len())?;
    own.write(size_of::<Plan>(), &layout::bytes(&words))?;
    let base = own.at().get();
    Ok((own, base + waits_at, at.into_iter().map(|offset| base + offset).collect()))
}
