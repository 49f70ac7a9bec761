//! Processing elements.

/// The number of a processing element: `0..n_pes`.
pub type Pe = u32;
