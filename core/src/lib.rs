//! Common definitions of all crates: PEs, errors, and the codes of operations.
//!
//! # Invariants
//! - This crate knows no fabric, no heap and no device, and opens nothing.
//! - Each code of an interface is defined in one place, with its conversion and a test.
//!
//! | module | concept |
//! |---|---|
//! | [`pe`] | numbers of PEs |
//! | [`error`] | errors |
//! | [`amo`] | atomic operations, and their execution by a CPU |
//! | [`data_type`] | types of elements |
//! | [`compare`], [`signal`] | comparisons and updates of signal words, with every interface's numbers |
//! | [`segment`] | the memory of this process at symmetric offsets |
//! | [`wait`] | back-off for waiting threads |
//! | [`clock`] | the clock for all waiting code |
//! | `simulation` | time and memory for a simulation of many PEs in one thread (feature `simulation`) |
//! | [`fp8`] | floating-point numbers of eight bits |
//! | [`guard`] | the boundary of C interfaces |
//! | [`c_pointer`] | pointers among the arguments of C functions |
//! | [`layout`] | layouts that host and kernels share, and their headers for CUDA |
//! | [`order`] | the smaller and the greater of two elements of a reduction |
//! | [`pci`] | addresses on a PCI bus |
//! | [`escaped`] | untrusted text in messages |
//! | [`encoding`] | the encoding of data that PEs exchange while they join |
//! | [`agreement`] | values that must be equal on all PEs |
//! | [`registry`] | handles of C interfaces |

pub mod agreement;
pub mod amo;
pub mod c_pointer;
pub mod clock;
pub mod compare;
pub mod data_type;
pub mod encoding;
pub mod error;
pub mod escaped;
pub mod fp8;
pub mod guard;
pub mod layout;
pub mod order;
pub mod pci;
pub mod pe;
pub mod registry;
pub mod segment;
pub mod signal;
#[cfg(feature = "simulation")]
pub mod simulation;
pub mod wait;

pub use amo::{AmoOp, AmoType};
pub use c_pointer::{CCount, CList, CPointer, CText};
pub use compare::Cmp;
pub use data_type::DataType;
pub use error::{Error, ErrorKind, Fault, Operation, Result};
pub use escaped::Escaped;
pub use pci::PciAddress;
pub use pe::Pe;
pub use segment::Segment;
pub use signal::{SignalOp, SignalUpdate};
/// Every value of an enum of codes, as `VARIANTS`.
pub use strum::VariantArray;
pub use wait::{Backoff, lock};
