//! Symrail: a symmetric heap whose puts, gets, signals and atomics reach any PE over any fabric.
//!
//! [`Runtime::init`] joins the job; its methods are the operations. PEs of one host access each other's memory by loads
//! and stores; other PEs use the rails of [`symrail_transport`], which the engine of [`symrail_proxy`] drives.
//!
//! Warnings and all log messages are events of [`tracing`]: a program that wants them installs a subscriber. Without a
//! subscriber, warnings of joining and of long waits go to standard error (`SYMRAIL_LOG` selects them), and other
//! events are dropped.
//!
//! | module | concept |
//! |---|---|
//! | [`bootstrap`] | how the PEs find each other: launcher, PMIx, unique id |
//! | `joining`, [`runtime`] | joining a job; the interface for users, which calls the parts below |
//! | `job` | a PE's data about its job |
//! | `space` | the symmetric address space: this PE's memory in it, and mapped peers' |
//! | [`operations`](Operations) | the state that operations need, and the handle that starts them |
//! | [`rma`], [`atomics`] | puts, gets, put-signals, AMOs; fence and quiet |
//! | [`context`] | operations that are ordered and completed separately from others |
//! | [`Delivery`] | an operation whose completion is tested individually |
//! | [`wait`], [`wait_many`], `waiting` | waits for words; detection of peers that are lost, gone or late |
//! | `barrier_plan`, `sync` | how PEs wait for one another, host by host; barriers of all PEs |
//! | `alloc` | the heap's collective calls |
//! | [`symmetric`] | the same operations on typed slices, with checked bounds and without `unsafe`: start here |
//! | [`team`], [`collective`] | groups of PEs and their collectives: broadcast, reduce, collect, all-to-all |
//! | [`gpu`], [`device`], `devices` | a GPU as the PE's device, or CPU threads in its place; [`kernels`] has the device code |
//! | [`observe`] | observing a job from outside: figures, a trace |
//! | `program_data`, `touched` | the program's static variables as symmetric memory |
//! | `staged`, `staged_access`, `guarded`, `direct` | a heap in memory that the CPU cannot access, though NICs may |
//! | `wire` | host threads on the wire |
//! | `interrupt` | a check with which the program ends waits |
//! | `process` | resources that a forked child must neither use nor destroy |
//! | `simulation` | PEs of a simulation, many in one thread (feature `simulation`) |
//! | `connection_info` | data that PEs exchange before they connect |
//!
//! Each part gets only the data that it needs, and does not depend on [`Runtime`]. Only `runtime`, `joining` and the
//! parts that users get from it depend on it ([`symmetric`], [`gpu`], [`device`]).

mod alloc;
pub mod atomics;
mod barrier_plan;
pub mod bootstrap;
pub mod collective;
mod columns;
mod connection_info;
pub mod context;
mod delivery;
pub mod device;
mod devices;
mod direct;
mod directory;
pub mod error;
pub mod gpu;
mod guarded;
mod interrupt;
mod job;
mod joining;
pub mod observe;
mod operations;
mod process;
mod program_data;
#[cfg(doctest)]
mod readme;
pub mod rma;
pub mod rounds;
pub mod runtime;
#[cfg(feature = "simulation")]
pub mod simulation;
mod space;
mod staged;
mod staged_access;
mod stages;
pub mod symmetric;
mod sync;
pub mod team;
mod touched;
pub mod wait;
pub mod wait_many;
mod waiting;
mod wire;

pub use atomics::{AmoInteger, AmoValue};
pub use collective::{ActiveSet, ActiveSets, Reduction};
pub use context::Context;
pub use delivery::Delivery;
pub use error::{Error, Result};
pub use interrupt::{GoOn, with_timeout};
pub use operations::Operations;
pub use rma::{SignalOp, SignalUpdate, Strided};
pub use runtime::Runtime;
pub use symmetric::wait::Elements;
pub use symmetric::{SymSlice, SymView, Symmetric};
pub use symrail_core::DataType;
pub use symrail_kernels as kernels;
pub use symrail_transport::Pe;
pub use symrail_transport::amo::{AmoOp, AmoType};
pub use symrail_transport::endpoint::command::Priority;
pub use symrail_transport::env::Settings;
pub use team::{Group, Team, TeamHeap};
pub use wait::{Cmp, WaitWord};
pub use wait_many::WordSet;
pub use waiting::{BoundedWait, Ended};
