//! The transport: rails, endpoints over several of them, and what higher crates need to know of NICs.
//!
//! # Invariants
//! - One thread at a time drives a rail, and so an endpoint.
//! - A completed operation is delivered: it is visible in the target's memory.
//! - Data from a peer is checked before memory is accessed, in release builds, too.
//! - This crate knows no heaps, teams or kernels: its memory is segments, which a higher crate has laid out.
//!
//! # Where to start
//! [`rail`] is the contract of backends, and [`endpoint`] the path of an operation.
//!
//! | module | concept |
//! |---|---|
//! | [`rail`] | one NIC, opened: single work requests and their completions |
//! | [`device`] | memory of devices that is registered with rails |
//! | [`ofi`], [`verbs`] | rails by libfabric and by ibverbs |
//! | `mock` | rails with fault injection, for tests: a feature |
//! | [`backend`] | the choice of rails for a PE |
//! | [`proxy_threads`] | the number of proxy threads of a PE, and the rails of each |
//! | [`topology`] | the distance of NICs to cores and GPUs |
//! | [`endpoint`] | operations over several rails: order, stripes, completion, failover |
//! | [`segment`] | cutting an operation into work requests |
//! | [`ranges`] | values by ranges of addresses, which may overlap |
//! | [`region`] | symmetric memory, and all PEs' keys to it |
//! | [`frames`] | authenticated frames over a stream of bytes |
//! | [`grown`] | keys that are derived from others |
//! | [`sparse`] | tables by PE of which most entries are never used |
//! | [`wire`] | messages between endpoints and target agents |
//! | [`env`](mod@env) | the environment, in one typed table |
//!
//! PEs, errors and atomic operations are those of `symrail-core`, re-exported here.

pub mod backend;
mod bounce;
mod descriptors;
pub mod device;
pub mod endpoint;
pub mod env;
pub mod frames;
pub mod grown;
#[cfg(any(test, feature = "mock"))]
pub mod mock;
pub mod ofi;
pub mod pairing;
pub mod proxy_threads;
pub mod rail;
pub mod ranges;
pub mod region;
pub mod segment;
pub mod sparse;
pub mod token;
pub mod topology;
pub mod verbs;
pub mod wire;

pub use symrail_core::{Error, Fault, Operation, Pe, Result, amo, error, pe};
