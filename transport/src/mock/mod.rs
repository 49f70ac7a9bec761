//! A fabric with fault injection, for tests of everything above a rail.
//!
//! All rails of a [`Fabric`] live in one process and are driven by whoever polls them. What happens when is decided by
//! a seeded generator, so a run that fails is run again by its seed. It delays, reorders (within a connection only as
//! far as the [`Order`] that it promises allows), refuses posts with [`PostError::Again`], repeats completions, and
//! fails work requests, each with a probability of its own. Rails fail when a test says so ([`Fabric::take_down`]),
//! with what is under way on them: some of it has arrived, and some of what has arrived was not acknowledged.
//!
//! `timed` fabrics (feature `simulation`) inject no faults; everything takes its time there.
//!
//! It produces what real fabrics seldom do; it is no proof that a real one works.

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
