//! Plans on GPUs.

use symrail::kernels::cuda::{DeviceBuffer, DevicePtr, Event, PinnedBuffer, Stream};
use symrail::team::heap::{Block, aligned};
use symrail::{Group, Team, TeamHeap};
use symrail_cuda::cublaslt::{Chosen, CublasLt, Number, Places, Product as Multiplication};

use super::kernels::GpuKernels;
use crate::error::{Error, Result};
use crate::exchange::{Product, bytes_of_words, compare};
use crate::program::gather::{self, Gather};
use crate::program::reduce::{self, Reduce};
use crate::program::{Action, PRODUCTS, Program, Round};
use crate::reduce::Reduced;
use crate::shards::{Schedule, Shards};
use crate::weight::Layout;

/// Bytes of `overlap_plan` in `cu/overlap.cu`, with the round and the stop word behind it; places of summands follow.
const OWN: usize = 64;
const ROUND: u64 = 48;
const STOP: u64 = 56;
const REPORT_BYTES: usize = 8 * 4;
/// Streams of a plan beside the caller's at most: the driver has eight queues, unless CUDA_DEVICE_MAX_CONNECTIONS says
/// otherwise.
const MOST_STREAMS: usize = 3;
/// What addresses of the driver's memory are multiples of, and what cuBLASLt asks for at most.
const MOST_ALIGNED: u64 = 256;

/// What a plan multiplies: rows of `inputs` numbers by `outputs` rows of as many. All ranks of an all-gather have the same
/// `inputs`, all ranks of a reduction the same `outputs`; numbers and layout are the same on all.
#[derive(Debug, Clone)]
pub struct GpuShape {
    /// The rows of each rank.
    pub shards: Shards,
    /// Numbers of a row of both factors.
    pub inputs: usize,
    /// Numbers of a row of the product.
    pub outputs: usize,
    /// The types of the first factor's numbers, the weight's, and the product's and the bias's.
    pub numbers: [Number; 3],
    /// How the weight lies.
    pub layout: Layout,
    /// How a round is carried out: see [`Schedule::choose_on_gpu`].
    pub schedule: Schedule,
    /// The rows for which cuBLASLt chooses how to sum, which is then done for all pieces; without it, those of a piece.
    /// Plans with the same number give the same bits.
    pub chosen_for: Option<usize>,
}

/// What a round works on, by addresses of the GPU.
#[derive(Debug, Clone, Copy, Default)]
pub struct Operands {
    /// An all-gather: this rank's rows. A reduction: all rows, of this rank's inputs.
    pub rows: u64,
    /// This rank's weight.
    pub weight: u64,
    /// What is added to each row of the result, or 0.
    pub bias: u64,
    /// Where the result goes.
    pub output: u64,
    /// For 8-bit numbers: where the 32-bit floats are by which rows and weight are multiplied.
    pub scales: [u64; 2],
}

/// A product of gathered rows on a GPU: as [`AllGatherMatmul`](crate::AllGatherMatmul).
pub struct GpuAllGatherMatmul<'d>(GpuPlan<'d>);

/// A product that is summed over ranks, on a GPU: as [`MatmulReduce`](crate::MatmulReduce).
pub struct GpuMatmulReduce<'d>(GpuPlan<'d>);

macro_rules! rounds {
    ($plan:ident) => {
        impl<'d> $plan<'d> {
            /// Puts a round on a stream, which goes on behind it; the host waits for nothing. Called by all ranks of the
            /// team, in the same order for all plans; those of a plan follow each other, on one stream or by events. It can
            /// be captured in a graph, which can be replayed by all ranks.
            ///
            /// # Safety
            /// The operands are memory of the shape's sizes that the GPU reaches, and stay, as the plan does, until the
            /// stream has come so far; nobody else writes to them.
            ///
            /// # Errors
            /// [`Error::Broken`] after an error; what the driver or cuBLASLt says. What peers do is
            /// [`check`](Self::check)'s.
            pub unsafe fn post(&mut self, stream: &Stream, operands: &Operands) -> Result<()> {
                // SAFETY: the caller's promise.
                unsafe { self.0.post(stream, operands) }
            }

            /// Whether no round has failed so far. It reads a word on the driver's default stream, and waits for no other.
            ///
            /// # Errors
            /// [`Error::Late`] and [`Error::GivenUp`], after which the plan cannot be used again; what the device says.
            pub fn check(&mut self) -> Result<()> {
                self.0.check()
            }

            /// Has the GPU do nothing for up to so many nanoseconds, at random, before each wait and each word that is
            /// told: for tests.
            pub fn delay(&mut self, most: u64, seed: u64) {
                self.0.delays = (most > 0).then_some((most, seed));
            }

            /// Gives the plan's memory back, when the GPU has done all that it was given. Collective over the team.
            ///
            /// # Errors
            /// The driver's error; a peer that does not answer.
            pub fn free(self, heap: &TeamHeap<'_>, team: &Team<'_>) -> Result<()> {
                self.0.kernels.device.gpu().synchronize()?;
                Ok(heap.give_back(team, self.0.block)?)
            }
        }
    };
}
rounds!(GpuAllGatherMatmul);
rounds!(GpuMatmulReduce);

impl<'d> GpuAllGatherMatmul<'d> {
    /// Makes a plan. Collective over the team, of which each PE is a rank.
    ///
    /// # Errors
    /// As for [`AllGatherMatmul::new`](crate::AllGatherMatmul::new); [`Error::Unsupported`]; what the driver says, or
    /// that there is no cuBLASLt.
    pub fn new(kernels: &'d GpuKernels<'d>, heap: &TeamHeap<'_>, team: &Team<'_>, shape: &GpuShape) -> Result<Self> {
        let (shards, width, schedule) = (&shape.shards, shape.inputs, shape.schedule);
        let sizes = (gather::words(shards, schedule), gather::numbers(shards, width));
        let moved = (Product::AllGatherMatmul, shape.numbers[0], width, sizes);
        let plan =
            GpuPlan::new(kernels, heap, team, shape, moved, |me| Gather { shards, width, schedule, me }.program());
        Ok(GpuAllGatherMatmul(plan?))
    }

    /// Where all rows are behind a round, until the next one: an address of the GPU.
    #[must_use]
    pub fn gathered(&self) -> u64 {
        self.0.numbers_at
    }
}

impl<'d> GpuMatmulReduce<'d> {
    /// Makes a plan. Collective over the team, of which each PE is a rank.
    ///
    /// # Errors
    /// As for [`GpuAllGatherMatmul::new`].
    pub fn new(
        kernels: &'d GpuKernels<'d>,
        heap: &TeamHeap<'_>,
        team: &Team<'_>,
        shape: &GpuShape,
        reduced: Reduced,
    ) -> Result<Self> {
        let (shards, width, schedule) = (&shape.shards, shape.outputs, shape.schedule);
        let sizes = (reduce::words(shards, schedule), reduce::numbers(shards, width, reduced));
        let moved = (reduced.product(), shape.numbers[2], width, sizes);
        let plan = GpuPlan::new(kernels, heap, team, shape, moved, |me| {
            Reduce { shards, width, schedule, reduced, me }.program()
        });
        let mut plan = plan?;
        plan.first = if reduced == Reduced::ToShards { shape.shards.of(plan.group.me() as usize).start } else { 0 };
        Ok(GpuMatmulReduce(plan))
    }
}

/// What both have in common.
struct GpuPlan<'d> {
    kernels: &'d GpuKernels<'d>,
    lt: CublasLt,
    group: Group,
    product: Product,
    program: Program,
    multiplication: Multiplication,
    /// How numbers are summed, once that is chosen for certain alignments.
    chosen: Option<(Multiplication, Chosen)>,
    /// The type of numbers that move.
    moved: Number,
    /// The first row of the output.
    first: usize,
    block: Block,
    /// Where the numbers begin, behind the words, and the word that those who give up tell.
    numbers_at: u64,
    gone_at: u64,
    own: DeviceBuffer,
    /// Where the summands of each sum are listed, by the sum's place.
    summands: Vec<u64>,
    report: PinnedBuffer,
    /// Of all lanes but that of products, which share them by turns. Steps are put there in the program's order, so that a
    /// step never stands behind one that a rank can only do later.
    streams: Vec<Stream>,
    /// Behind the round's begin, each step that others need, and each lane's end.
    begun: Event,
    ended: Vec<Event>,
    steps: Vec<Option<Event>>,
    delays: Option<(u64, u64)>,
    broken: bool,
}

impl<'d> GpuPlan<'d> {
    fn new(
        kernels: &'d GpuKernels<'d>,
        heap: &TeamHeap<'_>,
        team: &Team<'_>,
        shape: &GpuShape,
        (product, moved, width, (words, numbers)): (Product, Number, usize, (usize, usize)),
        program: impl FnOnce(usize) -> Program,
    ) -> Result<GpuPlan<'d>> {
        let (device, group) = (kernels.device, team.group());
        let gpu = device.gpu();
        let by_inputs = shape.layout == Layout::ByInputs;
        let [of_rows, of_weight, of_product] = shape.numbers;
        compare(
            heap,
            team,
            product,
            (&shape.shards, width, shape.schedule),
            &[
                ("the type of numbers that move", moved as u64),
                ("the type of the product's numbers", of_product as u64),
                ("the rows that the sums are chosen for", shape.chosen_for.map_or(0, |rows| rows as u64 + 1)),
            ],
        )?;
        // All that can fail for one rank alone is made before anything is taken, and found out by all.
        let made = (|| {
            if of_product.is_short() || of_rows.is_short() != of_weight.is_short() || shape.inputs == 0 {
                let pe = device.runtime().my_pe();
                return Err(Error::Unsupported {
                    pe,
                    product: product.name(),
                    numbers: shape.numbers,
                    inputs: shape.inputs,
                });
            }
            let program = program(group.me() as usize);
            let streams =
                (1..program.lanes.min(1 + MOST_STREAMS)).map(|_| Stream::new(gpu)).collect::<Result<Vec<_>, _>>()?;
            let ended = streams.iter().map(|_| Event::new(gpu)).collect::<Result<Vec<_>, _>>()?;
            let mut steps: Vec<Option<Event>> = program.entries.iter().map(|_| None).collect();
            for &needed in program.entries.iter().flat_map(|entry| &entry.after) {
                steps[needed].get_or_insert(Event::new(gpu)?);
            }
            let (own, summands) = image(gpu, &program, &group)?;
            let report = PinnedBuffer::new(gpu, REPORT_BYTES)?;
            let lt = CublasLt::load(gpu, &[])?;
            Ok((program, streams, ended, steps, own, summands, report, lt, Event::new(gpu)?))
        })();
        let mut failed = [u64::from(made.is_err())];
        team.max_of_all(&mut failed)?;
        if failed != [0] {
            made?;
            return Err(Error::OtherRefused { pe: device.runtime().my_pe(), product: product.name() });
        }
        let (program, streams, ended, steps, own, summands, report, lt, begun) = made?;
        // One word more: of those who have given up.
        let word_bytes = bytes_of_words(words.saturating_add(1));
        let bytes = aligned(word_bytes.saturating_add(numbers.saturating_mul(moved.bytes())));
        let block = heap.take_words(team, bytes)?;
        let words_at = device.address(block.base);
        let gone_at = words_at + 8 * words as u64;
        let at = own.at().get();
        let ranks = group.size() as usize;
        let image = [words_at, at + ROUND, report.device().get(), at + STOP, words as u64, ranks as u64];
        own.write(0, &image.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<u8>>())?;
        let rows = shape.chosen_for.unwrap_or_else(|| shape.schedule.piece_rows(&shape.shards)).max(1);
        let multiplication = Multiplication {
            rows,
            inputs: shape.inputs,
            outputs: shape.outputs,
            numbers: shape.numbers,
            by_inputs,
            has_bias: false,
            aligned: [0; 3],
        };
        let numbers_at = words_at + word_bytes as u64;
        Ok(GpuPlan {
            kernels,
            lt,
            group,
            product,
            program,
            multiplication,
            chosen: None,
            moved,
            first: 0,
            block,
            numbers_at,
            gone_at,
            own,
            summands,
            report,
            streams,
            begun,
            ended,
            steps,
            delays: None,
            broken: false,
        })
    }

    /// # Safety
    /// As for [`GpuAllGatherMatmul::post`].
    unsafe fn post(&mut self, stream: &Stream, operands: &Operands) -> Result<()> {
        if self.broken {
            let pe = self.kernels.device.runtime().my_pe();
            return Err(Error::Broken { pe, product: self.product.name() });
        }
        let chosen = self.choose(operands)?;
        self.broken = true;
        let plan = self.own.at().get();
        // SAFETY: the plan is there; the caller keeps it.
        unsafe { self.kernels.begin(stream, plan) }?;
        self.begun.record(stream)?;
        for lane in &self.streams {
            lane.wait_for(&self.begun)?;
        }
        for place in 0..self.program.entries.len() {
            let delay = self.next_delay();
            let entry = &self.program.entries[place];
            let on = match entry.lane {
                PRODUCTS => stream,
                lane => &self.streams[(lane - 1) % self.streams.len()],
            };
            for event in entry.after.iter().filter_map(|&needed| self.steps[needed].as_ref()) {
                on.wait_for(event)?;
            }
            if let (Some(delay), Action::Wait { .. } | Action::Tell { .. } | Action::Put { .. }) =
                (delay, &entry.action)
            {
                self.kernels.delay(on, delay)?;
            }
            // SAFETY: the caller's promise.
            unsafe { self.act(on, place, operands, &chosen) }?;
            if let Some(event) = &self.steps[place] {
                event.record(on)?;
            }
        }
        for (lane, event) in self.streams.iter().zip(&self.ended) {
            event.record(lane)?;
            stream.wait_for(event)?;
        }
        self.broken = false;
        Ok(())
    }

    /// Puts a step on its lane's stream.
    ///
    /// # Safety
    /// As for [`GpuAllGatherMatmul::post`].
    unsafe fn act(
        &self,
        on: &Stream,
        place: usize,
        operands: &Operands,
        (multiplication, chosen): &(Multiplication, Chosen),
    ) -> Result<()> {
        let (kernels, plan, size) = (self.kernels, self.own.at().get(), self.moved.bytes());
        let number = |at: usize| self.numbers_at + (at * size) as u64;
        let pe = |rank: usize| self.group.pe(rank as u32);
        // SAFETY: the plan's memory, at the places of its program, and the caller's promise for the operands: of all
        // below.
        unsafe {
            match &self.program.entries[place].action {
                &Action::Wait { from, word, round } => {
                    kernels.wait(on, plan, word, u64::from(round == Round::Before), pe(from))
                }
                &Action::Tell { to, word } => kernels.tell(on, plan, word, pe(to)),
                Action::Keep { rows } => {
                    let bytes = (rows.len() * size) as u64;
                    Ok(on.copy(DevicePtr::new(number(rows.at)), DevicePtr::new(operands.rows), bytes)?)
                }
                Action::Get { from, rows } => {
                    let (at, bytes) = (number(rows.at), (rows.len() * size) as u64);
                    Ok(kernels.moves.get(on, at, at, bytes, pe(*from))?)
                }
                Action::Put { to, rows, at, word } => {
                    let bytes = (rows.len() * size) as u64;
                    if bytes > 0 {
                        kernels.moves.put(on, number(*at), number(rows.at), bytes, pe(*to))?;
                    }
                    kernels.tell(on, plan, *word, pe(*to))
                }
                Action::Multiply { rows } => {
                    let it = Multiplication { rows: rows.len(), ..*multiplication };
                    if it.rows == 0 || it.outputs == 0 {
                        return Ok(());
                    }
                    let gathers = matches!(self.product, Product::AllGatherMatmul);
                    let [from, to] =
                        if gathers { [self.numbers_at, operands.output] } else { [operands.rows, self.numbers_at] };
                    let places = Places {
                        rows: from + (rows.start * it.inputs * it.numbers[0].bytes()) as u64,
                        weight: operands.weight,
                        product: to + (rows.start * it.outputs * it.numbers[2].bytes()) as u64,
                        bias: operands.bias,
                        scales: operands.scales,
                    };
                    Ok(self.lt.multiply(on, &it, chosen, &places)?)
                }
                Action::Sum { rows, summands, shared } => {
                    if rows.len() == 0 {
                        return Ok(());
                    }
                    let out = operands.output + ((rows.rows.start - self.first) * rows.width * size) as u64;
                    let shared = if *shared { number(rows.at) } else { 0 };
                    let list = self.summands[place];
                    let (count, width) = (rows.rows.len() as u64, rows.width as u64);
                    let n = summands.len() as u64;
                    let arguments = [self.numbers_at, list, n, operands.bias, count, width, out, shared];
                    kernels.sum(on, self.moved, &arguments)
                }
                Action::Take { rows } => {
                    let out = operands.output + (rows.rows.start * rows.width * size) as u64;
                    let bytes = (rows.len() * size) as u64;
                    Ok(on.copy(DevicePtr::new(out), DevicePtr::new(number(rows.at)), bytes)?)
                }
            }
        }
    }

    /// How numbers are summed, for operands that lie as these do.
    fn choose(&mut self, operands: &Operands) -> Result<(Multiplication, Chosen)> {
        let gathers = matches!(self.product, Product::AllGatherMatmul);
        let it = &self.multiplication;
        let pitch = |columns: usize, number: Number| (columns * number.bytes()) as u64;
        let (of_rows, of_product) = (pitch(it.inputs, it.numbers[0]), pitch(it.outputs, it.numbers[2]));
        let (rows, product) =
            if gathers { (self.numbers_at, operands.output) } else { (operands.rows, self.numbers_at) };
        let aligned = [alignment(rows | of_rows), alignment(operands.weight), alignment(product | of_product)];
        let wanted = Multiplication { aligned, has_bias: gathers && operands.bias != 0, ..*it };
        match &self.chosen {
            Some(known) if known.0 == wanted => Ok(*known),
            _ if wanted.outputs == 0 => Ok((wanted, Chosen::default())),
            _ => {
                let known = (wanted, self.lt.choose(&wanted)?);
                self.chosen = Some(known);
                Ok(known)
            }
        }
    }

    fn next_delay(&mut self) -> Option<u64> {
        let (most, seed) = self.delays.as_mut()?;
        *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        Some((*seed >> 33) % *most)
    }

    fn check(&mut self) -> Result<()> {
        let device = self.kernels.device;
        let (pe, product) = (device.runtime().my_pe(), self.product.name());
        if self.report.word(0) != 0 {
            self.broken = true;
            let seconds = device.runtime().settings().timeout_s;
            return Err(Error::Late { pe, product, late: self.report.word(1) as u32, seconds });
        }
        let mut gone = [0; 8];
        // SAFETY: a word of this plan.
        unsafe { device.gpu().read(DevicePtr::new(self.gone_at), &mut gone) }?;
        Error::told(pe, self.product, u64::from_ne_bytes(gone)).inspect_err(|_| self.broken = true)?;
        Ok(device.state().check()?)
    }
}

/// What an address is a multiple of, as far as that matters.
fn alignment(address: u64) -> u32 {
    1 << (address | MOST_ALIGNED).trailing_zeros()
}

/// Memory for `overlap_plan`, with the PEs of the team and the summands of each sum behind it; and where these are.
fn image(
    gpu: &std::sync::Arc<symrail::kernels::cuda::Gpu>,
    program: &Program,
    group: &Group,
) -> Result<(DeviceBuffer, Vec<u64>)> {
    let mut words: Vec<u64> = (0..group.size()).map(|rank| u64::from(group.pe(rank))).collect();
    let mut at = vec![0; program.entries.len()];
    for (place, entry) in program.entries.iter().enumerate() {
        if let Action::Sum { summands, .. } = &entry.action {
            at[place] = (OWN + 8 * words.len()) as u64;
            words.extend(summands.iter().map(|&summand| summand as u64));
        }
    }
    let own = gpu.alloc(OWN + 8 * words.len())?;
    own.write(OWN, &words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<u8>>())?;
    let base = own.at().get();
    Ok((own, at.into_iter().map(|offset| base + offset).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alignments_are_of_addresses_and_rows_at_once() {
        assert_eq!(alignment(0), 256);
        assert_eq!(alignment(0x1000 | 6), 2);
        assert_eq!(alignment(0x1000 | 4096), 256);
        assert_eq!(alignment(1), 1);
    }
}
