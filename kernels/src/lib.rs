//! What runs on devices: the CPU device, whose threads issue the same requests as a GPU kernel.
//!
//! `include/symrail_layout.h` mirrors the channels' layout for CUDA; `examples/emit_layout.rs` writes it.

pub mod cpu;
