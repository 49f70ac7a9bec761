//! Which rails are near which cores and GPUs.

pub mod mapping;

pub use mapping::NicPeMapping;
