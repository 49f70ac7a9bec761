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
//! | [`compare`], [`signal`] | comparisons and updates of signal words, with every interface's numbers |
//! | [`segment`] | which bytes of this process stand behind which offsets |
//! | [`wait`] | what threads do while they wait |
//! | [`clock`] | what time it is, for all that waits |
//! | `simulation` | who simulates many PEs in one thread gives them time and memory (feature `simulation`) |
//! | [`fp8`] | floating-point numbers of eight bits |
//! | [`guard`] | the border of C interfaces |
//! | [`pci`] | addresses on a PCI bus |
//! | [`escaped`] | text from outside, in messages |
//! | [`encoding`] | what PEs send one another while they join, as bytes |
//! | [`agreement`] | what must be the same on all PEs |

pub mod agreement;
pub mod amo;
pub mod clock;
pub mod compare;
pub mod encoding;
pub mod error;
pub mod escaped;
pub mod fp8;
pub mod guard;
pub mod pci;
pub mod pe;
pub mod segment;
pub mod signal;
#[cfg(feature = "simulation")]
pub mod simulation;
pub mod wait;

pub use amo::{AmoOp, AmoType};
pub use compare::Cmp;
pub use error::{Error, ErrorKind, Fault, Operation, Result};
pub use escaped::Escaped;
pub use pci::PciAddress;
pub use pe::Pe;
pub use segment::Segment;
pub use signal::SignalOp;
/// Every value of an enum of codes, as `VARIANTS`.
pub use strum::VariantArray;
pub use wait::{Backoff, lock};
