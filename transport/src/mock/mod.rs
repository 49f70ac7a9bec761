//! A fabric that misbehaves on purpose, for tests of everything above a rail.
//!
//! All rails of a [`Fabric`] live in one process and are driven by whoever polls them. What happens when is decided by
//! a seeded generator, so a run that fails is run again by its seed. It delays, reorders (within a connection only as
//! far as the [`Order`] that it promises allows), refuses posts with [`PostError::Again`], repeats completions, and
//! fails work requests, each with a probability of its own. Rails fail when a test says so ([`Fabric::take_down`]),
//! with what is under way on them: some of it has arrived, and some of what has arrived was not acknowledged.
//!
//! On `timed` fabrics (feature `simulation`) nothing misbehaves, and everything takes its time.
//!
//! It stands for a fabric where one is hard to get to misbehave; it is no proof that a real one works.

mod connections;
mod fabric;
mod mischief;
mod rail;
#[cfg(feature = "simulation")]
pub mod timed;

pub use fabric::Fabric;
pub use mischief::Mischief;
pub use rail::MockRail;

#[cfg(doc)]
use crate::rail::{Order, PostError};
