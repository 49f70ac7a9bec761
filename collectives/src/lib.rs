//! Device collectives on the symmetric heap, over memory channels and port channels.
//!
//! [`Communicator`] has them; start there. An execution plan ([`plan`]) has the steps of each block: a built-in plan
//! ([`build`]), or a user's, in MSCCL++'s JSON. A plan is proved before it runs ([`Plan::new`](plan::Plan::new)), and
//! [`run`] runs it on threads of the CPU device, with loads and stores or over rails.
//!
//! ```
//! use symrail::Runtime;
//! use symrail_collectives::{Buffer, Communicator, DataType, ReduceOp};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let rt = Runtime::init()?; // alone, unless something like `symrail run` has started several of us
//! let data = rt.alloc_slice::<f32>(1000)?;
//! data.fill(1.0)?;
//! let mut all = Communicator::new(&rt)?;
//! let buffer = Buffer::of(&data)?;
//! all.all_reduce(buffer, buffer, DataType::Float32, ReduceOp::Sum)?;
//! assert_eq!(data.read(999)?, rt.n_pes() as f32);
//! all.free()?;
//! data.free()?;
//! rt.finalize()?;
//! # Ok(())
//! # }
//! ```
//!
//! | module | concept |
//! |---|---|
//! | [`communicator`] | collectives of the CPU device |
//! | [`gpu`] | collectives of GPUs, on streams |
//! | [`Selection`] | the choice of a plan for a call |
//! | `buffers` | the buffers of a call |
//! | `members` | the PEs of a communicator |
//! | [`tuning`] | measured choices |
//! | `defaults` | default plans of a folder, which come first |
//! | `transfer` | sends and receives, and their order |
//! | [`plan`] | plans: the file, the proof, the choice |
//! | [`build`] | built-in plans |
//! | [`run`] | running plans |
//! | [`number`] | types of elements, and their reduction |
//! | [`error`] | errors |

mod buffers;
pub mod build;
pub mod communicator;
mod defaults;
pub mod error;
pub mod gpu;
mod members;
pub mod number;
pub mod plan;
pub mod run;
mod selection;
mod transfer;
pub mod tuning;

pub use communicator::{Communicator, Factor, Reduction};
pub use error::{Error, Result};
pub use number::{Accumulate, DataType, ReduceOp, TYPES_ON_GPUS};
pub use run::{Buffer, Call, Prepared};
pub use selection::Selection;
pub use transfer::Transfer;

/// The page's examples, compiled and run with the other documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../../docs/collectives.md")]
struct Page;
