//! Symmetric heaps in GPUs' memory, by `symrail-cuda`.
//!
//! | file | concept |
//! |---|---|
//! | [`vmm`] | a symmetric heap in device memory: addresses are reserved once, memory is mapped segment by segment |
//! | [`share`] | exchange of that memory's file descriptors with the PEs of this host |
//! | [`peers`] | peers' segments, mapped and cached |
//! | [`copy_engine`] | copies to and from device memory that no kernel can delay |
//! | `small_copy` | the parts of small ones |
//!
//! Memory is exported as a fabric handle where the machine permits that, otherwise as a file descriptor. It is never
//! managed memory.

pub mod copy_engine;
pub mod peers;
pub mod share;
mod small_copy;
pub mod vmm;

pub use copy_engine::CudaCopyEngine;
pub use peers::{DevicePeers, NotMapped};
pub use share::Exchange;
pub use symrail_cuda::{CudaError, DeviceBuffer, DevicePtr, Gpu, NicWrites, PinnedBuffer, Registration, Result};
pub use vmm::{DeviceHeap, DeviceSegment, HandleKind};
