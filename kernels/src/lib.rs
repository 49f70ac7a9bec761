//! What runs on devices: GPU kernels, and the CPU device, whose threads issue the same requests.
//!
//! How devices meet in barriers is the matter of [`meeting`]. `include/symrail_layout.h` mirrors the channels' layout
//! for CUDA; `examples/emit_layout.rs` writes it.

pub mod cpu;
pub mod cuda;
pub mod meeting;
