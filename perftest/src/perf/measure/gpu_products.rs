//! Products of layers by a GPU, in the order of a stream, which times them: rows of 4096 numbers times 4096 x 4096 of
//! each PE, all in bfloat16.
//!
//! The test measures a round and its parts, as on the host: the product of a PE alone, by a plan of a PE alone, and the
//! moves, by the same plan with next to nothing to multiply.

use std::sync::Arc;

use half::bf16;
use symrail::{Group, Team, TeamHeap};
use symrail_kernels::cuda::{DeviceBuffer, Gpu, Stream};
use symrail_overlap::cuda::{DataType, GpuAllGatherMatmul, GpuKernels, GpuMatmulReduce, GpuShape, Operands};
use symrail_overlap::{Layout, Reduced, Schedule, Shards};

use super::Bench;
use super::on_stream::{content, patience, room, with};
use super::products::{Parts, column_number, row_number};
use crate::perf::backend::Backend;
use crate::perf::catalog::Product;
use crate::perf::error::{Error, Result};
use crate::perf::heap::{self, WIDTH_ON_GPU as WIDTH};
use crate::perf::sample::{Figures, Samples};

/// So few inputs or outputs that there is next to nothing to multiply, and yet cuBLASLt treats them as many.
const FEW: usize = 16;
/// The numbers of a row add up to the row's number times this: few enough for bfloat16 to hold products exactly.
const TIMES: usize = 8;

/// A plan of either kind.
enum Layer {
    Gather(GpuAllGatherMatmul),
    Reduce(GpuMatmulReduce),
}

impl Layer {
    /// The plan for rows with these numbers of inputs and outputs.
    fn new(
        kernels: &GpuKernels,
        (heap, team): (&TeamHeap, &Team),
        what: Product,
        (shards, schedule): (&Shards, Schedule),
        [inputs, outputs]: [usize; 2],
    ) -> Result<Layer> {
        let (shards, numbers, layout) = (shards.clone(), [DataType::Bfloat16; 3], Layout::ByOutputs);
        let shape = GpuShape { shards, inputs, outputs, numbers, layout, schedule, chosen_for: None };
        let reduce = |reduced| GpuMatmulReduce::new(kernels, heap, team, &shape, reduced).map(Layer::Reduce);
        Ok(match what {
            Product::AllGather => Layer::Gather(GpuAllGatherMatmul::new(kernels, heap, team, &shape)?),
            Product::ReduceScatter => reduce(Reduced::ToShards)?,
            Product::AllReduce => reduce(Reduced::Everywhere)?,
        })
    }

    /// # Safety
    /// As for [`GpuAllGatherMatmul::post`].
    unsafe fn post(&mut self, stream: &Stream, operands: &Operands) -> Result<()> {
        // SAFETY: the caller's promise.
        let posted = unsafe {
            match self {
                Layer::Gather(plan) => plan.post(stream, operands),
                Layer::Reduce(plan) => plan.post(stream, operands),
            }
        };
        Ok(posted?)
    }

    fn check(&mut self) -> Result<()> {
        let checked = match self {
            Layer::Gather(plan) => plan.check(),
            Layer::Reduce(plan) => plan.check(),
        };
        Ok(checked?)
    }

    fn free(self, team: &Team) -> Result<()> {
        let freed = match self {
            Layer::Gather(plan) => plan.free(team),
            Layer::Reduce(plan) => plan.free(team),
        };
        Ok(freed?)
    }
}

/// The factors of a PE, in its GPU's memory.
struct OnGpu {
    rows: DeviceBuffer,
    weight: DeviceBuffer,
    output: DeviceBuffer,
}

impl OnGpu {
    /// All rows, this PE's weight, and space for the product of all rows.
    fn new(gpu: &Arc<Gpu>, me: usize, rows: usize) -> Result<OnGpu> {
        // Ones with alternating signs, except the first of a row; all add up to its number, `TIMES` times.
        let sign = |row: usize, at: usize| {
            if at < TIMES * row_number(row) as usize || at.is_multiple_of(2) { 1.0 } else { -1.0 }
        };
        let all = numbers((0..rows).flat_map(|row| (0..WIDTH).map(move |at| sign(row, at))));
        let weight = numbers((0..WIDTH).flat_map(|output| std::iter::repeat_n(column_number(me, output), WIDTH)));
        Ok(OnGpu { rows: with(gpu, &all)?, weight: with(gpu, &weight)?, output: room(gpu, 2 * rows * WIDTH)? })
    }

    /// The rows from `first` on.
    fn operands(&self, first: usize) -> Operands {
        let at = |buffer: &DeviceBuffer| buffer.at().get();
        let rows = at(&self.rows) + (2 * first * WIDTH) as u64;
        Operands { rows, weight: at(&self.weight), output: at(&self.output), ..Operands::default() }
    }
}

impl<C: Backend> Bench<'_, C> {
    /// Measures one size: bytes of all rows that move. PE 0 returns the figures. Collective.
    pub fn gpu_product(
        &mut self,
        kernels: &GpuKernels,
        what: Product,
        size: usize,
    ) -> Result<(Option<Figures>, Parts)> {
        let device = kernels.device();
        let (rt, gpu) = (device.runtime(), device.gpu());
        let (me, ranks) = (rt.my_pe() as usize, rt.n_pes() as usize);
        let heap = TeamHeap::new(rt, heap::of_product_on_gpu(what, size, rt.n_pes()))?;
        let world = rt.team_world()?;
        let (shards, schedule) = heap::rows_on_gpu(what, size, ranks, kernels.move_by_proxy(&world)?);
        let (rows, own) = (shards.rows(), shards.of(me));
        let Some(alone) = world.split(Group::new(me as i64, 1, 1, rt.my_pe(), rt.n_pes()))? else {
            return Err(Error::Arguments("a PE is in no team of its own".into()));
        };
        let gathers = what == Product::AllGather;
        let (little, spread) = (if gathers { [WIDTH, FEW] } else { [FEW, WIDTH] }, (&shards, schedule));
        let mut together = Layer::new(kernels, (&heap, &world), what, spread, [WIDTH; 2])?;
        let mut moving = Layer::new(kernels, (&heap, &world), what, spread, little)?;
        let unfused = (&Shards::new(&[rows]), Schedule::Unfused);
        let mut single = Layer::new(kernels, (&heap, &alone), what, unfused, [WIDTH; 2])?;

        let (data, stream) = (OnGpu::new(gpu, me, rows)?, Stream::new(gpu)?);
        let (all, given) = (data.operands(0), data.operands(if gathers { own.start } else { 0 }));
        let taken = if what == Product::ReduceScatter { own } else { 0..rows };
        // SAFETY: this function's memory for all rows and weights, which lives until the stream is idle.
        unsafe { together.post(&stream, &given) }?;
        stream.wait(patience(rt))?;
        together.check()?;
        let of = if gathers { me..me + 1 } else { 0..ranks };
        self.is_product(&data.output, (taken.clone(), of.clone()), size)?;
        let timed = |bench: &mut Self, plan: &mut Layer, operands: &Operands| -> Result<(Samples, u64)> {
            // SAFETY: as above.
            let (samples, warmup, _) = bench.timed_on(&stream, rt, size, || unsafe { plan.post(&stream, operands) })?;
            plan.check()?;
            Ok((samples, warmup))
        };
        let (samples, warmup) = timed(self, &mut together, &given)?;
        self.is_product(&data.output, (taken, of), size)?;
        let (product, _) = timed(self, &mut single, &all)?;
        let (moves, _) = timed(self, &mut moving, &given)?;
        single.free(&alone)?;
        moving.free(&world)?;
        together.free(&world)?;
        alone.destroy()?;
        heap.free()?;
        let [round, product, moves] = [&samples, &product, &moves].map(|samples| samples.latency(1.0, 0).p50);
        let parts = Parts { rows, schedule, round, product, moves };
        // Thousands of operations; per microsecond they give Gop/s.
        let work = (2 * rows * WIDTH * WIDTH) as f64 / 1e3;
        Ok((self.is_first().then(|| samples.rate(work, 1, warmup)), parts))
    }

    /// Checks that the output has these rows of the sum of these PEs' products.
    fn is_product(
        &self,
        output: &DeviceBuffer,
        (rows, of): (std::ops::Range<usize>, std::ops::Range<usize>),
        size: usize,
    ) -> Result<()> {
        let found = content(output, 2 * rows.len() * WIDTH)?;
        for (i, code) in found.chunks_exact(2).enumerate() {
            let (row, column) = (rows.start + i / WIDTH, i % WIDTH);
            let factor: f32 = of.clone().map(|rank| column_number(rank, column)).sum();
            // The sum of 32-bit floats is rounded once.
            let expected = bf16::from_f32(TIMES as f32 * row_number(row) * factor).to_le_bytes();
            if let Some(byte) = (0..2).find(|&byte| code[byte] != expected[byte]) {
                let (test, pe, at) = (self.test.name, self.backend.pe(), 2 * i + byte);
                return Err(Error::WrongData { test, size, pe, at, found: code[byte], expected: expected[byte] });
            }
        }
        Ok(())
    }
}

fn numbers(values: impl Iterator<Item = f32>) -> Vec<u8> {
    values.flat_map(|value| bf16::from_f32(value).to_le_bytes()).collect()
}
