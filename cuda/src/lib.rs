//! GPUs, by the CUDA driver and NVRTC: the functions that higher crates need, with errors as values.
//!
//! # Invariants
//! - CUDA is not needed to build or to run this crate. The driver, NVRTC and cuBLASLt are loaded on demand, and without
//!   a driver [`Gpu::open`] returns an error.
//! - A range in safe code is inside of memory that its owner allocated. All other device addresses enter through
//!   `unsafe` functions.
//! - This crate knows no heaps, no PEs' memory and no channels.
//!
//! # Where to start
//! [`Gpu::open`], then [`Gpu::alloc`] for memory, [`nvrtc`] and [`Module::load`] for programs, [`Stream`] for launches.
//!
//! | module | concept |
//! |---|---|
//! | [`device`] | properties of GPUs that the driver reports |
//! | [`driver`] | one GPU: its context, plain memory, copies |
//! | `capture` | the graph that a stream is capturing, and its order among other work |
//! | `captured` | memory with content, which can be allocated while a stream captures |
//! | `relaxed` | the mode in which a thread may make and free memory while a stream captures |
//! | [`mod@pointer`] | addresses of GPUs |
//! | [`pinned`] | host memory that GPUs can access over PCIe |
//! | [`rdma`] | a GPU's memory for NICs |
//! | [`ipc`] | a GPU's memory for other processes of the host |
//! | [`copies`] | many copies between GPUs' memory at once |
//! | [`nvrtc`] | CUDA C++, compiled at run time |
//! | [`module`] | loaded programs and their kernels |
//! | [`cublaslt`] | matrix products by cuBLASLt, loaded at run time |
//! | `library` | the search for the toolkit's libraries |
//! | [`stream`] | launches in order, and graphs of them |
//! | [`event`] | points in a stream's work |
//! | [`turns`] | launches that use the same memory, one after the other on whatever streams |
//! | [`error`] | errors with the GPU, the driver's text and the remedy |

mod capture;
mod captured;
pub mod copies;
pub mod cublaslt;
pub mod device;
pub mod driver;
pub mod error;
pub mod event;
pub mod ipc;
mod library;
pub mod module;
pub mod nvrtc;
pub mod pinned;
pub mod pointer;
pub mod rdma;
mod relaxed;
pub mod stream;
pub mod turns;

pub use cudarc::driver::sys;
pub use device::Device;
pub use driver::{Current, DeviceBuffer, Gpu, Sharing};
pub use error::{CudaError, Result};
pub use event::Event;
pub use module::{Kernel, Module, global_of_others};
pub use nvrtc::{Compiled, Nvrtc};
pub use pinned::{PinnedBuffer, Registration};
pub use pointer::DevicePtr;
pub use rdma::NicWrites;
pub use stream::{Graph, Shape, Stream};
pub use turns::{InTurn, LastUse, in_turn};
