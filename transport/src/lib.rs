//! The wire.
pub mod amo;
pub mod env;
pub mod error;
pub mod ofi;
pub mod pe;
pub mod rail;
pub mod topology;

pub use error::{Error, Fault, Operation, Result};
pub use pe::Pe;
