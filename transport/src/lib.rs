//! The wire: rails, endpoints over several of them, and what all above has to know of NICs.
//!
//! # Invariants
//! - A rail, and so an endpoint, is driven by one thread at a time.
//! - What completes is delivered: visible in the target's memory.
//! - What a peer sends is checked before memory is touched, in release builds.
//! - Nothing here knows of heaps, teams or kernels: memory is segments, which somebody else has laid out.
//!
//! # Where to start
//! [`rail`] is the contract of backends, [`endpoint`] the way of an operation.
//!
//! | module | concept |
//! |---|---|
//! | [`rail`] | one NIC, opened: single work requests, and what became of them |
//! | [`device`] | memory of devices, as rails get to know it |
//! | [`ofi`], [`verbs`] | rails by libfabric and by ibverbs |
//! | `mock` | rails with fault injection, for tests: a feature |
//! | [`backend`] | which of them are opened for a PE |
//! | [`share`] | how many proxy threads a PE has, and which rails are whose |
//! | [`topology`] | which NICs are near which cores and GPUs |
//! | [`endpoint`] | operations over several rails: order, stripes, completion, failover |
//! | [`segment`] | cutting an operation into work requests |
//! | [`region`] | where symmetric memory lies, and everybody's keys to it |
//! | [`grown`] | keys that follow from others |
//! | [`sparse`] | tables by PE of which most entries are never needed |
//! | [`wire`] | messages between endpoints and target agents |
//! | [`env`](mod@env) | the environment, in one typed table |
//!
//! PEs, errors and atomic operations are `symrail-core`'s, and named here as they are there.

pub mod backend;
mod bounce;
pub mod device;
pub mod endpoint;
pub mod env;
pub mod grown;
#[cfg(any(test, feature = "mock"))]
pub mod mock;
pub mod ofi;
pub mod rail;
pub mod region;
pub mod segment;
pub mod share;
pub mod sparse;
mod token;
pub mod topology;
pub mod verbs;
pub mod wire;

pub use symrail_core::{Error, Fault, Operation, Pe, Result, amo, error, pe};
