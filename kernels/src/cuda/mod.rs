//! GPUs as devices: compiling programs, telling kernels about their PE, launching them.
//!
//! | file | concept |
//! |---|---|
//! | [`compile`] | CUDA C++ with the device API, compiled at run time by NVRTC |
//! | [`module`] | loaded programs, kernels, launches, streams |
//! | [`on_stream`] | puts, signals, waits, quiet and barrier in the order of a stream |
//! | [`state`] | what a kernel knows of its PE (`include/symrail/state.cuh`), and what it has to say afterwards |
//! | [`heap`] | a symmetric heap as a GPU sees it |
//! | [`team`] | how kernels meet those of other PEs |
//! | [`error`] | what can go wrong |
//!
//! Typical: [`Gpu::open`], [`compile::Program::new`], [`Module::load`], [`DeviceState::new`] of what the runtime gives,
//! [`DeviceState::attach`], [`Module::kernel`], [`Stream::launch`], [`Stream::wait`], [`DeviceState::check`].
//!
//! Nothing of this needs CUDA to build: the driver and NVRTC are loaded when asked for.

pub mod compile;
pub mod error;
pub mod heap;
pub mod module;
pub mod on_stream;
pub mod state;
pub mod team;

pub use compile::{Compiled, Program};
pub use error::{Error, Result};
pub use heap::{HeapView, Reach};
pub use module::{Graph, Kernel, Module, Shape, Stream};
pub use on_stream::{Copies, OnStream};
pub use state::{DeviceParts, DeviceState};
pub use symrail_heap::cuda::{DeviceBuffer, DeviceHeap, DevicePeers, Gpu, PinnedBuffer, Registration};
pub use team::DeviceTeam;
