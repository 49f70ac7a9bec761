//! Symrail: a symmetric heap whose puts, gets, signals and atomics reach any PE over any fabric.
//!
//! [`Runtime::init`] joins the job; its methods are the operations. PEs on the same host reach each other by loads and
//! stores; others over the rails of [`symrail_transport`], driven by the engine of [`symrail_proxy`].
//!
//! Warnings, and all that is logged, are events of [`tracing`]: programs that want them install a subscriber. Without
//! one, what joining warns of and what a PE waits for too long goes to standard error (`SYMRAIL_LOG` says what of it),
//! and the rest is not seen.
//!
//! | module | concept |
//! |---|---|
//! | [`bootstrap`] | how the PEs find each other: launcher, PMIx, unique id |
//! | `joining`, [`runtime`] | joining a job; what users call, handed on to the parts below |
//! | `job` | what a PE knows of its job |
//! | `space` | the symmetric address space: this PE's memory in it, and mapped peers' |
//! | [`operations`](Operations) | what operations need, and the handle that starts them |
//! | [`rma`], [`atomics`] | puts, gets, put-signals, AMOs; fence and quiet |
//! | [`context`] | operations that are ordered and completed apart from others |
//! | [`Delivery`] | an operation whose end is asked for by itself |
//! | [`wait`], [`wait_many`], `waiting` | waiting for words; what becomes of those who are waited for: lost, gone, late |
//! | `barrier_plan`, `sync` | how PEs wait for one another, host by host; barriers of all PEs |
//! | `alloc` | the heap's collective calls |
//! | [`symmetric`] | the same operations on typed slices, with checked bounds and without `unsafe`: start here |
//! | [`team`], [`collective`] | some PEs, and what they do together: broadcast, reduce, collect, all-to-all |
//! | [`gpu`], [`device`], `devices` | a GPU as the PE's device, or CPU threads in its place; [`kernels`] has what runs there |
//! | [`observe`] | observing a job from outside: figures, a trace |
//! | `program_data`, `touched` | the program's static variables as symmetric memory |
//! | `staged`, `staged_access`, `guarded`, `direct` | a heap in memory that the CPU cannot touch, and NICs perhaps can |
//! | `wire` | host threads on the wire |
//! | `interrupt` | ending waits from within |
//! | `process` | what must not be used, or taken down, by a forked child |
//! | `simulation` | PEs of a simulation, many in one thread (feature `simulation`) |
//! | `connection_info` | what PEs tell each other before they are connected |
//!
//! Parts are given what they need, and know nothing of [`Runtime`]: only `runtime`, `joining` and what users get from
//! it do ([`symmetric`], [`gpu`], [`device`]).

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
pub use interrupt::{GoOn, InterruptPoll};
pub use operations::Operations;
pub use rma::{SignalOp, Strided};
pub use runtime::Runtime;
pub use symmetric::wait::Elements;
pub use symmetric::{SymSlice, SymView, Symmetric};
pub use symrail_kernels as kernels;
pub use symrail_transport::Pe;
pub use symrail_transport::amo::{AmoOp, AmoType};
pub use symrail_transport::env::Settings;
pub use team::{Group, Team, TeamHeap};
pub use wait::{Cmp, WaitWord};
pub use wait_many::WordSet;
