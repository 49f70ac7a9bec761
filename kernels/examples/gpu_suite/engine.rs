//! Large copies of kernels: by their own loads and stores, or by copy engines (`SYMRAIL_DEVICE_COPY`).

use std::time::Duration;

use symrail_kernels::cuda::{PinnedBuffer, Shape, Stream};

use crate::job::{Failure, Job};
use crate::verify::{CHECKS, print};

/// The offset behind the memory of other checks, with room for three times the largest copy.
const AT: u64 = 64 << 20;
/// The number of sizes in `cu/verify.cu`; all of them are tested where that does not take long.
const SIZES: u64 = 7;
const SMALLER_SIZES: u64 = 6;
/// The number of sizes of at least 1 MiB, the default threshold.
const LARGE: u64 = 3;
/// The least number of an engine's requests for each size: put, get, two puts with a signal, and one behind which a
/// fence waits.
const EACH: u64 = 5;
/// Blocks that occupy a part of the GPU meanwhile.
const SPINNING: Shape = Shape { blocks: 32, threads: 64 };
const LONGEST_SPIN: Duration = Duration::from_secs(60);

/// Runs the checks, while another kernel spins if `spinning`. Returns `false` when one failed.
pub fn run(job: &Job<'_>, spinning: bool) -> Result<bool, Failure> {
    let report = job.gpu.alloc(CHECKS.len() * 8)?;
    let [copies, spin] = ["copies", "spin"].map(|name| job.verify.kernel(name));
    let (copies, spin) = (copies?, spin?);
    let sizes = if job.mapped { SIZES } else { SMALLER_SIZES };
    let (aside, stop) = (Stream::new(&job.gpu)?, PinnedBuffer::new(&job.gpu, 4096)?);
    let before = job.state().completed();
    let shape = Shape { blocks: 1, threads: 512 };
    // SAFETY: the kernels' arguments, as `cu/verify.cu` declares them. The buffers outlive both kernels, since the
    // spinning one is waited for below.
    let checked = unsafe {
        if spinning {
            aside.launch(&spin, SPINNING, &[stop.device().get(), LONGEST_SPIN.as_nanos() as u64])?;
        }
        job.stream.launch(&copies, shape, &[job.area, job.area + AT, report.at().get(), sizes])
    };
    let checked = checked.and_then(|()| job.stream.wait(job.time_limit));
    let checked = checked.map_err(symrail_kernels::cuda::Error::from).and_then(|()| job.state().check());
    let spins = !aside.is_idle()?;
    stop.set_word(0, 1);
    aside.wait(LONGEST_SPIN)?;
    checked?;
    let mut good = print(job, report.at())?;
    if spins != spinning {
        println!("FAILED on PE {}: the kernel that was to spin meanwhile had ended", job.me());
        good = false;
    }
    let asked = job.state().completed() - before;
    let large = match job.state().engine_from() {
        Some(1) => sizes,
        Some(bytes) if bytes <= 1 << 20 => sizes + LARGE - SIZES,
        _ => 0,
    };
    if job.mapped && asked < large * EACH {
        println!("FAILED on PE {}: {asked} requests, and {large} sizes were for copy engines", job.me());
        good = false;
    }
    job.runtime.barrier_all()?;
    Ok(good)
}

/// Block puts of PE 0, by blocks and by copy engines: many at a time, and one at a time.
pub fn bench(job: &Job<'_>, at: u64) -> Result<(), Failure> {
    if job.state().engine_from().is_none() {
        return Ok(());
    }
    let most = (job.area_bytes - (2 << 20)) as u64 / 2;
    for bytes in [64 << 10, 256 << 10, 512 << 10, 1u64 << 20, 2 << 20, 4 << 20, 8 << 20, 64 << 20] {
        for blocks in [1, 4, 16, 64] {
            if bytes > most || bytes / u64::from(blocks) < 64 << 10 {
                continue;
            }
            for (name, text) in [("block_put", "many at a time"), ("block_put_quiet", "one at a time ")] {
                job.runtime.barrier_all()?;
                if job.me() == 0 {
                    let speeds =
                        [speed(job, name, (at, bytes), blocks, None)?, speed(job, name, (at, bytes), blocks, Some(1))?];
                    let [kernel, engine] = speeds;
                    println!(
                        "put {bytes:9} B by {blocks:2} blocks, {text}: kernel {kernel:7.2} GB/s, copy engine {engine:7.2} GB/s"
                    );
                }
            }
        }
    }
    job.state().attach(&job.bench)?;
    Ok(job.runtime.barrier_all()?)
}

/// GB/s of a kernel of `cu/bench.cu`; an engine makes its copies from so many bytes on.
fn speed(
    job: &Job<'_>,
    name: &str,
    (at, bytes): (u64, u64),
    blocks: u32,
    engine_from: Option<u64>,
) -> Result<f64, Failure> {
    let kernel = job.bench.kernel(name)?;
    job.state().attach_with(&job.bench, engine_from)?;
    let rounds = ((1u64 << 30) / bytes).clamp(8, 500);
    let shape = Shape { blocks, threads: 1024 };
    // SAFETY: as `cu/bench.cu` declares it; both ranges are in the area.
    let launch = |rounds| unsafe { job.stream.launch(&kernel, shape, &[at, at + bytes.max(1 << 20), bytes, rounds]) };
    launch(2)?;
    job.stream.mark(0)?;
    launch(rounds)?;
    job.stream.mark(1)?;
    job.stream.wait(job.time_limit)?;
    job.state().check()?;
    Ok((bytes * rounds) as f64 / job.stream.between()?)
}
