//! The way from a device to the wire and back.
//!
//! | module | concept |
//! |---|---|
//! | [`channel`] | the ring through which a GPU kernel or CPU thread asks for operations, and the words that answer it |
//! | [`engine`] | one round: requests from channels, the rails, answers to peers, completions to whoever waits |
//! | [`agent`] | applies what peers ask for to this PE's memory |
//! | [`session`] | all of it for runtimes with a symmetric heap of their own: memory by handles, operations by contexts |
//! | [`stage`] | operations on memory that neither rails nor the CPU reach, through a window of host memory |
//! | [`driver`] | the engine among those who drive it |
//! | [`thread`] | the proxy thread; how it sleeps, and how a waiting host thread drives the engine instead |
//! | `poll_backoff`, `scheduling` | how long it polls; what it asks of the scheduler |
//!
//! # Invariants
//! - The engine is driven by one thread at a time: whoever holds its mutex.
//! - It is always driven by somebody: the proxy thread, unless a host thread that waits does so. That is why a PE that
//!   computes without calling us still serves its peers.
//! - What comes from a channel or from a peer is checked against segments before memory is touched, in release builds.

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
