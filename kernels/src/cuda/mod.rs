//! GPUs as devices: programs that use the device API, and a kernel's data about its PE. `symrail-cuda` loads and
//! launches programs; its items are re-exported here.
//!
//! | file | concept |
//! |---|---|
//! | [`compile`] | the device API's headers, and programs that use them |
//! | [`mod@compiled`] | programs that were compiled before |
//! | `kept` | a folder with compiled programs |
//! | [`on_stream`] | puts, gets, signals, waits, quiet and barriers in the order of a stream |
//! | [`chain`] | puts, signals and waits on a stream that end with the first failure |
//! | [`collectives`] | collectives of a team in the order of a stream |
//! | [`state`] | a kernel's data about its PE (`include/symrail/state.cuh`) |
//! | `failures` | what kernels and their requests report |
//! | [`heap`] | a symmetric heap in a GPU's address space |
//! | [`team`] | barriers of kernels on several PEs |
//! | [`error`] | errors |
//!
//! Typical use: [`Gpu::open`], [`compile::Program::new`], [`Module::load`], [`DeviceState::new`] with the runtime's
//! parts, [`DeviceState::attach`], [`Module::kernel`], [`Stream::launch`], [`Stream::wait`], [`DeviceState::check`].
//!
//! CUDA is not needed to build: the driver and NVRTC are loaded on demand.

pub mod chain;
pub mod collectives;
pub mod compile;
pub mod compiled;
pub mod error;
mod failures;
pub mod heap;
mod kept;
pub mod on_stream;
pub mod state;
pub mod team;

pub use chain::Chain;
pub use collectives::Collectives;
pub use compile::Program;
pub use compiled::compiled;
pub use error::{Error, Result};
pub use failures::Failures;
pub use heap::{HeapView, Reach};
pub use on_stream::{Copies, OnStream, Transfer};
pub use state::{DeviceParts, DeviceState};
pub use symrail_cuda::{
    Compiled, CudaError, Current, DeviceBuffer, DevicePtr, Event, Gpu, Graph, InTurn, Kernel, LastUse, Module,
    PinnedBuffer, Registration, Shape, Sharing, Stream, in_turn,
};
pub use symrail_heap::cuda::{DeviceHeap, DevicePeers};
pub use team::DeviceTeam;
