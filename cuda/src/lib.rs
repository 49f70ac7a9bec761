//! GPUs, by the CUDA driver and NVRTC: what everything above needs of them, with errors as values.
//!
//! # Invariants
//! - Nothing here needs CUDA to build, nor to run: the driver, NVRTC and cuBLASLt are loaded when asked for, and
//!   without a driver [`Gpu::open`] says so.
//! - A range that safe code names lies inside of memory that its owner allocated; all other device addresses enter
//!   through `unsafe` functions.
//! - Nothing here knows of heaps, PEs' memory or channels.
//!
//! # Where to start
//! [`Gpu::open`], then [`Gpu::alloc`] for memory, [`nvrtc`] and [`Module::load`] for programs, [`Stream`] for launches.
//!
//! | module | concept |
//! |---|---|
//! | [`device`] | what the driver says of its GPUs |
//! | [`driver`] | one GPU: its context, plain memory, copies |
//! | `captured` | memory with content, also while a stream captures |
//! | [`mod@pointer`] | addresses of GPUs |
//! | [`pinned`] | host memory that GPUs reach over PCIe |
//! | [`rdma`] | a GPU's memory in NICs' hands |
//! | [`nvrtc`] | CUDA C++, compiled at run time |
//! | [`module`] | loaded programs and their kernels |
//! | [`cublaslt`] | matrix products by cuBLASLt, loaded at run time |
//! | `library` | the toolkit's libraries, wherever they are |
//! | [`stream`] | launches in order, and graphs of them |
//! | [`event`] | places in a stream's work |
//! | [`error`] | what the driver said, about which GPU, and what to do |

mod captured;
pub mod cublaslt;
pub mod device;
pub mod driver;
pub mod error;
pub mod event;
mod library;
pub mod module;
pub mod nvrtc;
pub mod pinned;
pub mod pointer;
pub mod rdma;
pub mod stream;

pub use cudarc::driver::sys;
pub use device::Device;
pub use driver::{Current, DeviceBuffer, Gpu, Sharing};
pub use error::{CudaError, Result};
pub use event::Event;
pub use module::{Kernel, Module};
pub use nvrtc::{Compiled, Nvrtc};
pub use pinned::{PinnedBuffer, Registration};
pub use pointer::DevicePtr;
pub use rdma::NicWrites;
pub use stream::{Graph, Shape, Stream};
