//! GPUs as devices: programs that use the device API, and what kernels know of their PE. Programs are loaded and
//! launched by `symrail-cuda`, which is named here as it is there.
//!
//! | file | concept |
//! |---|---|
//! | [`compile`] | the device API's headers, and programs that use them |
//! | [`on_stream`] | puts, gets, signals, waits, quiet and barriers in the order of a stream |
//! | [`collectives`] | collectives of a team in the order of a stream |
//! | [`state`] | what a kernel knows of its PE (`include/symrail/state.cuh`), and what it has to say afterwards |
//! | [`heap`] | a symmetric heap as a GPU sees it |
//! | [`team`] | barriers of kernels with those of other PEs |
//! | [`error`] | what can go wrong |
//!
//! Typical: [`Gpu::open`], [`compile::Program::new`], [`Module::load`], [`DeviceState::new`] of what the runtime gives,
//! [`DeviceState::attach`], [`Module::kernel`], [`Stream::launch`], [`Stream::wait`], [`DeviceState::check`].
//!
//! Nothing of this needs CUDA to build: the driver and NVRTC are loaded when asked for.

pub mod collectives;
pub mod compile;
pub mod error;
pub mod heap;
pub mod on_stream;
pub mod state;
pub mod team;

pub use collectives::Collectives;
pub use compile::Program;
pub use error::{Error, Result};
pub use heap::{HeapView, Reach};
pub use on_stream::{Copies, OnStream};
pub use state::{DeviceParts, DeviceState};
pub use symrail_cuda::{
    Compiled, CudaError, Current, DeviceBuffer, DevicePtr, Event, Gpu, Graph, Kernel, Module, PinnedBuffer,
    Registration, Shape, Sharing, Stream,
};
pub use symrail_heap::cuda::{DeviceHeap, DevicePeers};
pub use team::DeviceTeam;
