//! Collectives on streams of GPUs: all of them, types, operations, sizes, in place or not, misaligned or not; several
//! streams and communicators at once; graphs replayed very often; a PE that does not arrive; and times.
//!
//!     SYMRAIL_HEAP_KIND=device SYMRAIL_HEAP_SIZE=600M symrail run -n 2 -- pe gpu_collectives WHAT
//!
//! WHAT is `few` (for sanitizers), `channels`, `late`, `given-up` or `bench`; or a part of `all`, which is `sizes`,
//! `large`, `several`, `graphs` and `types`. `types FIRST COUNT` is for some of the types, since each type's kernels have to be
//! compiled.
//!
//! Without a GPU it prints SKIPPED.
use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use symrail::gpu::GpuDevice;
use symrail::kernels::cuda::compile::Nvrtc;
use symrail::kernels::cuda::{DevicePtr, Event, Gpu, Kernel, Module, Program, Shape, Stream};
use symrail::rounds::Error::{Aborted, TimedOut};
use symrail::{Result, Runtime, SymSlice};
use symrail_collectives::DataType::{self, *};
use symrail_collectives::gpu::{GpuCommunicator, Memory, MemoryChannels};
use symrail_collectives::plan::Collective;
use symrail_collectives::{Error, ReduceOp, Reduction, TYPES_ON_GPUS, Transfer};
use symrail_tests::collectives::{ALL, Data, OPS, SIZES, difference, places};
use symrail_tests::pe;

/// Bytes of the largest part.
const LARGEST: usize = (64 << 20) + 4;
const TIME_LIMIT: Duration = Duration::from_secs(90);

/// Makes the next input of a PE from the last output, so that every call affects the result.
const STEP: &str = r#"
extern "C" __global__ void next_input(unsigned int* input, const unsigned int* output, unsigned long long count,
                                      unsigned long long pe) {
    unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x;
    if (i < count) input[i] = output[i] * 1664525u + (unsigned int)(i + 1) * (unsigned int)(pe + 1);
}
"#;

pub fn main() -> std::process::ExitCode {
    let what: String = pe::arg(0, "all".into());
    if Gpu::count() == 0 {
        println!("SKIPPED: no CUDA driver or no GPU on this machine");
        return std::process::ExitCode::SUCCESS;
    }
    pe::run(|rt| {
        let gpu = rt.own_gpu()?;
        let device = rt.gpu_device(&gpu)?;
        let world = World::new(rt, &device)?;
        match what.as_str() {
            "late" => world.somebody_does_not_come()?,
            "given-up" => world.somebody_gives_up()?,
            "bench" => world.how_long()?,
            "channels" => world.channels()?,
            "few" => world.few()?,
            "sizes" | "large" | "several" | "graphs" => world.parts(&[what.as_str()], 0..0)?,
            "types" => {
                let first = pe::arg(1, 0);
                world.parts(&[], first..first + pe::arg(2, TYPES_ON_GPUS.len() - first))?;
            }
            _ => world.parts(&["sizes", "large", "several", "graphs"], 0..TYPES_ON_GPUS.len())?,
        }
        device.close()
    })
}

struct World<'d> {
    rt: &'d Runtime,
    device: &'d GpuDevice,
    gpu: Arc<Gpu>,
    stream: Stream,
    step: Kernel,
    source: SymSlice<u8>,
    dest: SymSlice<u8>,
    round: usize,
    /// The time of the last line.
    said: Cell<Instant>,
}

fn good<T, E: std::fmt::Display>(result: std::result::Result<T, E>) -> T {
    result.unwrap_or_else(|error| panic!("{error}"))
}

impl<'d> World<'d> {
    fn new(rt: &'d Runtime, device: &'d GpuDevice) -> Result<Self> {
        let gpu = Arc::clone(device.gpu());
        let room = rt.n_pes() as usize * LARGEST + 4096;
        let (source, dest) = (rt.alloc_slice(room)?, rt.alloc_slice(room)?);
        let compiled = good(device.compile(&good(Nvrtc::find()), &Program::new("step.cu", STEP)));
        let step = good(good(Module::load(&gpu, &compiled)).kernel("next_input"));
        let stream = good(Stream::new(&gpu));
        Ok(World { rt, device, gpu, stream, step, source, dest, round: 0, said: Cell::new(Instant::now()) })
    }

    fn communicator(&self) -> GpuCommunicator {
        good(GpuCommunicator::new(self.device, good(Nvrtc::find())))
    }

    fn say(&self, line: &str) {
        let since = self.said.replace(Instant::now()).elapsed().as_secs_f64();
        if self.rt.my_pe() == 0 {
            println!("{line} ({since:.1} s)");
        }
    }

    fn at(&self, slice: &SymSlice<u8>, start: usize, len: usize) -> Memory {
        Memory { at: self.device.address(slice.as_ptr()) + start as u64, len: len as u64 }
    }

    fn write(&self, to: Memory, bytes: &[u8]) {
        // SAFETY: inside of the slices of this test.
        good(unsafe { self.gpu.write(DevicePtr::new(to.at), bytes) });
    }

    fn read(&self, from: Memory) -> Vec<u8> {
        let mut bytes = vec![0; from.len as usize];
        // SAFETY: inside of the slices of this test.
        good(unsafe { self.gpu.read(DevicePtr::new(from.at), &mut bytes) });
        bytes
    }

    /// Some parts, and all operations on some types.
    fn parts(mut self, names: &[&str], types: Range<usize>) -> Result<()> {
        let mut all = self.communicator();
        for &name in names {
            match name {
                "sizes" => self.sizes(&mut all)?,
                "large" => self.large(&mut all)?,
                "several" => self.several_at_once(&mut all),
                _ => {
                    self.graphs(&mut all);
                    self.graphs_beside_calls(&mut all);
                }
            }
            self.say(&format!("{name}: ok"));
        }
        for &ty in &TYPES_ON_GPUS[types] {
            for op in OPS {
                for count in [1, 33, 4096 / ty.size(), 50_001] {
                    self.call(&mut all, &Collective::AllReduce, ty, op, count, self.round.is_multiple_of(2))?;
                }
                self.call(&mut all, &Collective::ReduceScatter, ty, op, 1001, self.round.is_multiple_of(2))?;
            }
            self.say(&format!("{ty:?}: ok"));
        }
        good(all.free());
        println!("PE {}: {} calls and all else: right", self.rt.my_pe(), self.round);
        self.end()
    }

    /// The largest parts, which take long to prepare and compare.
    fn large(&mut self, all: &mut GpuCommunicator) -> Result<()> {
        for (collective, in_place) in [(Collective::AllReduce, true), (Collective::AllGather, false)] {
            self.call(all, &collective, Float32, ReduceOp::Sum, LARGEST / 4, in_place)?;
            self.say(&format!("{collective:?} of {LARGEST} bytes: ok"));
        }
        Ok(())
    }

    /// All collectives with all sizes but the largest; averages.
    fn sizes(&mut self, all: &mut GpuCommunicator) -> Result<()> {
        for collective in &ALL {
            let larger = [(Float32, (1 << 20) / 4), (Float64, 100_003)];
            for (ty, count) in SIZES.into_iter().chain(larger) {
                for in_place in [false, true] {
                    self.call(all, collective, ty, ReduceOp::Sum, count, in_place)?;
                }
            }
            self.say(&format!("{collective:?}: ok"));
        }
        self.averages(all);
        good(all.check());
        Ok(())
    }

    /// All collectives, with few sizes and types.
    fn few(mut self) -> Result<()> {
        let mut all = self.communicator();
        for collective in &ALL {
            for (ty, count) in [(Uint8, 3), (Bfloat16, 1001), (Float32, 40_000)] {
                for in_place in [false, true] {
                    self.call(&mut all, collective, ty, ReduceOp::Sum, count, in_place)?;
                }
            }
            self.say(&format!("{collective:?}: ok"));
        }
        good(all.free());
        println!("PE {}: {} calls: right", self.rt.my_pe(), self.round);
        self.end()
    }

    fn end(self) -> Result<()> {
        self.rt.barrier_all()?;
        drop(self.stream);
        self.source.free()?;
        self.dest.free()
    }

    fn call(
        &mut self,
        all: &mut GpuCommunicator,
        collective: &Collective,
        ty: DataType,
        op: ReduceOp,
        count: usize,
        in_place: bool,
    ) -> Result<()> {
        let in_place = in_place && *collective != Collective::AllToAll;
        let (me, n, part) = (self.rt.my_pe() as usize, self.rt.n_pes() as usize, count * ty.size());
        self.round += 1;
        let data = Data { ty, op, n, round: self.round };
        // Every other call begins one element later.
        let shift = 16 + self.round % 2 * ty.size();
        let places = places(collective, (me, n), part, in_place);
        let (dest, from) = (&self.dest, if in_place { &self.dest } else { &self.source });
        let input = self.at(from, shift + places.input.0, places.input.1);
        let output = self.at(dest, shift + places.output.0, places.output.1);
        let what = format!("PE {me}, {collective:?} of {count} {ty:?}, {op:?}, in place: {in_place}, byte {shift}");
        pe::doing(what.clone());
        self.write(self.at(dest, 0, n * part + 64), &vec![0xee; n * part + 64]);
        self.write(input, &data.input(me, places.input.1 / ty.size()));
        self.rt.barrier_all()?;
        // SAFETY: memory of this test, which waits for the stream.
        let mut run = |input| unsafe {
            match collective {
                Collective::AllReduce => all.all_reduce(&self.stream, input, output, ty, op),
                Collective::ReduceScatter => all.reduce_scatter(&self.stream, input, output, ty, op),
                Collective::AllGather => all.all_gather(&self.stream, input, output),
                Collective::AllToAll => all.all_to_all(&self.stream, input, output),
                Collective::Reduce => all.reduce(&self.stream, input, output, ty, op, 0),
                _ => all.broadcast(&self.stream, input, output, 0),
            }
        };
        if in_place && part > 1 {
            let refused = run(Memory { at: input.at + 1, ..input }).unwrap_err().to_string();
            assert!(refused.contains("input and output overlap"), "{what}: {refused}");
        }
        run(input).unwrap_or_else(|error| panic!("{what}: {error}"));
        self.stream.wait(TIME_LIMIT).unwrap_or_else(|error| panic!("{what}: {error}"));
        all.check().unwrap_or_else(|error| panic!("{what}: {error}"));
        let difference = difference(&self.read(output), &data.output(collective, me, count));
        if let Some(difference) = difference.filter(|_| *collective != Collective::Reduce || me == 0) {
            panic!("{what}: {difference}");
        }
        // The memory around it is unchanged.
        if !in_place {
            for at in [output.at - 1, output.at + output.len] {
                assert_eq!(self.read(Memory { at, len: 1 }), [0xee], "{what}: bytes around it were written");
            }
        }
        self.rt.barrier_all()
    }

    fn averages(&self, all: &mut GpuCommunicator) {
        let (me, n) = (f64::from(self.rt.my_pe()), f64::from(self.rt.n_pes()));
        let memory = self.at(&self.dest, 0, 8);
        self.write(memory, &(me * 2.0).to_ne_bytes());
        good(self.rt.barrier_all());
        // SAFETY: memory of this test, which waits for the stream.
        good(unsafe { all.all_reduce(&self.stream, memory, memory, Float64, Reduction::Average) });
        good(self.stream.wait(TIME_LIMIT));
        assert_eq!(self.read(memory), (n - 1.0).to_ne_bytes());
    }

    /// The first input of `count` numbers, at an offset in this test's memory.
    fn chain(&self, place: usize, count: usize) -> (Memory, Memory) {
        let at = |slice| self.at(slice, place * (4 << 20), 4 * count);
        let (input, output) = (at(&self.source), at(&self.dest));
        let me = self.rt.my_pe();
        let first: Vec<u8> = (0..count as u32).flat_map(|i| (i * 7 + me * 1000 + 1).to_ne_bytes()).collect();
        self.write(input, &first);
        (input, output)
    }

    /// A call, and the next input.
    fn link(&self, all: &mut GpuCommunicator, stream: &Stream, (input, output): (Memory, Memory)) -> Result<(), Error> {
        let count = input.len / 4;
        // SAFETY: memory of this test, which waits for the stream; the kernel's arguments.
        unsafe {
            all.all_reduce(stream, input, output, Uint32, ReduceOp::Sum)?;
            let shape = Shape { blocks: count.div_ceil(256) as u32, threads: 256 };
            Ok(stream.launch(&self.step, shape, &[input.at, output.at, count, self.rt.my_pe().into()])?)
        }
    }

    /// Checks that the output is that of so many calls.
    fn verify(&self, what: &str, output: Memory, calls: usize) {
        let (n, found) = (self.rt.n_pes(), self.read(output));
        let count = found.len() / 4;
        for i in (0..count as u32).step_by(1 + count / 500).chain([count as u32 - 1]) {
            let mut inputs: Vec<u32> = (0..n).map(|pe| i * 7 + pe * 1000 + 1).collect();
            let mut sum = 0;
            for _ in 0..calls {
                sum = inputs.iter().fold(0u32, |sum, &value| sum.wrapping_add(value));
                let next = |pe: u32| sum.wrapping_mul(1664525).wrapping_add((i + 1).wrapping_mul(pe + 1));
                inputs = (0..n).map(next).collect();
            }
            let at = 4 * i as usize;
            let is = u32::from_ne_bytes(found[at..at + 4].try_into().unwrap());
            assert_eq!(is, sum, "PE {}: {what}, element {i} of {count} after {calls} calls", self.rt.my_pe());
        }
    }

    /// Two communicators on a stream each, and one communicator on two streams.
    fn several_at_once(&self, all: &mut GpuCommunicator) {
        let (streams, mut other) = ([good(Stream::new(&self.gpu)), good(Stream::new(&self.gpu))], self.communicator());
        for count in [256, 20_000, 300_000] {
            let chains: Vec<_> = (0..4).map(|place| self.chain(place, count)).collect();
            good(self.rt.barrier_all());
            for _ in 0..300 {
                good(self.link(all, &streams[0], chains[0]));
                good(self.link(&mut other, &streams[1], chains[1]));
                good(self.link(all, &streams[1], chains[2]));
                good(self.link(&mut other, &streams[0], chains[3]));
            }
            streams.iter().for_each(|stream| good(stream.wait(TIME_LIMIT)));
            good(all.check());
            good(other.check());
            for (place, (_, output)) in chains.into_iter().enumerate() {
                self.verify(&format!("several at once, chain {place}"), output, 300);
            }
            good(self.rt.barrier_all());
        }
        good(other.free());
    }

    fn graphs(&self, all: &mut GpuCommunicator) {
        for (count, replays) in [(1024, 10_000), (32 << 10, 1000), (1 << 20, 300)] {
            let chain = self.chain(0, count);
            good(self.rt.barrier_all());
            // A first call, which allocates memory.
            good(self.link(all, &self.stream, chain));
            good(self.stream.wait(TIME_LIMIT));
            let graph = good(self.stream.capture(|| self.link(all, &self.stream, chain)));
            for i in 0..replays {
                // SAFETY: the memory stays.
                good(unsafe { self.stream.replay(&graph) });
                if i % 1000 == 999 {
                    good(self.stream.wait(TIME_LIMIT));
                }
            }
            good(self.stream.wait(TIME_LIMIT));
            good(all.check());
            self.verify("graphs", chain.1, replays + 1);
            good(self.rt.barrier_all());
        }
    }

    /// Calls, and replays of two graphs, one with calls on two streams, all on different streams.
    fn graphs_beside_calls(&self, all: &mut GpuCommunicator) {
        let streams = [(); 4].map(|()| good(Stream::new(&self.gpu)));
        for (count, rounds) in [(1024, 2000), (40 << 10, 500), (1 << 20, 100)] {
            let chains: Vec<_> = (0..4).map(|place| self.chain(place, count)).collect();
            good(self.rt.barrier_all());
            // A first call, which allocates memory.
            good(self.link(all, &streams[0], chains[0]));
            good(streams[0].wait(TIME_LIMIT));
            let one = good(streams[1].capture(|| self.link(all, &streams[1], chains[1])));
            let fork = good(Event::new(&self.gpu));
            let two = good(streams[2].capture(|| {
                fork.record(&streams[2])?;
                streams[3].wait_for(&fork)?;
                self.link(all, &streams[2], chains[2])?;
                self.link(all, &streams[3], chains[3])?;
                fork.record(&streams[3])?;
                streams[2].wait_for(&fork)?;
                Ok::<_, Error>(())
            }));
            for i in 0..rounds {
                // SAFETY: the memory stays.
                unsafe {
                    good(streams[1].replay(&one));
                    good(streams[2].replay(&two));
                }
                good(self.link(all, &streams[0], chains[0]));
                if i % 100 == 99 {
                    streams.iter().for_each(|stream| good(stream.wait(TIME_LIMIT)));
                }
            }
            streams.iter().for_each(|stream| good(stream.wait(TIME_LIMIT)));
            good(all.check());
            for (place, (_, output)) in chains.into_iter().enumerate() {
                self.verify(&format!("graphs beside calls, chain {place}"), output, rounds + usize::from(place == 0));
            }
            good(self.rt.barrier_all());
        }
    }

    /// PE 1 does not make the second call. The others get an error with its name within the time-out.
    fn somebody_does_not_come(self) -> Result<()> {
        let mut all = self.communicator();
        let (input, output) = (self.at(&self.source, 0, 64), self.at(&self.dest, 0, 64));
        let call = |all: &mut GpuCommunicator| {
            // SAFETY: memory of this test, which waits for the stream.
            good(unsafe { all.all_reduce(&self.stream, input, output, Float32, ReduceOp::Sum) });
            good(self.stream.wait(TIME_LIMIT));
            all.check()
        };
        good(call(&mut all));
        if self.rt.my_pe() != 1 {
            let error = call(&mut all).unwrap_err();
            assert!(
                matches!(&error, Error::Round(TimedOut { late, .. }) if late == &[1])
                    || matches!(error, Error::Round(Aborted { .. })),
                "{error}"
            );
            println!("{error}");
        }
        self.rt.barrier_all()?;
        good(all.free());
        self.end()
    }

    /// PE 1 gives up while none of its kernels is running. The others' kernels end, waiting ones and later ones, before
    /// any time-out.
    fn somebody_gives_up(self) -> Result<()> {
        let (me, part) = (self.rt.my_pe(), 64);
        for transfers in [false, true] {
            let mut all = self.communicator();
            let (input, output) = (self.at(&self.source, 0, part), self.at(&self.dest, 0, part));
            let call = |all: &mut GpuCommunicator| {
                let ring = |by: u32| (me + by) % self.rt.n_pes();
                let around = [
                    Transfer::Send { to: ring(1), memory: input },
                    Transfer::Receive { from: ring(self.rt.n_pes() - 1), memory: output },
                ];
                // SAFETY: memory of this test, which waits for the stream.
                good(unsafe {
                    match transfers {
                        true => all.exchange(&self.stream, &around),
                        false => all.all_reduce(&self.stream, input, output, Float32, ReduceOp::Sum),
                    }
                });
                good(self.stream.wait(TIME_LIMIT));
                all.check()
            };
            good(call(&mut all));
            self.rt.barrier_all()?;
            if me == 1 {
                good(all.give_up());
            } else {
                for _ in 0..2 {
                    let error = call(&mut all).unwrap_err();
                    assert!(matches!(error, Error::Round(Aborted { .. })), "transfers {transfers}: {error}");
                }
                println!("PE {me}: told, transfers {transfers}");
            }
            self.rt.barrier_all()?;
            good(all.free());
        }
        self.end()
    }

    /// Memory channels between PEs 0 and 1: bytes, signals, polls and packets of both sizes, at any place.
    fn channels(self) -> Result<()> {
        const PART: usize = 40_000;
        const ROUNDS: u64 = 200;
        let (me, mut channels) = (self.rt.my_pe(), good(MemoryChannels::new(self.device, 4)));
        let buffer = self.at(&self.source, 0, 8 * PART);
        let wrong = good(self.gpu.alloc(16));
        if me < 2 {
            let handle = good(channels.channel(1 - me, buffer, 3));
            assert_eq!(good(channels.channel(1 - me, buffer, 3)), handle, "made once");
            assert!(channels.channel(1 - me, buffer, 4).is_err() && channels.channel(99, buffer, 0).is_err());
            let program = Program::new("channels.cu", include_str!("../../../cu/channels.cu"));
            let module = good(self.device.load(&good(Nvrtc::find()), &program));
            let kernel = good(module.kernel("memory_channels"));
            let arguments = [handle, buffer.at, PART as u64, me.into(), ROUNDS, wrong.at().get()];
            // SAFETY: the kernel's arguments, which stay until the stream was waited for.
            good(unsafe { self.stream.launch(&kernel, Shape { blocks: 1, threads: 512 }, &arguments) });
            good(self.stream.wait(TIME_LIMIT));
            good(channels.check());
            let mut counts = [0; 16];
            good(wrong.read(0, &mut counts));
            let count = |at: usize| u64::from_ne_bytes(counts[at..at + 8].try_into().unwrap());
            assert_eq!((count(0), count(8)), (0, ROUNDS), "PE {me}: wrong bytes, rounds");
            println!("PE {me}: memory channels: right");
        }
        self.rt.barrier_all()?;
        good(channels.free());
        self.end()
    }

    /// Microseconds of an all-reduce, launched one by one and in a graph, and of the others in a graph.
    fn how_long(self) -> Result<()> {
        const CALLS: usize = 50;
        let mut all = self.communicator();
        self.say("bytes all-reduce all-reduce-graph all-gather-graph reduce-scatter-graph (us)");
        for power in [3, 8, 10, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26] {
            let bytes = 1usize << power;
            let n = self.rt.n_pes() as usize;
            let (input, output) = (self.at(&self.source, 0, bytes), self.at(&self.dest, 0, bytes));
            let own = |memory: Memory| Memory { at: memory.at, len: memory.len / n as u64 };
            let mut times = Vec::new();
            for which in 0..4 {
                let once = |all: &mut GpuCommunicator| {
                    // SAFETY: memory of this test, which waits for the stream.
                    unsafe {
                        match which {
                            2 => all.all_gather(&self.stream, own(input), output),
                            3 => all.reduce_scatter(&self.stream, input, own(output), Float32, ReduceOp::Sum),
                            _ => all.all_reduce(&self.stream, input, output, Float32, ReduceOp::Sum),
                        }
                    }
                };
                if bytes / n < 4 && which > 1 {
                    continue;
                }
                let many = |all: &mut GpuCommunicator| (0..CALLS).try_for_each(|_| once(all));
                good(many(&mut all));
                good(self.stream.wait(TIME_LIMIT));
                self.rt.barrier_all()?;
                let graph = if which == 0 { None } else { Some(good(self.stream.capture(|| many(&mut all)))) };
                let mut best = f64::INFINITY;
                for _ in 0..5 {
                    self.rt.barrier_all()?;
                    good(self.stream.mark(0));
                    match &graph {
                        // SAFETY: the memory stays.
                        Some(graph) => good(unsafe { self.stream.replay(graph) }),
                        None => good(many(&mut all)),
                    }
                    good(self.stream.mark(1));
                    good(self.stream.wait(TIME_LIMIT));
                    best = best.min(good(self.stream.between()) / 1000.0 / CALLS as f64);
                }
                good(all.check());
                times.push(format!("{best:.2}"));
            }
            self.say(&format!("{bytes} {}", times.join(" ")));
        }
        good(all.free());
        self.end()
    }
}
