//! Symmetric heaps in GPUs' memory, by `symrail-cuda`.
//!
//! | file | concept |
//! |---|---|
//! | [`vmm`] | a symmetric heap in device memory: addresses reserved once, memory behind them segment by segment |
//! | [`share`] | file descriptors of that memory, handed to the PEs of this host |
//! | [`peers`] | peers' segments, mapped and cached |
//! | [`copy_engine`] | copies to and from device memory that no kernel holds up |
//!
//! Memory is exported as a fabric handle where the machine permits that, else as a file descriptor; never as managed
//! memory.

pub mod copy_engine;
pub mod peers;
pub mod share;
pub mod vmm;

pub use copy_engine::CudaCopyEngine;
pub use peers::{DevicePeers, NotMapped};
pub use share::Exchange;
pub use symrail_cuda::{CudaError, DeviceBuffer, DevicePtr, Gpu, NicWrites, PinnedBuffer, Registration, Result};
pub use vmm::{DeviceHeap, DeviceSegment, HandleKind};
