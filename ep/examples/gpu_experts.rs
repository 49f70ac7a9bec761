//! Low latency on GPUs, compared with results of the host: `symrail run -n 2 -- target/debug/examples/gpu_experts`.
//! Arguments: the number of rounds that are replayed as graphs (default 2,000); `measure` for measurements, too, where
//! peers are mapped (128 tokens of 7,168 elements, top-8 of 256 experts).
use std::time::Duration;

use half::bf16;
use symrail::Runtime;
use symrail::gpu::GpuDevice;
use symrail::kernels::cuda::compile::Nvrtc;
use symrail::kernels::cuda::{DeviceBuffer, DevicePtr, Gpu, Stream};
use symrail_ep::cuda::DeviceReturns::{Encoded, Plain};
use symrail_ep::cuda::{DeviceLowLatency, DeviceReceived, DeviceReturns, DeviceRows, DeviceShape, LowLatencyTokens};
use symrail_ep::{DataType, WaitLimit, fp8, logfmt};

type Failure = Box<dyn std::error::Error>;

const LIMIT: Duration = Duration::from_secs(30);
/// The number of replays with the same routing.
const REPLAYS: u64 = 20;

const BF16: DeviceRows = DeviceRows::Bf16;
const FP8: DeviceRows = DeviceRows::Fp8;

fn main() -> Result<(), Failure> {
    let rounds = std::env::args().nth(1).map_or(Ok(2000), |text| text.parse())?;
    let measure = std::env::args().nth(2).is_some_and(|what| what == "measure");
    let rt = Runtime::init()?;
    let gpu = rt.own_gpu()?;
    gpu.bind()?;
    let device = rt.gpu_device(&gpu)?;
    let nvrtc = Nvrtc::find()?;
    let mapped = (0..rt.n_pes()).all(|pe| device.is_mapped(pe));
    let experts = 8 * rt.n_pes() as usize;
    for (most_tokens, hidden, k, kind) in [(1, 16, 1, BF16), (7, 272, 3, FP8), (128, 512, 8, BF16), (64, 1040, 16, FP8)]
    {
        let shape = DeviceShape { most_tokens, hidden, experts, k };
        check(&rt, &device, &nvrtc, (shape, kind), rounds / REPLAYS / 4)?;
        if rt.my_pe() == 0 {
            println!("well: {shape:?}, {kind:?}, peers {}", if mapped { "mapped" } else { "through the proxy" });
        }
    }
    for (kind, form) in [(FP8, Plain), (BF16, Plain), (BF16, Encoded)].into_iter().filter(|_| measure && mapped) {
        let experts = 256 / rt.n_pes() as usize * rt.n_pes() as usize;
        time(&rt, &device, &nvrtc, (DeviceShape { most_tokens: 128, hidden: 7168, experts, k: 8 }, kind, form))?;
    }
    rt.barrier_all()?;
    device.close()?;
    Ok(rt.finalize()?)
}

fn mix(numbers: [u64; 4]) -> u64 {
    numbers.iter().fold(0x9e37_79b9_7f4a_7c15, |sum, &number| {
        let mixed = (sum ^ number).wrapping_mul(0xff51_afd7_ed55_8ccd);
        mixed ^ (mixed >> 29)
    })
}

/// A value between -8 and 8.
fn value(numbers: [u64; 4]) -> f32 {
    bf16::from_f32((mix(numbers) % 4096) as f32 / 256.0 - 8.0).to_f32()
}

/// One rank's tokens of a round.
struct Input {
    x: Vec<u8>,
    topk: Vec<i64>,
    weights: Vec<f32>,
}

impl Input {
    fn new(shape: &DeviceShape, rank: u64, round: u64) -> Input {
        let tokens = if mix([rank, round, 1, 1]).is_multiple_of(5) {
            0
        } else {
            mix([rank, round, 2, 2]) as usize % shape.most_tokens + 1
        };
        let of = |token: usize, i: usize| bf16::from_f32(value([rank, round, token as u64, i as u64])).to_ne_bytes();
        let x = (0..tokens).flat_map(|token| (0..shape.hidden).flat_map(move |i| of(token, i))).collect();
        let slot = |at: usize| (mix([rank + 100, round, at as u64, 3]) % (shape.experts as u64 + 1)) as i64 - 1;
        let topk = (0..tokens * shape.k).map(slot).collect();
        let weights = (0..tokens * shape.k).map(|at| value([rank + 200, round, at as u64, 4])).collect();
        Input { x, topk, weights }
    }

    fn tokens(&self, shape: &DeviceShape) -> usize {
        self.topk.len() / shape.k
    }
}

/// An expert's result for a token. Sums of results of some tokens are below 1, so that they can be encoded.
fn made(shape: &DeviceShape, source: u64, slot: u64, expert: u64) -> Vec<bf16> {
    let scale = if (slot / shape.k as u64).is_multiple_of(3) { 1.0 } else { 1.0 / 8192.0 };
    (0..shape.hidden as u64).map(|i| bf16::from_f32(value([source, slot, expert, i]) * scale)).collect()
}

/// How a rank's rows return in a round: plain for all, encoded for all, encoded for some.
fn form_of(rank: u64, round: u64) -> DeviceReturns {
    if round % 3 == 1 || (round % 3 == 2 && rank.is_multiple_of(2)) { Encoded } else { Plain }
}

fn bytes_of(row: &[bf16]) -> impl Iterator<Item = u8> + '_ {
    row.iter().flat_map(|value| value.to_ne_bytes())
}

/// A PE's memory for calls.
struct Memory {
    kind: DeviceRows,
    ranges: DeviceBuffer,
    number: DeviceBuffer,
    x: DeviceBuffer,
    topk: DeviceBuffer,
    weights: DeviceBuffer,
    out: DeviceBuffer,
    scales: DeviceBuffer,
    counts: DeviceBuffer,
    sources: DeviceBuffer,
    received: DeviceBuffer,
}

impl Memory {
    fn new(
        gpu: &std::sync::Arc<Gpu>,
        (shape, kind): (&DeviceShape, DeviceRows),
        ranks: usize,
    ) -> Result<Memory, Failure> {
        let (share, room) = (shape.experts / ranks, ranks * shape.most_tokens);
        let buffer = |bytes: usize| gpu.alloc(bytes.max(16));
        Ok(Memory {
            kind,
            ranges: buffer(8 * share * ranks)?,
            number: buffer(8)?,
            x: buffer(shape.most_tokens * 2 * shape.hidden)?,
            topk: buffer(shape.most_tokens * shape.k * 8)?,
            weights: buffer(shape.most_tokens * shape.k * 4)?,
            out: buffer(shape.most_tokens * 2 * shape.hidden)?,
            scales: buffer(share * room * 4 * fp8::scales(shape.hidden))?,
            counts: buffer(share * 4)?,
            sources: buffer(share * room * 4)?,
            received: buffer(share * room * 2 * shape.hidden)?,
        })
    }

    fn give(&self, input: &Input) -> Result<(), Failure> {
        let topk: Vec<u8> = input.topk.iter().flat_map(|slot| slot.to_ne_bytes()).collect();
        let weights: Vec<u8> = input.weights.iter().flat_map(|weight| weight.to_ne_bytes()).collect();
        for (to, bytes) in [(&self.x, &input.x), (&self.topk, &topk), (&self.weights, &weights)] {
            if !bytes.is_empty() {
                to.write(0, bytes)?;
            }
        }
        Ok(())
    }

    fn found(&self) -> DeviceReceived {
        let all = [&self.received, &self.scales, &self.counts, &self.sources, &self.ranges, &self.number];
        let [rows, scales, counts, sources, ranges, number] = all.map(|buffer| buffer.at().get());
        DeviceReceived { rows, scales, counts, sources, ranges, number, ..DeviceReceived::default() }
    }
}

/// Checks single rounds, and then rounds that are replayed as a graph while the routing changes.
fn check(
    rt: &Runtime,
    device: &GpuDevice,
    nvrtc: &Nvrtc,
    (shape, kind): (DeviceShape, DeviceRows),
    batches: u64,
) -> Result<(), Failure> {
    let (gpu, ranks, me) = (device.gpu(), rt.n_pes() as usize, u64::from(rt.my_pe()));
    let (share, room, bytes) = (shape.experts / ranks, ranks * shape.most_tokens, 2 * shape.hidden);
    let (buffers, memory, stream) = (
        DeviceLowLatency::new(device, nvrtc, shape, WaitLimit::of(rt))?,
        Memory::new(gpu, (&shape, kind), ranks)?,
        Stream::new(gpu)?,
    );
    // The memory is symmetric, because the proxy puts from it.
    let block = rt.align(128, share * room * bytes)?;
    let (made_at, found) = (device.address(block), memory.found());
    for round in 0..6 {
        let inputs: Vec<Input> = (0..ranks as u64).map(|rank| Input::new(&shape, rank, round)).collect();
        let own = &inputs[me as usize];
        let tokens = own.tokens(&shape);
        memory.give(own)?;
        let (x, topk, weights) = (memory.x.at().get(), memory.topk.at().get(), memory.weights.at().get());
        // SAFETY: the memory belongs to this function, has the size for these tokens, and lives until the stream is
        // idle.
        unsafe {
            buffers.send_dispatch(&stream, &LowLatencyTokens { rows: kind, x, topk, tokens })?;
            buffers.receive_dispatch(&stream, &found)?;
        }
        finish(&stream, &buffers)?;
        let mut answers = vec![0; share * room * bytes];
        for local in 0..share {
            let expert = me as usize * share + local;
            let mut row = local * room;
            for (source, input) in inputs.iter().enumerate() {
                for token in 0..input.tokens(&shape) {
                    let slots = &input.topk[token * shape.k..][..shape.k];
                    let Some(slot) = slots.iter().position(|&slot| slot == expert as i64) else { continue };
                    let slot = (token * shape.k + slot) as u64;
                    let mut source_of = [0; 4];
                    memory.sources.read(4 * row, &mut source_of)?;
                    equal("a source", &source_of, &(token as u32).to_ne_bytes(), (round, local, token))?;
                    compare_row(
                        &memory,
                        (&shape, room),
                        row,
                        &input.x[token * bytes..][..bytes],
                        (round, local, token),
                    )?;
                    let answer: Vec<u8> = bytes_of(&made(&shape, source as u64, slot, expert as u64)).collect();
                    answers[row * bytes..][..bytes].copy_from_slice(&answer);
                    row += 1;
                }
            }
            let mut count = [0; 4];
            memory.counts.read(4 * local, &mut count)?;
            equal("a count", &count, &((row - local * room) as u32).to_ne_bytes(), (round, local, 0))?;
        }
        // SAFETY: the memory is the block that was allocated.
        unsafe { gpu.write(DevicePtr::new(made_at), &answers) }?;
        let form = form_of(me, round);
        // SAFETY: as above.
        unsafe {
            buffers.send_combine(&stream, [made_at, weights, found.number], tokens, form)?;
            buffers.receive_combine(&stream, tokens, [topk, memory.out.at().get(), 0], form)?;
        }
        finish(&stream, &buffers)?;
        let answer = |slot: usize, expert: i64| made(&shape, me, slot as u64, expert as u64);
        let encodes = |rank: u64| {
            let both = [me, rank].map(|rank| form_of(rank, round)) == [Encoded; 2];
            both && rank != me && device.is_mapped(rank as u32)
        };
        compare_sums(&memory, (&shape, share), own, (answer, encodes), round)?;
    }
    replay(rt, device, &buffers, &memory, &stream, (block, batches))?;
    drop(stream);
    buffers.free()?;
    Ok(rt.free(block)?)
}

/// Replays rounds. Experts return rows unchanged (bfloat16), or the contents of their memory (FP8).
fn replay(
    rt: &Runtime,
    device: &GpuDevice,
    buffers: &DeviceLowLatency,
    memory: &Memory,
    stream: &Stream,
    (block, batches): (*mut u8, u64),
) -> Result<(), Failure> {
    let (shape, me) = (*buffers.shape(), u64::from(rt.my_pe()));
    let rows = device.address(block);
    let mut found = memory.found();
    if memory.kind == BF16 {
        found.rows = rows;
    }
    let (x, topk, weights, out) =
        (memory.x.at().get(), memory.topk.at().get(), memory.weights.at().get(), memory.out.at().get());
    let sent = LowLatencyTokens { rows: memory.kind, x, topk, tokens: shape.most_tokens };
    let graph = stream.capture(|| -> Result<(), Failure> {
        // SAFETY: the memory lives as long as the graph, and has the size for the most tokens.
        unsafe {
            buffers.send_dispatch(stream, &sent)?;
            buffers.receive_dispatch(stream, &found)?;
            buffers.send_combine(stream, [rows, weights, found.number], shape.most_tokens, Plain)?;
            Ok(buffers.receive_combine(stream, shape.most_tokens, [topk, out, 0], Plain)?)
        }
    })?;
    for batch in 0..batches {
        let mut input = Input::new(&shape, me, 1000 + batch);
        // Slots without a token name no expert.
        input.topk.resize(shape.most_tokens * shape.k, -1);
        input.weights.resize(shape.most_tokens * shape.k, 0.0);
        input.x.resize(shape.most_tokens * 2 * shape.hidden, 0);
        memory.give(&input)?;
        for _ in 0..REPLAYS {
            // SAFETY: as above.
            unsafe { stream.replay(&graph) }?;
        }
        finish(stream, buffers)?;
        if memory.kind == BF16 {
            let row = |slot: usize, _| {
                let bytes = &input.x[slot / shape.k * 2 * shape.hidden..][..2 * shape.hidden];
                bytes.as_chunks::<2>().0.iter().map(|value| bf16::from_ne_bytes(*value)).collect()
            };
            let share = shape.experts / rt.n_pes() as usize;
            compare_sums(memory, (&shape, share), &input, (row, |_| false), 1000 + batch)?;
        }
    }
    Ok(())
}

fn finish(stream: &Stream, buffers: &DeviceLowLatency) -> Result<(), Failure> {
    Ok(buffers.finish(stream, LIMIT)?)
}

fn compare_row(
    memory: &Memory,
    (shape, room): (&DeviceShape, usize),
    row: usize,
    x: &[u8],
    at: (u64, usize, usize),
) -> Result<(), Failure> {
    if memory.kind == BF16 {
        let mut found = vec![0; x.len()];
        memory.received.read(row * x.len(), &mut found)?;
        return equal("a row", &found, x, at);
    }
    let (mut cast, mut factors) = (Vec::new(), Vec::new());
    fp8::cast(x, DataType::Bfloat16, false, &mut cast, &mut factors)?;
    let mut found = vec![0; shape.hidden];
    memory.received.read(row * shape.hidden, &mut found)?;
    equal("a row of FP8", &found, &cast, at)?;
    // The scales of a group of elements lie one after the other for all rows of an expert.
    for (group, factor) in factors.iter().enumerate() {
        let (expert, row, mut found) = (row / room, row % room, [0; 4]);
        memory.scales.read(4 * ((expert * factors.len() + group) * room + row), &mut found)?;
        equal("a scale", &found, &factor.to_ne_bytes(), at)?;
    }
    Ok(())
}

fn compare_sums(
    memory: &Memory,
    (shape, share): (&DeviceShape, usize),
    input: &Input,
    (row, encodes): (impl Fn(usize, i64) -> Vec<bf16>, impl Fn(u64) -> bool),
    round: u64,
) -> Result<(), Failure> {
    for token in 0..input.tokens(shape) {
        let slots = &input.topk[token * shape.k..][..shape.k];
        let mut sums = vec![0f32; shape.hidden];
        for rank in 0..shape.experts / share {
            let mut of_rank = vec![0f32; shape.hidden];
            let here = |expert: i64| expert >= 0 && expert as usize / share == rank;
            for (slot, &expert) in slots.iter().enumerate().filter(|(_, expert)| here(**expert)) {
                let first = slots.iter().position(|&other| other == expert).unwrap_or(slot);
                let weight = input.weights[token * shape.k + slot];
                let row = row(token * shape.k + first, expert);
                of_rank.iter_mut().zip(row).for_each(|(sum, value)| *sum += value.to_f32() * weight);
            }
            let mut of_rank: Vec<u8> = of_rank.iter().flat_map(|&sum| bf16::from_f32(sum).to_ne_bytes()).collect();
            if encodes(rank as u64) {
                let mut encoded = Vec::new();
                logfmt::encode(&of_rank, DataType::Bfloat16, &mut encoded);
                logfmt::decode(&encoded, DataType::Bfloat16, &mut of_rank).ok_or("a row that is too short")?;
            }
            let of_rank = of_rank.as_chunks::<2>().0.iter().map(|value| bf16::from_ne_bytes(*value).to_f32());
            sums.iter_mut().zip(of_rank).for_each(|(sum, value)| *sum += value);
        }
        let wanted: Vec<u8> = sums.iter().flat_map(|&sum| bf16::from_f32(sum).to_ne_bytes()).collect();
        let mut found = vec![0; wanted.len()];
        memory.out.read(token * wanted.len(), &mut found)?;
        equal("a sum", &found, &wanted, (round, 0, token))?;
    }
    Ok(())
}

fn equal(what: &str, found: &[u8], wanted: &[u8], (round, expert, token): (u64, usize, usize)) -> Result<(), Failure> {
    match found.iter().zip(wanted).position(|(found, wanted)| found != wanted) {
        None => Ok(()),
        Some(at) => {
            let (found, wanted) = (found[at], wanted[at]);
            Err(format!("{what} of round {round}, expert {expert}, token {token}: byte {at} is {found}, not {wanted}")
                .into())
        }
    }
}

/// The time of a round under a graph.
fn time(
    rt: &Runtime,
    device: &GpuDevice,
    nvrtc: &Nvrtc,
    (shape, kind, form): (DeviceShape, DeviceRows, DeviceReturns),
) -> Result<(), Failure> {
    const ROUNDS: u32 = 500;
    let (gpu, ranks) = (device.gpu(), rt.n_pes() as usize);
    let (buffers, memory, stream) = (
        DeviceLowLatency::new(device, nvrtc, shape, WaitLimit::of(rt))?,
        Memory::new(gpu, (&shape, kind), ranks)?,
        Stream::new(gpu)?,
    );
    let mut input = Input::new(&shape, 1, 1);
    let step = shape.experts / shape.k;
    let slot = |at: usize| ((at / shape.k * 37 + at % shape.k * step) % shape.experts) as i64;
    input.topk = (0..shape.most_tokens * shape.k).map(slot).collect();
    input.weights = vec![0.125; input.topk.len()];
    let small = |i: usize| bf16::from_f32(value([i as u64, 1, 1, 1]) / 64.0).to_ne_bytes();
    input.x = (0..shape.most_tokens * shape.hidden).flat_map(small).collect();
    memory.give(&input)?;
    let (x, topk, weights, out) =
        (memory.x.at().get(), memory.topk.at().get(), memory.weights.at().get(), memory.out.at().get());
    let found = memory.found();
    let sent = LowLatencyTokens { rows: kind, x, topk, tokens: shape.most_tokens };
    let graph = stream.capture(|| -> Result<(), Failure> {
        // SAFETY: the memory lives as long as the graph.
        unsafe {
            buffers.send_dispatch(&stream, &sent)?;
            buffers.receive_dispatch(&stream, &found)?;
            buffers.send_combine(&stream, [found.rows, weights, found.number], shape.most_tokens, form)?;
            Ok(buffers.receive_combine(&stream, shape.most_tokens, [topk, out, 0], form)?)
        }
    })?;
    for rounds in [50, ROUNDS] {
        rt.barrier_all()?;
        stream.mark(0)?;
        for _ in 0..rounds {
            // SAFETY: as above.
            unsafe { stream.replay(&graph) }?;
        }
        stream.mark(1)?;
        finish(&stream, &buffers)?;
    }
    if rt.my_pe() == 0 {
        println!(
            "{shape:?}, {kind:?}, {form:?} returns: a round takes {:.1} µs",
            stream.between()? / 1e3 / f64::from(ROUNDS)
        );
    }
    rt.barrier_all()?;
    drop((graph, stream));
    Ok(buffers.free()?)
}
