//! Verifies and measures the device API on GPUs, one PE a GPU:
//!
//!     symrail run -n 2 -- gpu_suite [--heap pinned|device|staged] [--no-verify] [--no-bench] [--nvrtc FOLDER] [--sources KERNELS]
//!
//! `pinned`: the runtime's heap in host memory. `device`: a heap of the program's own in GPU memory, peers mapped. `staged`: the
//! runtime's heap in GPU memory (with SYMRAIL_HEAP_KIND=device), which only the proxy reaches.
//!
//! Kernels on all PEs check each other's work ([`verify`]); then [`bench`] prints a table. `scripts/gpu.sh` runs it with
//! all heaps and paths. Without a GPU it says SKIPPED.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod bench;
mod job;
mod on_stream;
mod verify;

use std::path::PathBuf;
use std::process::ExitCode;

use symrail_kernels::cuda::Gpu;

/// What the command line asks for.
pub struct Options {
    device_heap: bool,
    staged_heap: bool,
    verify: bool,
    bench: bool,
    nvrtc: Vec<PathBuf>,
    sources: Option<PathBuf>,
}

fn options() -> Result<Options, String> {
    let mut options =
        Options { device_heap: false, staged_heap: false, verify: true, bench: true, nvrtc: Vec::new(), sources: None };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--heap" => match arguments.next().as_deref() {
                Some("pinned") => (options.device_heap, options.staged_heap) = (false, false),
                Some("device") => (options.device_heap, options.staged_heap) = (true, false),
                Some("staged") => (options.device_heap, options.staged_heap) = (false, true),
                other => return Err(format!("--heap {other:?}: use pinned, device or staged")),
            },
            "--no-verify" => options.verify = false,
            "--no-bench" => options.bench = false,
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
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("gpu_suite: {error}");
            ExitCode::FAILURE
        }
    }
}
