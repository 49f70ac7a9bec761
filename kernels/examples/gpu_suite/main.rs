//! Verifies and measures the device API on GPUs, one PE a GPU:
//!
//!     symrail run -n 2 -- gpu_suite [--rounds N] [--no-verify] [--no-bench] [--no-spin] [--nvrtc FOLDER] [--sources KERNELS]
//!
//! `SYMRAIL_HEAP_KIND` says what is verified and measured: a heap in host memory (`pinned`), or in GPU memory
//! (`device`), whose peers are mapped, or with `symrail run --hosts 2` or `SYMRAIL_DISABLE_P2P` reached by the proxy
//! only.
//!
//! `--no-spin` is for tools under which no two kernels of a process run at a time.
//!
//! Kernels on all PEs check each other's work ([`verify`]); then [`bench`] prints a table. `scripts/gpu.sh` runs it
//! with all heaps and paths. Without a GPU it says SKIPPED.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod bench;
mod engine;
mod handles;
mod job;
mod on_stream;
mod verify;

use std::path::PathBuf;
use std::process::ExitCode;

use symrail_kernels::cuda::Gpu;

/// What the command line asks for.
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
            // Looked for where it matters.
            "--variants" => {}
            "--sources" => options.sources = Some(arguments.next().ok_or("--sources needs a folder")?.into()),
            "--nvrtc" => options.nvrtc.push(arguments.next().ok_or("--nvrtc needs a folder")?.into()),
            other => return Err(format!("{other:?} is not known: see the first lines of the source")),
        }
    }
    Ok(options)
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
    match job::run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("gpu_suite: {error}");
            ExitCode::FAILURE
        }
    }
}
