//! High throughput on GPUs, compared with results of the host: `symrail run -n 2 --
//! target/debug/examples/gpu_high_throughput`. With the argument `measure` it also measures: 4,096 tokens of 7,168
//! elements, top-8 of 256 experts, dispatch in FP8 (as bytes with scales) and combine in bfloat16.
use std::time::Duration;

use half::bf16;
use symrail::gpu::GpuDevice;
use symrail::kernels::cuda::compile::Nvrtc;
use symrail::kernels::cuda::{DeviceBuffer, Stream};
use symrail::{Pe, Runtime};
use symrail_ep::cuda::{
    DeviceHighThroughput, DeviceParts, DeviceRoutes, DeviceTokens, DeviceTokensReceived, HighThroughputShape,
};
use symrail_ep::plan::hosts::Hosts;
use symrail_ep::{DataType, Error, Layout, TopK, WaitLimit};

type Failure = Box<dyn std::error::Error>;

const LIMIT: Duration = Duration::from_secs(60);
const BLOCKS: u32 = 24;

fn main() -> Result<(), Failure> {
    let measure = std::env::args().nth(1).is_some_and(|what| what == "measure");
    let rt = Runtime::init()?;
    let gpu = rt.own_gpu()?;
    gpu.bind()?;
    let device = rt.gpu_device(&gpu)?;
    let nvrtc = Nvrtc::find()?;
    let ranks = rt.n_pes() as usize;
    let mapped = (0..rt.n_pes()).all(|pe| device.is_mapped(pe));
    for (most_tokens, elements, k, scales, share) in
        [(1, 8, 1, 0, 1), (40, 136, 3, 2, 3), (300, 512, 8, 4, 8), (700, 1032, 16, 9, 32)]
    {
        let experts = share * ranks;
        let shape =
            HighThroughputShape { most_tokens, room: ranks * most_tokens, row: 4 * elements, scales, experts, k };
        let case = Case { rt: &rt, device: &device, shape, elements };
        case.check(&nvrtc)?;
        if most_tokens == 1 {
            case.fails_in_its_midst(&nvrtc)?;
        }
        if rt.my_pe() == 0 {
            println!("well: {shape:?}, peers {}", if mapped { "mapped" } else { "through the proxy" });
        }
    }
    if measure {
        let shape = HighThroughputShape {
            most_tokens: 4096,
            room: ranks * 4096,
            row: 14336,
            scales: 56,
            experts: 256 / ranks * ranks,
            k: 8,
        };
        Case { rt: &rt, device: &device, shape, elements: 7168 }.time(&nvrtc)?;
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

fn bytes_of<const N: usize>(words: impl IntoIterator<Item = [u8; N]>) -> Vec<u8> {
    words.into_iter().flatten().collect()
}

/// The shape of some calls.
struct Case<'a> {
    rt: &'a Runtime,
    device: &'a GpuDevice,
    shape: HighThroughputShape,
    elements: usize,
}

impl Case<'_> {
    fn buffer(&self, bytes: usize) -> Result<DeviceBuffer, Failure> {
        let buffer = self.device.gpu().alloc(bytes.max(16))?;
        buffer.fill(0)?;
        Ok(buffer)
    }

    fn with(&self, bytes: &[u8]) -> Result<DeviceBuffer, Failure> {
        let buffer = self.buffer(bytes.len())?;
        if !bytes.is_empty() {
            buffer.write(0, bytes)?;
        }
        Ok(buffer)
    }

    fn slots(&self, rank: Pe, call: u64) -> Vec<i64> {
        let HighThroughputShape { most_tokens, experts, k, .. } = self.shape;
        let rank = u64::from(rank);
        let none = mix([rank, call, 1, 1]).is_multiple_of(4);
        let tokens = if none { 0 } else { mix([rank, call, 2, 2]) as usize % most_tokens + 1 };
        (0..tokens * k).map(|at| (mix([rank, call, at as u64, 3]) % (experts as u64 + 1)) as i64 - 1).collect()
    }

    /// A number in the result of `by` for a token.
    fn number(&self, element: DataType, by: Pe, source: Pe, at: [usize; 2]) -> f32 {
        let value = (mix([u64::from(by), u64::from(source), at[0] as u64, at[1] as u64]) % 4001) as f32 / 64.0 - 31.0;
        if element == DataType::Bfloat16 { bf16::from_f32(value).to_f32() } else { value }
    }

    fn rows_of(&self, element: DataType, values: impl Iterator<Item = f32>) -> Vec<u8> {
        match element {
            DataType::Float32 => bytes_of(values.map(f32::to_ne_bytes)),
            _ => bytes_of(values.map(|value| bf16::from_f32(value).to_ne_bytes())),
        }
    }

    fn check(&self, nvrtc: &Nvrtc) -> Result<(), Failure> {
        let buffers = DeviceHighThroughput::new(self.device, nvrtc, self.shape, BLOCKS, WaitLimit::of(self.rt))?;
        let stream = Stream::new(self.device.gpu())?;
        let mut routes = buffers.routes(&stream)?;
        for call in 0..6 {
            let element = if call % 2 == 0 { DataType::Bfloat16 } else { DataType::Float32 };
            self.round(&buffers, &mut routes, &stream, (call, element))?;
        }
        self.refusals(&buffers, &mut routes, &stream)?;
        self.round(&buffers, &mut routes, &stream, (9, DataType::Bfloat16))?;
        drop(stream);
        Ok(buffers.free()?)
    }

    /// No GPU has enough blocks for the copies of these buffers: a dispatch is announced, and the next launch fails.
    fn fails_in_its_midst(&self, nvrtc: &Nvrtc) -> Result<(), Failure> {
        let buffers = DeviceHighThroughput::new(self.device, nvrtc, self.shape, u32::MAX, WaitLimit::of(self.rt))?;
        let stream = Stream::new(self.device.gpu())?;
        let mut routes = buffers.routes(&stream)?;
        let (topk, x) = (self.with(&vec![0xff; 8 * self.shape.k])?, self.buffer(16)?);
        let tokens =
            DeviceTokens { rows: x.at().get(), bytes: 16, scales: (0, 0), topk: None, elements: [None; 2], room: None };
        // SAFETY: the memory belongs to this function and lives until the stream is idle.
        let dispatched = unsafe {
            buffers.layout(&stream, &mut routes, topk.at().get(), 1)?;
            let dispatched = buffers.dispatch(&stream, &routes, &tokens, false);
            dispatched.and_then(|()| buffers.receive(&stream, &routes, &tokens, &DeviceTokensReceived::default()))
        };
        stream.wait(LIMIT)?;
        match (dispatched, buffers.check()) {
            (Err(Error::Device { .. }), Err(Error::Round(symrail::rounds::Error::Poisoned { .. }))) => {}
            other => return Err(format!("a launch that fails in the midst of a call: {other:?}").into()),
        }
        drop((routes, stream));
        Ok(buffers.free()?)
    }

    /// A dispatch, a second dispatch of other rows, and a combine.
    fn round(
        &self,
        buffers: &DeviceHighThroughput,
        routes: &mut DeviceRoutes,
        stream: &Stream,
        (call, element): (u64, DataType),
    ) -> Result<(), Failure> {
        let (me, ranks, HighThroughputShape { scales, experts, k, .. }) =
            (self.rt.my_pe(), self.rt.n_pes(), self.shape);
        let all: Vec<Vec<i64>> = (0..ranks).map(|rank| self.slots(rank, call)).collect();
        let layouts = all.iter().map(|slots| Layout::of(&TopK::new(slots, k)?, experts, ranks as usize));
        let layouts: Vec<Layout> = layouts.collect::<Result<_, Error>>()?;
        let own = &layouts[me as usize];
        let (tokens, share) = (own.tokens(), own.share());
        let bytes = self.elements * element.size();
        let word = |rank: Pe, row: usize, i: usize, what: u64| {
            (mix([u64::from(rank), row as u64, i as u64, call * 8 + what]) as u32).to_ne_bytes()
        };
        let weight = |rank: Pe, slot: usize| (mix([u64::from(rank), slot as u64, call, 77]) % 64) as f32;
        let topk = self.with(&bytes_of(all[me as usize].iter().map(|slot| slot.to_ne_bytes())))?;
        let weights = self.with(&bytes_of((0..tokens * k).map(|slot| weight(me, slot).to_ne_bytes())))?;
        // SAFETY: the memory belongs to this function and lives until the stream is idle.
        unsafe { buffers.layout(stream, routes, topk.at().get(), tokens) }?;
        let mut sources = Vec::new();
        for what in 0..2 {
            let rows = |rank: Pe, row: usize| bytes_of((0..bytes / 4).map(|i| word(rank, row, i, what)));
            let factors = |rank: Pe, row: usize| bytes_of((0..scales).map(|i| word(rank, row, i, what + 2)));
            let x = self.with(&(0..tokens).flat_map(|row| rows(me, row)).collect::<Vec<_>>())?;
            let of_scales = self.with(&(0..tokens).flat_map(|row| factors(me, row)).collect::<Vec<_>>())?;
            let given = DeviceTokens {
                rows: x.at().get(),
                bytes,
                scales: (of_scales.at().get(), scales),
                topk: Some((topk.at().get(), weights.at().get())),
                elements: [None; 2],
                room: None,
            };
            // SAFETY: as above.
            unsafe { buffers.dispatch(stream, routes, &given, what == 1) }?;
            let counts = buffers.counts(stream, LIMIT)?;
            let come = counts.rows();
            let [its_rows, its_scales, its_topk, its_weights, its_sources] =
                [bytes, 4 * scales, 8 * k, 4 * k, 4].map(|each| self.buffer(each * come));
            let (its_rows, its_scales, its_topk) = (its_rows?, its_scales?, its_topk?);
            let (its_weights, its_sources) = (its_weights?, its_sources?);
            let to = DeviceTokensReceived {
                rows: its_rows.at().get(),
                scales: its_scales.at().get(),
                topk: (its_topk.at().get(), its_weights.at().get()),
                sources: its_sources.at().get(),
            };
            // SAFETY: as above.
            unsafe { buffers.receive(stream, routes, &given, &to) }?;
            stream.wait(LIMIT)?;
            buffers.check()?;
            sources = (0..ranks)
                .flat_map(|rank| {
                    layouts[rank as usize].tokens_for(me as usize).into_iter().map(move |token| (rank, token as usize))
                })
                .collect();
            let of_each = |what: &dyn Fn(Pe, usize) -> Vec<u8>| -> Vec<u8> {
                sources.iter().flat_map(|&(rank, token)| what(rank, token)).collect()
            };
            let local = |rank: Pe, token: usize| {
                bytes_of((token * k..(token + 1) * k).map(|slot| {
                    let expert = all[rank as usize][slot];
                    let here = expert >= 0 && expert as usize / share == me as usize;
                    (if here { expert % share as i64 } else { -1 }).to_ne_bytes()
                }))
            };
            let its = |rank: Pe, token: usize| {
                bytes_of((token * k..(token + 1) * k).map(|slot| {
                    let expert = all[rank as usize][slot];
                    let here = expert >= 0 && expert as usize / share == me as usize;
                    (if here { weight(rank, slot) } else { 0.0 }).to_ne_bytes()
                }))
            };
            equal("rows", &its_rows, &of_each(&rows), call)?;
            equal("scales", &its_scales, &of_each(&factors), call)?;
            equal("slots", &its_topk, &of_each(&local), call)?;
            equal("weights", &its_weights, &of_each(&its), call)?;
            equal("sources", &its_sources, &of_each(&|_, token| (token as u32).to_ne_bytes().to_vec()), call)?;
            let slots = |expert: usize| layouts.iter().map(|layout| layout.per_expert()[expert]).sum();
            let wanted: Vec<u32> = (me as usize * share..(me as usize + 1) * share).map(slots).collect();
            if counts.per_expert != wanted {
                return Err(format!("slots of experts: {:?}, not {wanted:?}", counts.per_expert).into());
            }
        }
        let of_rows = sources
            .iter()
            .flat_map(|&(rank, token)| (0..self.elements).map(move |i| self.number(element, me, rank, [token, i])));
        let of_slots = sources.iter().flat_map(|&(rank, token)| {
            (0..k).map(move |i| self.number(DataType::Float32, me, rank, [token, 9000 + i]))
        });
        let bias = |i: usize| self.number(element, me, 1000, [i, call as usize]);
        let (parts, parts_weights) =
            (self.with(&self.rows_of(element, of_rows))?, self.with(&self.rows_of(DataType::Float32, of_slots))?);
        let biases = self.with(&self.rows_of(element, (0..tokens * self.elements).map(bias)))?;
        let (out, sums) = (self.buffer(tokens * bytes)?, self.buffer(4 * tokens * k)?);
        let biased = [0, if call % 3 == 0 { 0 } else { biases.at().get() }];
        let given = DeviceParts {
            rows: parts.at().get(),
            count: None,
            bytes,
            element,
            weights: Some((parts_weights.at().get(), sums.at().get())),
            biases: biased,
            out: out.at().get(),
            slots: None,
        };
        // SAFETY: as above.
        unsafe { buffers.combine(stream, routes, &given) }?;
        stream.wait(LIMIT)?;
        buffers.check()?;
        let hosts = Hosts::of_job(self.rt);
        let sum = |of: DataType, token: usize, i: usize| {
            let gets = &own.in_rank()[token * ranks as usize..][..ranks as usize];
            (0..hosts.count()).fold(0.0f32, |all, host| {
                let members = hosts.members(host).iter().filter(|&&rank| gets[rank]);
                all + members.fold(0.0, |sum, &rank| sum + self.number(of, rank as Pe, me, [token, i]))
            })
        };
        let with_bias = |at: usize| {
            let sum = sum(element, at / self.elements, at % self.elements);
            if biased[1] == 0 { sum } else { sum + bias(at) }
        };
        equal("sums", &out, &self.rows_of(element, (0..tokens * self.elements).map(with_bias)), call)?;
        let of_weights = (0..tokens * k).map(|slot| sum(DataType::Float32, slot / k, 9000 + slot % k));
        equal("sums of weights", &sums, &self.rows_of(DataType::Float32, of_weights), call)
    }

    /// An error names the cause, and the next call succeeds.
    fn refusals(
        &self,
        buffers: &DeviceHighThroughput,
        routes: &mut DeviceRoutes,
        stream: &Stream,
    ) -> Result<(), Failure> {
        let (me, ranks, HighThroughputShape { experts, k, .. }) = (self.rt.my_pe(), self.rt.n_pes(), self.shape);
        let mut slots = vec![-1i64; k];
        slots[k - 1] = experts as i64;
        let (wrong, right) =
            (self.with(&bytes_of(slots.iter().map(|slot| slot.to_ne_bytes())))?, self.with(&vec![0xff; 8 * k])?);
        let x = self.buffer(32)?;
        let tokens = |bytes| DeviceTokens {
            rows: x.at().get(),
            bytes,
            scales: (0, 0),
            topk: None,
            elements: [None; 2],
            room: None,
        };
        let mut call = |topk: &DeviceBuffer, bytes| -> Result<Result<(), Error>, Failure> {
            // SAFETY: the memory belongs to this function and lives until the stream is idle.
            unsafe {
                buffers.layout(stream, routes, topk.at().get(), 1)?;
                buffers.dispatch(stream, routes, &tokens(bytes), false)?;
                buffers.receive(
                    stream,
                    routes,
                    &tokens(bytes),
                    &DeviceTokensReceived { sources: x.at().get(), ..Default::default() },
                )?;
            }
            stream.wait(LIMIT)?;
            Ok(buffers.check())
        };
        match call(&wrong, 16)? {
            Err(Error::NoSuchExpert { token: 0, slot, expert, .. }) if slot == k - 1 && expert == experts as i64 => {}
            other => return Err(format!("an index without an expert: {other:?}").into()),
        }
        let last = ranks - 1;
        match call(&right, if me == last && last > 0 { 32 } else { 16 })? {
            Ok(()) if last == 0 => Ok(()),
            Err(Error::Runtime(symrail::Error::ParametersDiffer { other, .. }))
                if other == if me == last { 0 } else { last } =>
            {
                Ok(())
            }
            other => Err(format!("rows of other sizes: {other:?}").into()),
        }
    }

    /// The times of both ways.
    fn time(&self, nvrtc: &Nvrtc) -> Result<(), Failure> {
        const CALLS: u32 = 20;
        let HighThroughputShape { most_tokens, row, experts, k, scales, .. } = self.shape;
        let (gpu, ranks, me) = (self.device.gpu(), self.rt.n_pes() as usize, self.rt.my_pe() as usize);
        let buffers = DeviceHighThroughput::new(self.device, nvrtc, self.shape, BLOCKS, WaitLimit::of(self.rt))?;
        let stream = Stream::new(gpu)?;
        let mut routes = buffers.routes(&stream)?;
        let slot = |at: usize| (mix([me as u64, (at / k) as u64, 5, 5]) as usize + at % k * (experts / k)) % experts;
        let topk = self.with(&bytes_of((0..most_tokens * k).map(|at| (slot(at) as i64).to_ne_bytes())))?;
        let (x, factors) = (self.buffer(most_tokens * row)?, self.buffer(most_tokens * 4 * scales)?);
        let weights = self.buffer(most_tokens * 4 * k)?;
        let tokens = DeviceTokens {
            rows: x.at().get(),
            bytes: row / 2,
            scales: (factors.at().get(), scales),
            topk: Some((topk.at().get(), weights.at().get())),
            elements: [None; 2],
            room: None,
        };
        // SAFETY: the memory belongs to this function and lives until the stream is idle.
        unsafe {
            buffers.layout(&stream, &mut routes, topk.at().get(), most_tokens)?;
            buffers.dispatch(&stream, &routes, &tokens, false)?;
        }
        let come = buffers.counts(&stream, LIMIT)?;
        let rows = come.rows();
        let of_come = [4 * scales, 8 * k, 4 * k, 4].map(|each| self.buffer(each * rows));
        let [its_scales, its_topk, its_weights, its_sources] = of_come;
        let (its_scales, its_topk, its_weights, its_sources) = (its_scales?, its_topk?, its_weights?, its_sources?);
        let received = self.buffer(rows * row / 2)?;
        let to = DeviceTokensReceived {
            rows: received.at().get(),
            scales: its_scales.at().get(),
            topk: (its_topk.at().get(), its_weights.at().get()),
            sources: its_sources.at().get(),
        };
        let made = self.buffer(rows * row)?;
        let parts = DeviceParts {
            rows: made.at().get(),
            count: None,
            bytes: row,
            element: DataType::Bfloat16,
            weights: None,
            biases: [0, 0],
            out: x.at().get(),
            slots: None,
        };
        // SAFETY: as above.
        unsafe { buffers.receive(&stream, &routes, &tokens, &to) }?;
        stream.wait(LIMIT)?;
        let mut times = [Vec::new(), Vec::new()];
        for _ in 0..CALLS {
            for (which, of) in times.iter_mut().enumerate() {
                self.rt.barrier_all()?;
                stream.mark(0)?;
                // SAFETY: as above.
                unsafe {
                    if which == 0 {
                        buffers.dispatch(&stream, &routes, &tokens, true)?;
                        buffers.receive(&stream, &routes, &tokens, &to)?;
                    } else {
                        buffers.combine(&stream, &routes, &parts)?;
                    }
                }
                stream.mark(1)?;
                stream.wait(LIMIT)?;
                buffers.check()?;
                of.push(stream.between()? / 1e3);
            }
        }
        self.rt.barrier_all()?;
        if me == 0 {
            let sent: usize = come.matrix[..ranks].iter().map(|&rows| rows as usize).sum();
            for (name, (times, bytes)) in ["dispatch", "combine"].iter().zip(times.iter_mut().zip([row / 2, row])) {
                times.sort_by(f64::total_cmp);
                let (median, least) = (times[times.len() / 2], times[0]);
                let rate = (sent * bytes) as f64 / median / 1e3;
                println!(
                    "{name} of {sent} rows of {bytes} B with {BLOCKS} blocks: median {median:.1} µs, least {least:.1} µs, {rate:.1} GB/s"
                );
            }
        }
        drop(stream);
        Ok(buffers.free()?)
    }
}

fn equal(what: &str, found: &DeviceBuffer, wanted: &[u8], call: u64) -> Result<(), Failure> {
    if wanted.is_empty() {
        return Ok(());
    }
    let mut bytes = vec![0; wanted.len()];
    found.read(0, &mut bytes)?;
    match bytes.iter().zip(wanted).position(|(found, wanted)| found != wanted) {
        None => Ok(()),
        Some(at) => Err(format!("{what} of call {call}: byte {at} is {}, not {}", bytes[at], wanted[at]).into()),
    }
}
