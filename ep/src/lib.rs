//! Expert parallelism: tokens go to the PEs that own their experts (dispatch) and return as sums (combine).
//!
//! Each PE of the job is one rank, and all ranks own equally many experts. All ranks make each call together. Some PEs of
//! a job form groups by jobs of their own beside it ([`Team::unique_id`](symrail::Team::unique_id)). There are two ways. Different threads may use both at the same time:
//!
//! - [`HighThroughput`], for prefill and training: any number of tokens through buffers of any size. The caller learns
//!   how many have arrived. A token crosses once for each rank that owns some of its experts.
//! - [`LowLatency`], for decode: a limited number of tokens, in one block for each rank. Sending and receiving are
//!   separate calls. Dead ranks are masked, and the others go on.
//!
//! | module | concept |
//! |---|---|
//! | [`plan`] | pure functions: which ranks get which tokens, the layout of rows in transfer, the sizes of buffers |
//! | `element`, [`fp8`], [`logfmt`] | the types of rows that are added, cast or encoded |
//! | [`exchange`] | numbered blocks from every rank to every other one, the base of both ways |
//! | [`high_throughput`], [`low_latency`] | the two ways |
//! | `admission` | ranks that take part again in low-latency calls |
//! | [`cuda`] | both ways by kernels |
//! | [`statistics`] | a call's rows, bytes by path, and times |
//!
//! # Invariants
//! - Input is checked before anything is sent: a call that is refused for its arguments has no effect.
//! - Blocks are numbered, and no memory is cleared between calls.
//! - Sums are formed in FP32 in the order of ranks (or of top-k slots), so that every run gives the same bits.
//! - Every wait ends: either the data arrives, or an error names the ranks that did not.

mod admission;
pub mod cuda;
mod element;
pub mod error;
pub mod exchange;
pub mod fp8;
pub mod high_throughput;
pub mod logfmt;
pub mod low_latency;
pub mod plan;
pub mod statistics;

pub use error::{Error, Result};
pub use exchange::WaitLimit;
pub use high_throughput::HighThroughput;
pub use low_latency::LowLatency;
pub use plan::layout::{Layout, TopK};
pub use plan::rows::Rows;
pub use statistics::Statistics;
pub use symrail_core::DataType;
