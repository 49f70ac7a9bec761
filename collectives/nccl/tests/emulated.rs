//! Runs the kernels of `cu/` on CPU threads. The test needs no GPU and no CUDA, but a C++ compiler.

#![allow(clippy::unwrap_used)]

#[path = "../../../kernels/emulator/emulator.rs"]
mod emulator;

#[test]
fn behind_a_wait_that_has_ended_without_its_signals_no_put_changes_anything() {
    let folders = ["kernels/include", "collectives/nccl/cu"];
    emulator::run("collectives/nccl/tests/emulated/one_sided.cpp", &folders);
}
