//! The path from a device to the fabric and back.
//!
//! | module | concept |
//! |---|---|
//! | [`channel`] | the ring for requests of a GPU kernel or CPU thread, and the words for their answers |
//! | [`engine`] | one round: requests from channels, the rails, answers to peers, completions for waiting threads |
//! | [`agent`] | applies peers' requests to this PE's memory |
//! | [`session`] | the transport for runtimes with their own symmetric heap: memory by handles, operations by contexts |
//! | [`stage`] | operations on memory that neither rails nor the CPU can access, through a window of host memory |
//! | [`driver`] | the engine, and the threads that drive it in turns |
//! | [`thread`] | the proxy thread: how it sleeps, and how a waiting host thread drives the engine instead |
//! | `poll_backoff`, `scheduling` | the duration of polling; the thread's scheduling attributes |
//!
//! # Invariants
//! - One thread at a time drives the engine: the one that holds its mutex.
//! - Some thread always drives it: the proxy thread, unless a waiting host thread does so. So a PE that computes
//!   without calling this library still serves its peers.
//! - Data from a channel or a peer is checked against segments before memory is accessed, in release builds, too.

pub mod agent;
pub mod channel;
pub mod driver;
pub mod engine;
mod poll_backoff;
mod scheduling;
pub mod session;
pub mod stage;
pub mod thread;

pub use driver::{Driver, IdleWork, Turn, Watch};
pub use engine::{Engine, HOST};
pub use thread::{Options, Proxy};
