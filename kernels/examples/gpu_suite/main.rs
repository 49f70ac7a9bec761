//! Verifies and measures the device API on GPUs, one PE a GPU:
//!
//!     symrail run -n 2 -- gpu_suite [--rounds N] [--no-verify] [--no-bench] [--no-spin] [--nvrtc FOLDER] [--sources KERNELS]
//!
//! `SYMRAIL_HEAP_KIND` chooses the heap: in host memory (`pinned`) or in GPU memory (`device`). Peers' GPU memory is
//! mapped, or, with `symrail run --hosts 2` or `SYMRAIL_DISABLE_P2P`, only accessible through the proxy.
//!
//! `--no-spin` is for tools under which two kernels of a process cannot run at the same time.
//!
//! Kernels on all PEs check each other's work ([`verify`]), and then [`bench`] prints a table. `scripts/gpu.sh` runs it
//! with all heaps and paths. Without a GPU it prints SKIPPED.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod bench;
mod engine;
mod handles;
mod job;
mod on_stream;
mod verify;

use std::path::PathBuf;
use std::process::ExitCode;

use job::{Failure, Job};
use symrail_kernels::cuda::{DevicePtr, Gpu};

/// The command line.
pub struct Options {
    rounds: u32,
    verify: bool,
    bench: bool,
    spin: bool,
    nvrtc: Vec<PathBuf>,
    sources: Option<PathBuf>,
}

fn options() -> Result<Options, String> {
    let mut options = Options { rounds: 1, verify: true, bench: true, spin: true, nvrtc: Vec::new(), sources: None };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--rounds" => {
                let rounds = arguments.next().and_then(|n| n.parse().ok());
                options.rounds = rounds.ok_or("--rounds needs a number")?;
            }
            "--no-verify" => options.verify = false,
            "--no-bench" => options.bench = false,
            "--no-spin" => options.spin = false,
            // It is looked up where it is used.
            "--variants" => {}
            "--sources" => options.sources = Some(arguments.next().ok_or("--sources needs a folder")?.into()),
            "--nvrtc" => options.nvrtc.push(arguments.next().ok_or("--nvrtc needs a folder")?.into()),
            other => return Err(format!("{other:?} is not known: see the first lines of the source")),
        }
    }
    Ok(options)
}

/// Verifies, and then measures.
fn work(job: &Job<'_>, options: &Options) -> Result<(), Failure> {
    if options.verify {
        for round in 1..=options.rounds {
            // SAFETY: inside of the area under test, which lives as long as the job.
            unsafe { job.gpu.fill(DevicePtr::new(job.area), 0, 16 << 20) }?;
            job.runtime.barrier_all()?;
            let good = verify::run(job)? & engine::run(job, options.spin)? & on_stream::run(job)?;
            if !good {
                return Err(format!("a check failed in round {round}").into()); // no other PE has to wait for this one
            }
            if round % 25 == 0 && round < options.rounds {
                job.say(&format!("{round} rounds"));
            }
        }
        if job.device.is_direct() && !handles::run(job)? {
            return Err("a check of device memory failed".into());
        }
        println!("PE {}: {} rounds of all checks: ok", job.me(), options.rounds);
    }
    job.runtime.barrier_all()?;
    if options.bench {
        bench::run(job)?;
    }
    Ok(())
}

fn main() -> ExitCode {
    let options = match options() {
        Ok(options) => options,
        Err(why) => {
            eprintln!("gpu_suite: {why}");
            return ExitCode::from(2);
        }
    };
    if Gpu::count() == 0 {
        println!("SKIPPED: no CUDA driver or no GPU on this machine");
        return ExitCode::SUCCESS;
    }
    match job::run(&options, work) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("gpu_suite: {error}");
            ExitCode::FAILURE
        }
    }
}
