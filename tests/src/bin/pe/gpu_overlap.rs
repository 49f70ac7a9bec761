//! Products of tensor-parallel layers on GPUs, all numbers checked: types, layouts, bias, shapes, schedules, with
//! delays before waits; their bits beside the unfused form; graphs; a PE that does not arrive; and times.
//!
//!     SYMRAIL_HEAP_KIND=device SYMRAIL_HEAP_SIZE=600M symrail run -n 2 -- pe gpu_overlap right|bits|graph|late|bench
//!
//! Without a GPU or without cuBLASLt it prints SKIPPED.
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use half::{bf16, f16};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use symrail::gpu::GpuDevice;
use symrail::kernels::cuda::compile::Nvrtc;
use symrail::kernels::cuda::{DeviceBuffer, Gpu, Stream};
use symrail::{Runtime, Team, TeamHeap, rounds};
use symrail_core::fp8::{e4m3_to_f32, e5m2_to_f32, f32_to_e4m3, f32_to_e5m2};
use symrail_overlap::cuda::{DataType, GpuAllGatherMatmul, GpuKernels, GpuMatmulReduce, GpuShape, Operands};
use symrail_overlap::{Error, Layout, Reduced, Schedule, Shards};
use symrail_tests::pe;

const TIME_LIMIT: Duration = Duration::from_secs(60);
const ROUNDS: usize = 3;

pub fn main() -> ExitCode {
    let what: String = pe::arg(0, "right".into());
    if Gpu::count() == 0 {
        println!("SKIPPED: no CUDA driver or no GPU on this machine");
        return ExitCode::SUCCESS;
    }
    pe::run(|rt| {
        let gpu = rt.own_gpu()?;
        let device = rt.gpu_device(&gpu)?;
        let kernels = good(GpuKernels::new(&device, &good(Nvrtc::find())));
        let heap = good(TeamHeap::new(rt, pe::arg(1, 256) << 20));
        let stream = good(Stream::new(&gpu));
        let team = rt.team_world()?;
        let world = World { rt, device: &device, gpu: &gpu, kernels: &kernels, heap: &heap, team: &team, stream };
        match what.as_str() {
            "bits" => world.bits(),
            "graph" => world.graph(),
            "late" => {
                world.refused();
                world.late();
            }
            "bench" => world.bench(),
            _ => world.right(),
        }
        if rt.my_pe() == 0 {
            let peers = if device.is_mapped(rt.n_pes() - 1) { "mapped" } else { "proxied" };
            println!("well: {what}, peers {peers}");
        }
        if what == "late" {
            // Plans that have failed are not freed.
            rt.barrier_all()?;
            return Ok(());
        }
        rt.barrier_all()?;
        good(heap.free());
        drop((team, kernels));
        device.close()
    })
}

fn good<T, E: std::fmt::Display>(result: Result<T, E>) -> T {
    result.unwrap_or_else(|error| panic!("{error}"))
}

struct World<'d> {
    rt: &'d Runtime,
    device: &'d GpuDevice,
    gpu: &'d Arc<Gpu>,
    kernels: &'d GpuKernels,
    heap: &'d TeamHeap,
    team: &'d Team,
    stream: Stream,
}

/// Either kind of plan.
enum Plan {
    Gather(GpuAllGatherMatmul),
    Reduce(GpuMatmulReduce),
}

/// The parameters of a product: `None` gathers.
#[derive(Clone)]
struct Case {
    shape: GpuShape,
    reduced: Option<Reduced>,
    bias: bool,
    delay: u64,
    /// Whole numbers, whose sums are exact; otherwise any.
    whole: bool,
}

fn code(number: DataType, value: f32) -> Vec<u8> {
    match number {
        DataType::Float32 => value.to_ne_bytes().to_vec(),
        DataType::Float16 => f16::from_f32(value).to_ne_bytes().to_vec(),
        DataType::Bfloat16 => bf16::from_f32(value).to_ne_bytes().to_vec(),
        DataType::Float8E4m3 => vec![f32_to_e4m3(value)],
        _ => vec![f32_to_e5m2(value)],
    }
}

fn value(number: DataType, code: &[u8]) -> f32 {
    match number {
        DataType::Float32 => f32::from_ne_bytes(code.try_into().unwrap()),
        DataType::Float16 => f16::from_ne_bytes(code.try_into().unwrap()).to_f32(),
        DataType::Bfloat16 => bf16::from_ne_bytes(code.try_into().unwrap()).to_f32(),
        DataType::Float8E4m3 => e4m3_to_f32(code[0]),
        _ => e5m2_to_f32(code[0]),
    }
}

/// A matrix by rows: its values and its encoded bytes.
struct Matrix {
    values: Vec<f32>,
    codes: Vec<u8>,
}

impl Matrix {
    fn new(rng: &mut StdRng, count: usize, number: DataType, whole: bool) -> Matrix {
        let draw =
            |rng: &mut StdRng| if whole { rng.random_range(-2i32..3) as f32 } else { rng.random_range(-1.0..1.0) };
        let codes: Vec<u8> = (0..count).flat_map(|_| code(number, draw(rng))).collect();
        let values = codes.chunks_exact(number.size()).map(|code| value(number, code)).collect();
        Matrix { values, codes }
    }
}

/// One rank's arguments, in the GPU's memory.
struct Passed {
    rows: DeviceBuffer,
    weight: DeviceBuffer,
    bias: DeviceBuffer,
    output: DeviceBuffer,
    scales: DeviceBuffer,
}

impl<'d> World<'d> {
    fn me(&self) -> usize {
        self.rt.my_pe() as usize
    }

    fn plan(&self, case: &Case) -> Result<Plan, Error> {
        let (kernels, heap, team, shape) = (self.kernels, self.heap, self.team, &case.shape);
        let seed = 17 + self.me() as u64;
        Ok(match case.reduced {
            None => {
                let mut plan = GpuAllGatherMatmul::new(kernels, heap, team, shape)?;
                plan.delay(case.delay, seed);
                Plan::Gather(plan)
            }
            Some(reduced) => {
                let mut plan = GpuMatmulReduce::new(kernels, heap, team, shape, reduced)?;
                plan.delay(case.delay, seed);
                Plan::Reduce(plan)
            }
        })
    }

    fn buffer(&self, bytes: &[u8]) -> DeviceBuffer {
        // Ranks without rows have none to write.
        let buffer = good(self.gpu.alloc(bytes.len().max(16)));
        if !bytes.is_empty() {
            good(buffer.write(0, bytes));
        }
        buffer
    }

    /// This rank's rows of the output.
    fn output_rows(&self, case: &Case) -> std::ops::Range<usize> {
        match case.reduced {
            Some(Reduced::ToShards) => case.shape.shards.of(self.me()),
            _ => 0..case.shape.shards.rows(),
        }
    }

    /// This rank's arguments in a round, and its expected result in 64-bit floats.
    fn operands(&self, case: &Case, seed: u64) -> (Passed, Vec<f64>) {
        let rng = &mut StdRng::seed_from_u64(seed);
        let GpuShape { shards, inputs, outputs, numbers, .. } = &case.shape;
        let ([of_rows, of_weight, of_product], whole) = (*numbers, case.whole);
        let bias = Matrix::new(rng, *outputs, of_product, whole);
        let scales = if of_rows.size() == 1 { [2.0f32, 0.5] } else { [1.0, 1.0] };
        // For each rank: in an all-gather all have the same rows, in a reduction not.
        let mut ranks = Vec::new();
        let same = Matrix::new(rng, shards.rows() * inputs, of_rows, whole);
        for _ in 0..shards.ranks() {
            let rows = Matrix::new(rng, shards.rows() * inputs, of_rows, whole);
            ranks.push((rows, Matrix::new(rng, inputs * outputs, of_weight, whole)));
        }
        let wanted_rows = self.output_rows(case);
        let mut wanted = vec![0.0f64; wanted_rows.len() * outputs];
        for (rank, (rows, weight)) in ranks.iter().enumerate() {
            let rows = if case.reduced.is_none() { &same } else { rows };
            if case.reduced.is_none() && rank != self.me() {
                continue;
            }
            for (i, sum) in wanted.iter_mut().enumerate() {
                let (row, output) = (wanted_rows.start + i / outputs, i % outputs);
                for input in 0..*inputs {
                    let at = match case.shape.layout {
                        Layout::ByInputs => input * outputs + output,
                        Layout::ByOutputs => output * inputs + input,
                    };
                    *sum += f64::from(rows.values[row * inputs + input])
                        * f64::from(weight.values[at])
                        * f64::from(scales[0] * scales[1]);
                }
            }
        }
        if case.bias {
            wanted.iter_mut().enumerate().for_each(|(i, sum)| *sum += f64::from(bias.values[i % outputs]));
        }
        let own = shards.of(self.me());
        let pitch = inputs * of_rows.size();
        let (rows, weight) = &ranks[self.me()];
        let rows = match case.reduced {
            None => &same.codes[own.start * pitch..own.end * pitch],
            Some(_) => &rows.codes[..],
        };
        let passed = Passed {
            rows: self.buffer(rows),
            weight: self.buffer(&weight.codes),
            bias: self.buffer(&bias.codes),
            output: self.buffer(&vec![0xA5; wanted.len() * of_product.size()]),
            scales: self.buffer(&scales.iter().flat_map(|scale| scale.to_ne_bytes()).collect::<Vec<_>>()),
        };
        (passed, wanted)
    }

    fn addresses(case: &Case, passed: &Passed) -> Operands {
        let scales = passed.scales.at().get();
        Operands {
            rows: passed.rows.at().get(),
            weight: passed.weight.at().get(),
            bias: if case.bias { passed.bias.at().get() } else { 0 },
            output: passed.output.at().get(),
            // The second scale is at an address that cuBLASLt does not accept.
            scales: [scales, scales + 4],
        }
    }

    fn post(&self, plan: &mut Plan, operands: &Operands) -> Result<(), Error> {
        // SAFETY: the operands are of the plan's sizes, and stay until the stream was waited for.
        unsafe {
            match plan {
                Plan::Gather(plan) => plan.post(&self.stream, operands),
                Plan::Reduce(plan) => plan.post(&self.stream, operands),
            }
        }
    }

    fn check(plan: &mut Plan) -> Result<(), Error> {
        match plan {
            Plan::Gather(plan) => plan.check(),
            Plan::Reduce(plan) => plan.check(),
        }
    }

    fn free(&self, plan: Plan) {
        good(match plan {
            Plan::Gather(plan) => plan.free(self.team),
            Plan::Reduce(plan) => plan.free(self.team),
        });
    }

    fn output(&self, passed: &Passed) -> Vec<u8> {
        let mut codes = vec![0; passed.output.bytes()];
        good(passed.output.read(0, &mut codes));
        codes
    }

    fn assert_right(case: &Case, codes: &[u8], wanted: &[f64], what: &str) {
        let number = case.shape.numbers[2];
        for (i, (code, wanted)) in codes.chunks_exact(number.size()).zip(wanted).enumerate() {
            let found = f64::from(value(number, code));
            assert!(found == *wanted, "{what}, number {i}: {found}, not {wanted}: {:?}", case.shape);
        }
    }

    /// Shapes, types, layouts and schedules, with whole numbers, so that all sums are exact.
    fn cases(&self) -> Vec<Case> {
        let ranks = self.rt.n_pes() as usize;
        let ragged: Vec<usize> = (0..ranks).map(|rank| (rank * 13 + 5) % 29 * usize::from(rank != 1)).collect();
        let (f32s, f16s, bf16s) = ([DataType::Float32; 3], [DataType::Float16; 3], [DataType::Bfloat16; 3]);
        let e4m3 = [DataType::Float8E4m3, DataType::Float8E4m3, DataType::Bfloat16];
        let e5m2 = [DataType::Float8E5m2, DataType::Float8E4m3, DataType::Float16];
        let mut cases = Vec::new();
        for (shards, inputs, outputs, numbers, layout) in [
            (Shards::split(67, ranks), 33, 17, f32s, Layout::ByOutputs),
            (Shards::split(1, ranks), 8, 8, f32s, Layout::ByInputs),
            (Shards::new(&ragged), 24, 40, f16s, Layout::ByOutputs),
            (Shards::split(301, ranks), 32, 64, bf16s, Layout::ByInputs),
            (Shards::split(96, ranks), 32, 64, e4m3, Layout::ByOutputs),
            (Shards::split(80, ranks), 16, 32, e5m2, Layout::ByOutputs),
        ] {
            for schedule in [Schedule::Unfused, Schedule::Direct { rows: 9 }, Schedule::Ring { rows: 16 }] {
                let shards = shards.clone();
                let shape = GpuShape { shards, inputs, outputs, numbers, layout, schedule, chosen_for: None };
                if numbers[0].size() == 1 && self.device.gpu().compute_capability() < (8, 9) {
                    continue;
                }
                for reduced in [None, Some(Reduced::ToShards), Some(Reduced::Everywhere)] {
                    let bias = cases.len() % 2 == 0;
                    cases.push(Case { shape: shape.clone(), reduced, bias, delay: 0, whole: true });
                }
            }
        }
        cases
    }

    fn right(&self) {
        for (n, case) in self.cases().into_iter().enumerate() {
            for delay in [0, 200_000] {
                let case = Case { delay, ..case.clone() };
                pe::doing(format!("{:?} of {:?}", case.reduced, case.shape));
                let mut plan = good(self.plan(&case));
                for round in 0..ROUNDS {
                    let (passed, wanted) = self.operands(&case, (n * ROUNDS + round) as u64);
                    good(self.post(&mut plan, &Self::addresses(&case, &passed)));
                    good(self.stream.wait(TIME_LIMIT));
                    good(Self::check(&mut plan));
                    Self::assert_right(&case, &self.output(&passed), &wanted, "right");
                }
                self.free(plan);
            }
        }
    }

    /// All schedules give the bits of the unfused form, if cuBLASLt chooses the same kernel for it.
    fn bits(&self) {
        let ranks = self.rt.n_pes() as usize;
        for numbers in [[DataType::Float32; 3], [DataType::Float16; 3], [DataType::Bfloat16; 3]] {
            for reduced in [None, Some(Reduced::ToShards), Some(Reduced::Everywhere)] {
                let mut unfused: Option<Vec<u8>> = None;
                for schedule in [Schedule::Unfused, Schedule::Direct { rows: 128 }, Schedule::Ring { rows: 128 }] {
                    let shape = GpuShape {
                        shards: Shards::split(384 * ranks + 40, ranks),
                        inputs: 512,
                        outputs: 256,
                        numbers,
                        layout: Layout::ByOutputs,
                        schedule,
                        chosen_for: Some(128),
                    };
                    let case = Case { shape, reduced, bias: true, delay: 0, whole: false };
                    pe::doing(format!("{reduced:?} of {:?}", case.shape));
                    let mut plan = good(self.plan(&case));
                    let passed = self.operands_only(&case, 5);
                    good(self.post(&mut plan, &Self::addresses(&case, &passed)));
                    good(self.stream.wait(TIME_LIMIT));
                    good(Self::check(&mut plan));
                    let found = self.output(&passed);
                    let first = unfused.get_or_insert_with(|| found.clone());
                    assert!(*first == found, "{schedule:?}, {reduced:?}, {numbers:?}: other bits than unfused");
                    self.free(plan);
                }
            }
        }
    }

    /// This rank's arguments, without computing the expected result.
    fn operands_only(&self, case: &Case, seed: u64) -> Passed {
        let rng = &mut StdRng::seed_from_u64(seed);
        let GpuShape { shards, inputs, outputs, numbers, .. } = &case.shape;
        let own = if case.reduced.is_none() { shards.of(self.me()) } else { 0..shards.rows() };
        let mut codes = |count: usize, number| self.buffer(&Matrix::new(rng, count, number, case.whole).codes);
        let (rows, weight) = (codes(own.len() * inputs, numbers[0]), codes(inputs * outputs, numbers[1]));
        let bias = codes(*outputs, numbers[2]);
        let bytes = self.output_rows(case).len() * outputs * numbers[2].size();
        let (output, scales) = (self.buffer(&vec![0; bytes]), self.buffer(&[0; 8]));
        Passed { rows, weight, bias, output, scales }
    }

    /// Rounds that are replayed from graphs, with new numbers in between.
    fn graph(&self) {
        let ranks = self.rt.n_pes() as usize;
        for reduced in [None, Some(Reduced::ToShards), Some(Reduced::Everywhere)] {
            for (schedule, delay) in [
                (Schedule::Unfused, 0),
                (Schedule::Direct { rows: 20 }, 0),
                (Schedule::Direct { rows: 20 }, 100_000),
                (Schedule::Ring { rows: 20 }, 0),
            ] {
                let shape = GpuShape {
                    shards: Shards::split(150, ranks),
                    inputs: 32,
                    outputs: 24,
                    numbers: [DataType::Bfloat16; 3],
                    layout: Layout::ByOutputs,
                    schedule,
                    chosen_for: None,
                };
                let case = Case { shape, reduced, bias: true, delay, whole: true };
                pe::doing(format!("{reduced:?} of {:?}", case.shape));
                let mut plan = good(self.plan(&case));
                let (passed, _) = self.operands(&case, 0);
                let graph =
                    good(self.stream.capture::<Error>(|| self.post(&mut plan, &Self::addresses(&case, &passed))));
                for seed in 0..10 {
                    let (renewed, wanted) = self.operands(&case, seed);
                    for (to, from) in [
                        (&passed.rows, &renewed.rows),
                        (&passed.weight, &renewed.weight),
                        (&passed.bias, &renewed.bias),
                    ] {
                        let mut bytes = vec![0; from.bytes()];
                        good(from.read(0, &mut bytes));
                        good(to.write(0, &bytes));
                    }
                    for _ in 0..10 {
                        // SAFETY: plan and operands stay.
                        good(unsafe { self.stream.replay(&graph) });
                    }
                    good(self.stream.wait(TIME_LIMIT));
                    good(Self::check(&mut plan));
                    Self::assert_right(&case, &self.output(&passed), &wanted, "replayed");
                }
                drop(graph);
                self.free(plan);
            }
        }
    }

    /// cuBLASLt refuses the last PE's weight: the others do not wait for that PE.
    fn refused(&self) {
        if self.device.gpu().compute_capability() < (8, 9) {
            return;
        }
        let (ranks, last) = (self.rt.n_pes() as usize, self.rt.n_pes() - 1);
        let is_last = self.rt.my_pe() == last;
        let shape = GpuShape {
            shards: Shards::split(64, ranks),
            inputs: 16,
            // cuBLASLt multiplies 8-bit numbers if all sizes are multiples of 16.
            outputs: if is_last { 20 } else { 32 },
            numbers: [DataType::Float8E4m3, DataType::Float8E4m3, DataType::Bfloat16],
            layout: Layout::ByOutputs,
            schedule: Schedule::Direct { rows: 8 },
            chosen_for: None,
        };
        let case = Case { shape, reduced: None, bias: false, delay: 0, whole: true };
        let mut plan = good(self.plan(&case));
        let passed = self.operands_only(&case, 6);
        let posted = self.post(&mut plan, &Self::addresses(&case, &passed));
        if is_last {
            let error = posted.unwrap_err();
            assert!(matches!(error, Error::Gpu(_)), "{error}");
            let again = self.post(&mut plan, &Self::addresses(&case, &passed)).unwrap_err();
            assert!(matches!(again, Error::Round(rounds::Error::Poisoned { .. })), "{again}");
        } else {
            good(posted);
            good(self.stream.wait(TIME_LIMIT));
            let error = Self::check(&mut plan).unwrap_err();
            let told = matches!(error, Error::Round(rounds::Error::Aborted { by, lost: None, .. }) if by == last);
            assert!(told, "{error}");
        }
        std::mem::forget(plan);
    }

    /// The last PE does not post: the errors of the others name it, and their plans are refused from then on.
    fn late(&self) {
        let ranks = self.rt.n_pes() as usize;
        let shape = GpuShape {
            shards: Shards::split(64, ranks),
            inputs: 16,
            outputs: 16,
            numbers: [DataType::Float32; 3],
            layout: Layout::ByOutputs,
            schedule: Schedule::Direct { rows: 8 },
            chosen_for: None,
        };
        let case = Case { shape, reduced: None, bias: false, delay: 0, whole: true };
        let mut plan = good(self.plan(&case));
        let last = self.rt.n_pes() - 1;
        let gave_up = self.rt.alloc_slice::<u64>(1).unwrap();
        if self.rt.my_pe() == last {
            while gave_up.read(0).unwrap() < u64::from(last) {
                self.rt.progress();
            }
            // A proxy may deliver the word later than the host its own.
            let limit = Instant::now() + TIME_LIMIT;
            let error = loop {
                match Self::check(&mut plan) {
                    Err(error) => break error,
                    Ok(()) => assert!(Instant::now() < limit, "nobody has told that it gave up"),
                }
                self.rt.progress();
            };
            assert!(matches!(error, Error::Round(rounds::Error::Aborted { by, .. }) if by != last), "{error}");
            std::mem::forget(plan);
            return;
        }
        let (passed, _) = self.operands(&case, 0);
        good(self.post(&mut plan, &Self::addresses(&case, &passed)));
        good(self.stream.wait(TIME_LIMIT));
        let error = Self::check(&mut plan).unwrap_err();
        // Of several waiting blocks, the first to give up ends the others' waits.
        let of = match &error {
            Error::Round(rounds::Error::TimedOut { late, .. }) => late.first().copied(),
            Error::Round(rounds::Error::Aborted { lost, .. }) => *lost,
            _ => None,
        };
        assert_eq!(of, Some(last), "{error}");
        println!("{error}");
        let again = self.post(&mut plan, &Self::addresses(&case, &passed)).unwrap_err();
        assert!(matches!(again, Error::Round(rounds::Error::Poisoned { .. })), "{again}");
        gave_up.atomic_fetch_add(0, 1, last).unwrap();
        std::mem::forget(plan);
    }

    /// Microseconds of rounds: with the chosen schedule, and unfused. (Rows of all ranks, inputs, outputs of each.)
    fn bench(&self) {
        let ranks = self.rt.n_pes() as usize;
        let by_proxy = good(self.kernels.move_by_proxy(self.team));
        for (rows, inputs, outputs) in [(512, 1792, 4096), (8192, 3584, 4096), (16384, 8192, 8192)] {
            for reduced in [None, Some(Reduced::ToShards), Some(Reduced::Everywhere)] {
                let shards = Shards::split(rows, ranks);
                let (moved, work) = if reduced.is_none() { (inputs, outputs) } else { (outputs, inputs) };
                let chosen = match by_proxy {
                    true => Schedule::choose_by_proxy(&shards, moved * 2, work),
                    false => Schedule::choose_on_gpu(&shards, moved * 2, reduced),
                };
                let mut line = format!("{rows} x {inputs} x {outputs}, {reduced:?}:");
                for schedule in [chosen, Schedule::Unfused] {
                    let (shards, numbers, layout) = (shards.clone(), [DataType::Bfloat16; 3], Layout::ByOutputs);
                    let shape = GpuShape { shards, inputs, outputs, numbers, layout, schedule, chosen_for: None };
                    let case = Case { shape, reduced, bias: false, delay: 0, whole: false };
                    let mut plan = match self.plan(&case) {
                        Ok(plan) => plan,
                        Err(Error::Runtime(symrail::Error::TeamHeapFull { .. })) => {
                            line += " no room in the heap (the second argument is its MiB);";
                            continue;
                        }
                        Err(error) => panic!("{error}"),
                    };
                    let passed = self.operands_only(&case, 1);
                    let operands = Self::addresses(&case, &passed);
                    let mut rounds = |count: usize| (0..count).for_each(|_| good(self.post(&mut plan, &operands)));
                    rounds(3);
                    good(self.stream.wait(TIME_LIMIT));
                    good(self.rt.barrier_all());
                    good(self.stream.mark(0));
                    rounds(20);
                    good(self.stream.mark(1));
                    good(self.stream.wait(TIME_LIMIT));
                    let us = good(self.stream.between()) / 20e3;
                    let tflops = 2.0 * rows as f64 * inputs as f64 * outputs as f64 / us / 1e6;
                    line += &format!(" {schedule:?} {us:.0} us, {tflops:.0} TFLOP/s;");
                    good(Self::check(&mut plan));
                    self.free(plan);
                }
                if self.rt.my_pe() == 0 {
                    println!("{line}");
                }
            }
        }
    }
}
