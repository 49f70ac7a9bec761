//! Collectives on GPUs, on a stream or in a graph. A block of a plan is a block of a kernel; the most important
//! collectives have special kernels.
//!
//! | file | concept |
//! |---|---|
//! | [`communicator`] | collectives on streams: start here |
//! | [`channels`] | memory channels for users' kernels |
//! | `plan` | a plan with its memory; a launch |
//! | [`stage`] | buffers anywhere in the GPU's memory |
//! | [`exchange`] | sends and receives |
//! | [`straight`] | all-reduces, all-gathers, reduce-scatters and all-to-alls without a plan |
//! | [`normed`] | all-reduces with a residual and an RMS norm |
//! | `memory` | symmetric memory for all of these |
//! | `abort` | ending the waits of kernels |
//! | [`encode`] | a plan in the kernels' format |
//! | `layout` | what kernels and the host share, and its header `cu/layout.cuh` |
//! | [`program`] | the kernels |
//!
//! # Promises
//! - Every wait of a kernel ends within `SYMRAIL_TIMEOUT_S`, or when a PE has given up, or by
//!   [`GpuCommunicator::abort`]. The error names the plan, the operation and the PE.
//! - Calls are numbered on the device, so that a graph can be replayed: signals are counted in 64 bits, packets carry
//!   a flag that is different in each call. Nothing has to be cleared between calls.
//! - Any length and alignment.

mod abort;
pub mod channels;
pub mod communicator;
pub mod encode;
pub mod exchange;
mod layout;
mod memory;
pub mod normed;
mod plan;
pub mod program;
pub mod stage;
pub mod straight;

pub use abort::AbortHandle;
pub use channels::MemoryChannels;
pub use communicator::GpuCommunicator;
pub use plan::Memory;
