//! To come.
pub mod bootstrap;
