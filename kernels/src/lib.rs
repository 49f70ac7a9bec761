//! Device code: GPU kernels, and the CPU device, whose threads issue the same requests.
//!
//! [`barrier_words`] has the steps and words of device barriers. `include/symrail_layout.h` mirrors the channels'
//! layout for CUDA, and `include/symrail/*_layout.cuh` mirror [`mod@layout`]; the tests that compare them write them.

pub mod barrier_words;
pub mod cpu;
pub mod cuda;
pub mod layout;
