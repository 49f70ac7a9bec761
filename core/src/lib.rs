//! What all other crates name: PEs, errors, and the codes of operations.
//!
//! # Invariants
//! - This crate knows no fabric, no heap and no device, and opens nothing.
//! - A code of an interface stands in one place, with its conversion and a test.
//!
//! | module | concept |
//! |---|---|
//! | [`pe`] | numbers of PEs |
//! | [`error`] | what can go wrong |
//! | [`amo`] | atomic operations, and how a CPU applies one |
//! | [`pci`] | addresses on a PCI bus |

pub mod amo;
pub mod error;
pub mod pci;
pub mod pe;

pub use error::{Error, Fault, Operation, Result};
pub use pci::PciAddress;
pub use pe::Pe;
