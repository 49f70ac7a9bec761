//! GPUs: the driver, memory that GPUs share, and host memory that they reach.
//!
//! | file | concept |
//! |---|---|
//! | [`error`] | what the driver said, about which GPU, and what to do |
//! | [`driver`] | one GPU: its context, plain memory, copies |
//! | [`pinned`] | host memory that GPUs reach over PCIe |
//! | [`vmm`] | a symmetric heap in device memory: addresses reserved once, memory behind them segment by segment |
//! | [`share`] | file descriptors of that memory, handed to the PEs of this host |
//! | [`peers`] | peers' segments, mapped and cached |
//! | [`rdma`] | that memory in NICs' hands |
//! | [`mover`] | copies to and from device memory that no kernel holds up |
//!
//! The driver is loaded at run time: without one, [`Gpu::open`] says so. Memory is exported as a fabric handle where the
//! machine permits that, else as a file descriptor; never as managed memory.

pub mod driver;
pub mod error;
pub mod mover;
pub mod peers;
pub mod pinned;
pub mod rdma;
pub mod share;
pub mod vmm;

pub use driver::{DeviceBuffer, Gpu};
pub use error::{CudaError, Result};
pub use mover::CudaMover;
pub use peers::{DevicePeers, NotMapped};
pub use pinned::{PinnedBuffer, Registration};
pub use rdma::NicWrites;
pub use share::Exchange;
pub use vmm::{DeviceHeap, DeviceSegment, HandleKind};
