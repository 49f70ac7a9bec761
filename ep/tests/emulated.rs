//! Runs the kernels of `cu/` on CPU threads. The test needs no GPU and no CUDA, but a C++ compiler.

#![allow(clippy::unwrap_used)]

#[path = "../../kernels/emulator/emulator.rs"]
mod emulator;

const FOLDERS: [&str; 2] = ["ep/tests/emulated", "ep/cu"];

#[test]
fn kernels_of_high_throughput() {
    emulator::run("ep/tests/emulated/high_throughput.cpp", &FOLDERS);
}

#[test]
fn kernels_of_low_latency() {
    emulator::run("ep/tests/emulated/low_latency.cpp", &FOLDERS);
}
