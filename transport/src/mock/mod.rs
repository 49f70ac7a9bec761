//! A fabric with fault injection, for tests of everything above a rail.
//!
//! All rails of a [`Fabric`] live in one process, and every poll drives all of them. A seeded generator makes all
//! decisions, so its seed repeats a failed run. The fabric delays, reorders (within a connection only as far as the
//! guaranteed [`Order`] allows), refuses posts with [`PostError::Again`], repeats completions, and fails work requests,
//! each with its own probability. A rail fails when a test demands it ([`Fabric::take_down`]). Then part of the work
//! under way on it has arrived, and part of that was not acknowledged.
//!
//! `timed` fabrics (feature `simulation`) inject no faults; they model the time of each step.
//!
//! The fabric produces events that are rare on real fabrics. It proves nothing about a real one.

mod config;
mod connections;
mod fabric;
mod rail;
#[cfg(feature = "simulation")]
pub mod timed;

pub use config::FabricConfig;
pub use fabric::Fabric;
pub use rail::MockRail;

#[cfg(doc)]
use crate::rail::{Order, PostError};
