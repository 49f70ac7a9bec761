//! Runs the kernels of `cu/collectives.cu` and `cu/stream.cu`, and those for PyTorch, on threads of this machine. That
//! needs a C++ compiler, but no GPU and no CUDA.

#![allow(clippy::unwrap_used)]

#[path = "../emulator/emulator.rs"]
mod emulator;

#[test]
fn kernels_of_collectives_do_what_they_say() {
    let folders = ["kernels/tests/emulated", "kernels/include", "kernels/cu"];
    emulator::run("kernels/tests/emulated/collectives.cpp", &folders);
}

#[test]
fn behind_a_wait_of_a_stream_whose_time_is_over_nothing_changes() {
    let folders = ["kernels/tests/emulated", "kernels/include", "kernels/cu"];
    emulator::run("kernels/tests/emulated/stream.cpp", &folders);
}

#[test]
fn a_wait_for_pytorch_whose_time_is_over_ends_the_context() {
    let folders = ["kernels/tests/emulated", "kernels/include", "python/src"];
    emulator::run("kernels/tests/emulated/torch.cpp", &folders);
}
