//! The wire.
pub mod amo;
pub mod backend;
mod bounce;
pub mod endpoint;
pub mod env;
pub mod error;
pub mod mock;
pub mod ofi;
pub mod pe;
pub mod rail;
pub mod region;
pub mod segment;
mod slab;
pub mod topology;
pub mod verbs;
pub mod wire;

pub use error::{Error, Fault, Operation, Result};
pub use pe::Pe;
