//! Runs the kernels of `cu/` on threads of this machine. It needs a C++ compiler, but no GPU and no CUDA.

#![allow(clippy::unwrap_used)]

#[path = "../../kernels/emulator/emulator.rs"]
mod emulator;

#[test]
fn kernels_do_what_they_say_whoever_is_late() {
    emulator::run("overlap/tests/emulated/overlap.cpp", &["overlap/cu", "kernels/include"]);
}
