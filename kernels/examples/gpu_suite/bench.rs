//! Measurements of the device API between two GPUs, and of a channel with an engine that does nothing.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use symrail_kernels::cuda::{Copies, DeviceParts, DevicePtr, DeviceState, HeapView, Kernel, Shape, Transfer};
use symrail_proxy::channel::{Channel, Consumer};

use crate::engine;
use crate::job::{Failure, Job};

const ONE: Shape = Shape { blocks: 1, threads: 1 };

/// The place where kernels that measure themselves write nanoseconds.
struct Clock<'a> {
    job: &'a Job<'a>,
    out: symrail_kernels::cuda::DeviceBuffer,
}

impl Clock<'_> {
    /// Runs a kernel on this PE several times; returns the median of its times in nanoseconds.
    fn run(
        &self,
        kernel: &Kernel,
        shape: Shape,
        arguments: &[u64],
        prepare: impl Fn() -> Result<(), Failure>,
    ) -> Result<f64, Failure> {
        let mut times = Vec::new();
        for _ in 0..5 {
            prepare()?;
            // SAFETY: the first word of the clock's own memory.
            unsafe { self.job.gpu.fill(self.out.at(), 0, 8) }?;
            let all: Vec<u64> = arguments.iter().copied().chain([self.out.at().get()]).collect();
            // SAFETY: the callers below give each kernel the arguments that `cu/bench.cu` declares.
            unsafe { self.job.stream.launch(kernel, shape, &all) }?;
            self.job.stream.wait(self.job.time_limit)?;
            self.job.state().check()?;
            let mut word = [0; 8];
            self.out.read(0, &mut word)?;
            times.push(u64::from_le_bytes(word) as f64);
        }
        times.sort_by(f64::total_cmp);
        Ok(times[times.len() / 2])
    }
}

pub fn run(job: &Job<'_>) -> Result<(), Failure> {
    let clock = Clock { job, out: job.gpu.alloc(4096)? };
    let kernel = |name: &str| job.bench.kernel(name);
    let wide = Shape { blocks: 1, threads: 1024 };
    if job.runtime.n_pes() == 2 {
        let (data, signal, big) = (job.area, job.area + (64 << 10), job.area + (1 << 20));
        let fresh = || -> Result<(), Failure> {
            // SAFETY: inside of the area under test, which lives as long as the job.
            unsafe { job.gpu.fill(DevicePtr::new(signal), 0, 64) }?;
            Ok(job.runtime.barrier_all()?)
        };
        let together = || -> Result<(), Failure> { Ok(job.runtime.barrier_all()?) };
        let rounds = if job.mapped { 2000 } else { 500 };
        let per = |ns: f64| ns / rounds as f64 / 1e3;
        let ns = clock.run(&kernel("signal_ping_pong")?, ONE, &[signal, rounds], fresh)?;
        job.say(&format!("signal ping-pong, round trip                    {:9.2} us", per(ns)));
        for bytes in [8, 1024] {
            let ns = clock.run(&kernel("ping_pong")?, ONE, &[data, signal, bytes, rounds], fresh)?;
            job.say(&format!("put_signal ping-pong {bytes:5} B, round trip         {:9.2} us", per(ns)));
        }
        let ns = clock.run(&kernel("ping_pong")?, ONE, &[signal + 8, signal, 8, rounds], fresh)?;
        job.say(&format!("put_signal ping-pong     8 B beside its signal   {:9.2} us", per(ns)));
        if job.device.is_direct() && std::env::args().any(|a| a == "--variants") {
            for variant in 0..6 {
                let ns = clock.run(&kernel("wait_variants")?, ONE, &[signal, rounds, variant], fresh)?;
                job.say(&format!("  wait variant {variant}: {:.3} us", per(ns)));
            }
            for variant in 0..13 {
                let ns = clock.run(&kernel("put_variants")?, ONE, &[data, rounds, variant], fresh)?;
                job.say(&format!("  put variant {variant}: {:.3} us", per(ns)));
            }
        }
        let alone = |name: &str,
                     arguments: &[u64],
                     shape: Shape,
                     text: &str,
                     unit: &str,
                     scale: &dyn Fn(f64) -> f64|
         -> Result<(), Failure> {
            // One PE starts the operations, the other one only serves.
            together()?;
            if job.me() == 0 {
                let ns = clock.run(&kernel(name)?, shape, arguments, || Ok(()))?;
                job.say(&format!("{text:45}   {:9.2} {unit}", scale(ns)));
            }
            together()
        };
        alone("put_quiet", &[data, 8, rounds], ONE, "put 8 B + quiet", "us", &per)?;
        alone("put_quiet", &[data, 1024, rounds], ONE, "put 1 KiB + quiet", "us", &per)?;
        alone("g_latency", &[data, rounds], ONE, "g 4 B", "us", &per)?;
        alone("fetch_add_latency", &[data + 64, rounds], ONE, "fetch_add 4 B", "us", &per)?;
        let (few, many) = if job.mapped { (20_000, 20_000) } else { (2_000, 50) };
        let rate = |threads: u64, n: u64| move |ns: f64| (threads * n) as f64 / ns * 1e3;
        alone("p_rate", &[data, few], ONE, "p 4 B, 1 thread", "M/s", &rate(1, few))?;
        alone("p_rate", &[data, few], Shape { blocks: 1, threads: 32 }, "p 4 B, 32 threads", "M/s", &rate(32, few))?;
        alone("p_rate", &[data, many], wide, "p 4 B, 1,024 threads", "M/s", &rate(1024, many))?;
        for (apart, whose) in [(0, "one word"), (1, "own words")] {
            let text = format!("signal add, 1,024 threads, {whose}");
            alone("signal_add_rate", &[data, apart, many], wide, &text, "M/s", &rate(1024, many))?;
        }
        let whole = Shape { blocks: 16, threads: 1024 };
        alone("g_many", &[data], whole, "16,384 g 4 B by as many threads", "ms", &|ns| ns / 1e6)?;
        let wide = 1 << 20;
        let laps = if job.mapped { 20 } else { 10 };
        let speed = |ns: f64| (wide * laps) as f64 / ns;
        alone("put_quiet", &[big, wide, laps], ONE, "put 1 MiB by one thread", "GB/s", &speed)?;
        bandwidth(job, big)?;
        if job.mapped {
            copies(job, big)?;
            engine::bench(job, big)?;
        }
    }
    if job.me() == 0 && !job.device.is_direct() {
        channels(job, &clock)?;
    }
    Ok(())
}

/// Block puts of one PE, over several grids. The best is printed.
fn bandwidth(job: &Job<'_>, at: u64) -> Result<(), Failure> {
    let kernel = job.bench.kernel("block_put")?;
    let most = (job.area_bytes - (2 << 20)) / 2;
    for bytes in [4u64 << 10, 64 << 10, 1 << 20, 8 << 20, 64 << 20].into_iter().filter(|b| *b <= most as u64) {
        job.runtime.barrier_all()?;
        if job.me() == 0 {
            let (to, from) = (at, at + bytes.max(1 << 20));
            let goal: u64 = if job.mapped { 8 << 30 } else { 64 << 20 };
            let rounds = (goal / bytes).clamp(2, if job.mapped { 2000 } else { 100 });
            let mut best = (0.0, Shape { blocks: 0, threads: 0 });
            for blocks in [1u32, 4, 16, 32, 64, 128] {
                if u64::from(blocks) * 1024 > bytes || (!job.mapped && blocks > 4) {
                    continue;
                }
                let shape = Shape { blocks, threads: 1024 };
                // SAFETY: as `cu/bench.cu` declares it; both ranges are in the area.
                unsafe {
                    job.stream.launch(&kernel, shape, &[to, from, bytes, 2])?;
                    job.stream.mark(0)?;
                    job.stream.launch(&kernel, shape, &[to, from, bytes, rounds])?;
                }
                job.stream.mark(1)?;
                job.stream.wait(job.time_limit)?;
                job.state().check()?;
                let speed = (bytes * rounds) as f64 / job.stream.between()?;
                if speed > best.0 {
                    best = (speed, shape);
                }
                if bytes == 64 << 20 || (bytes == 1 << 20 && blocks == 64) {
                    println!("  block put {bytes:9} B, {blocks:3} blocks                {speed:9.2} GB/s");
                }
            }
            println!("block put {bytes:9} B, best of grids ({:3} blocks) {:9.2} GB/s", best.1.blocks, best.0);
        }
        job.runtime.barrier_all()?;
    }
    Ok(())
}

/// Puts in the order of a stream: copies by multiprocessors and by a copy engine.
fn copies(job: &Job<'_>, at: u64) -> Result<(), Failure> {
    let most = (job.area_bytes - (2 << 20)) as u64 / 2;
    for bytes in (12..=30).step_by(2).map(|bit| 1u64 << bit).filter(|bytes| *bytes <= most) {
        job.runtime.barrier_all()?;
        if job.me() == 0 {
            let mut speeds = [0.0; 2];
            for (who, speed) in [Copies::Kernel, Copies::Engine].into_iter().zip(&mut speeds) {
                let ops = job.on_stream.clone().with_copies(who);
                let rounds = ((4u64 << 30) / bytes).clamp(4, 500);
                for (mark, rounds) in [(0, 2), (1, rounds)] {
                    for _ in 0..rounds {
                        // SAFETY: both ranges are in the area.
                        unsafe {
                            ops.put(&job.stream, Transfer { dest: at, source: at + bytes.max(1 << 20), bytes }, 1)
                        }?;
                    }
                    job.stream.mark(mark)?;
                }
                job.stream.wait(job.time_limit)?;
                *speed = (bytes * rounds) as f64 / job.stream.between()?;
            }
            println!("put on a stream {bytes:10} B: kernel {:7.2} GB/s, copy engine {:7.2} GB/s", speeds[0], speeds[1]);
        }
        job.runtime.barrier_all()?;
    }
    Ok(())
}

/// A channel between a GPU and a thread that takes requests and does nothing.
fn channels(job: &Job<'_>, clock: &Clock<'_>) -> Result<(), Failure> {
    for (count, shapes) in [
        (1usize, vec![ONE, Shape { blocks: 1, threads: 32 }, Shape { blocks: 1, threads: 1024 }]),
        (4, vec![Shape { blocks: 4, threads: 256 }]),
    ] {
        let mut producers = Vec::new();
        let mut consumers = Vec::new();
        for _ in 0..count {
            let (producer, consumer) = Channel::new(4096, 64)?;
            producers.push(producer);
            consumers.push(consumer);
        }
        let base = DevicePtr::new(job.area);
        let peers = vec![base];
        let view = HeapView { base, bytes: 64, offset: 0, atomics: false, in_gpus: false, peers };
        let parts = DeviceParts {
            me: 0,
            n_pes: 1,
            heaps: vec![view],
            channels: producers,
            barrier_words: base,
            steps: Vec::new(),
            mailbox: None,
            timeout: Duration::from_secs(5),
            engine_from: None,
        };
        // SAFETY: the consumers, which hold the channels' memory, outlive the kernels that run below.
        let state = unsafe { DeviceState::new(&job.gpu, parts) }?;
        state.attach(&job.bench)?;
        let stop = AtomicBool::new(false);
        let measured = std::thread::scope(|scope| {
            scope.spawn(|| serve(consumers, &stop));
            let measured = measure(job, clock, count, &shapes);
            stop.store(true, Ordering::Release);
            measured
        });
        job.state().attach(&job.bench)?;
        measured?;
    }
    Ok(())
}

fn measure(job: &Job<'_>, clock: &Clock<'_>, count: usize, shapes: &[Shape]) -> Result<(), Failure> {
    let rounds = 2000;
    let ns = clock.run(&job.bench.kernel("flush")?, ONE, &[rounds], || Ok(()))?;
    println!("{count} channel(s), request + quiet, engine does nothing {:7.2} us", ns / rounds as f64 / 1e3);
    for batch in [8u64, 32] {
        let ns = clock.run(&job.bench.kernel("batch_rate")?, ONE, &[200_000, batch], || Ok(()))?;
        println!("{count} channel(s), 1 thread, batches of {batch:2}           {:9.2} M/s", 200_000.0 / ns * 1e3);
    }
    for shape in shapes {
        let threads = u64::from(shape.blocks * shape.threads);
        let rounds = (2_000_000 / threads).min(200_000);
        let ns = clock.run(&job.bench.kernel("request_rate")?, *shape, &[rounds], || Ok(()))?;
        println!(
            "{count} channel(s), requests of {} × {:4} threads          {:9.2} M/s",
            shape.blocks,
            shape.threads,
            (threads * rounds) as f64 / ns * 1e3
        );
    }
    Ok(())
}

fn serve(mut consumers: Vec<Consumer>, stop: &AtomicBool) {
    while !stop.load(Ordering::Acquire) {
        for consumer in &mut consumers {
            for _ in 0..64 {
                let Some((position, _)) = consumer.next() else { break };
                consumer.complete(position);
            }
            consumer.publish();
        }
    }
}
