//! Expert parallelism: tokens go to the PEs that own their experts (dispatch) and come back as sums (combine).
//!
//! Each PE of the job is one rank, and owns as many experts as every other one. Calls are made by all ranks together.
//! There are two ways, which may be in use at the same time, by different threads:
//!
//! - [`HighThroughput`], for prefill and training: any number of tokens through buffers of any size; who calls learns
//!   how many have arrived. A token crosses once for each rank that owns some of its experts.
//! - [`LowLatency`], for decode: at most so many tokens, sent in one block for each rank; sending and receiving are
//!   separate calls; ranks that are gone are masked, and the others go on.
//!
//! | module | concept |
//! |---|---|
//! | [`plan`] | pure functions: who gets which tokens, what a row looks like on its way, how large buffers are |
//! | [`element`], [`fp8`] | the types of rows that are added or cast |
//! | [`exchange`] | numbered blocks from every rank to every other one, on which both ways are built |
//! | [`high_throughput`], [`low_latency`] | the two ways |
//! | [`cuda`] | both ways by kernels |
//! | [`statistics`] | what a call did: rows, bytes by path, times |
//!
//! # Invariants
//! - Input is checked before anything is sent: a call that is refused for its arguments has not been made.
//! - Blocks are numbered, and nothing is cleared between calls.
//! - Sums are formed in FP32 in the order of ranks (or of top-k slots), so that results have the same bits each time.
//! - Every wait ends: with what arrived, or with an error that names the ranks that did not.

pub mod cuda;
pub mod element;
pub mod error;
pub mod exchange;
pub mod fp8;
pub mod high_throughput;
pub mod low_latency;
pub mod plan;
pub mod statistics;

pub use element::Element;
pub use error::{Error, Result};
pub use exchange::WaitLimit;
pub use high_throughput::HighThroughput;
pub use low_latency::LowLatency;
pub use plan::layout::{Layout, TopK};
pub use plan::rows::Rows;
pub use statistics::Statistics;
