//! Symrail: a symmetric heap whose puts, gets, signals and atomics reach any PE over any fabric.
//!
//! [`Runtime::init`] joins the job; its methods are the operations. PEs on the same host reach each other by loads and
//! stores; others over the rails of [`symrail_transport`], driven by the engine of [`symrail_proxy`].
//!
//! Warnings, and all that is logged, are events of [`tracing`]: programs that want them install a subscriber. Without one, what joining warns
//! of and what a PE waits for too long goes to standard error (`SYMRAIL_LOG` says what of it), and the rest is not seen.
//!
//! | module | concept |
//! |---|---|
//! | [`bootstrap`] | how the PEs find each other: launcher, PMIx, unique id |
//! | `joining`, [`runtime`] | joining a job; what a PE knows of it, and leaving |
//! | [`alloc`] | the heap's collective calls |
//! | [`context`] | operations that are ordered and completed apart from others |
//! | [`rma`], [`atomics`] | puts, gets, put-signals, AMOs; fence and quiet |
//! | [`wait`], [`wait_many`], [`sync`] | waiting for a word, for some of many, and for everybody |
//! | `waiting` | what becomes of those who are waited for: lost, gone, late, or in another call |
//! | `process` | what must not be used, or taken down, by a forked child |
//! | [`symmetric`] | the same operations on typed slices, with checked bounds and without `unsafe`: start here |
//! | [`team`], [`collective`] | some PEs, and what they do together: broadcast, reduce, collect, all-to-all |
//! | [`gpu`], [`device`] | a GPU as the PE's device, or CPU threads in its place; [`kernels`] has what runs there |
//! | `meeting` | how barriers go, host by host |
//! | [`observe`] | looking at a job from outside: figures, a trace |
//! | `program_data` | the program's static variables as symmetric memory |
//! | `staged`, `guarded`, `direct` | the symmetric heap in memory that the CPU cannot touch, and NICs perhaps can |
//! | `wire` | host threads on the wire |
//! | `card` | what PEs tell each other before they are connected |

pub mod alloc;
pub mod atomics;
pub mod bootstrap;
mod card;
pub mod collective;
pub mod context;
pub mod device;
mod direct;
pub mod error;
pub mod gpu;
mod guarded;
mod joining;
mod meeting;
pub mod observe;
mod process;
mod program_data;
#[cfg(doctest)]
mod readme;
pub mod rma;
pub mod runtime;
mod staged;
pub mod symmetric;
pub mod sync;
pub mod team;
mod touched;
pub mod wait;
pub mod wait_many;
mod waiting;
mod wire;

pub use atomics::{AmoInteger, AmoValue};
pub use collective::{ActiveSet, ActiveSets, Reduction};
pub use context::{Context, Operations};
pub use error::{Error, Result};
pub use rma::{SignalOp, Strided};
pub use runtime::Runtime;
pub use symmetric::wait::Elements;
pub use symmetric::{SymSlice, SymView, Symmetric};
pub use symrail_kernels as kernels;
pub use symrail_transport::Pe;
pub use symrail_transport::amo::{AmoOp, AmoType};
pub use symrail_transport::env::Settings;
pub use team::{Group, Team};
pub use wait::{Cmp, WaitWord};
pub use wait_many::{Wanted, WordSet};
