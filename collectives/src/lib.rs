//! Collectives that devices carry out on the symmetric heap, over memory channels and port channels.
//!
//! [`Communicator`] has them; start there. What its PEs' blocks do is an execution plan ([`plan`]): one of this crate's
//! ([`build`]), or one of a user's, in MSCCL++'s JSON. A plan is proved before it is run
//! ([`Plan::new`](plan::Plan::new)), and [`run`] runs it on threads of the CPU device, over whatever way leads to the
//! other PEs.
//!
//! ```
//! use symrail::Runtime;
//! use symrail_collectives::{Buffer, Communicator, DataType, ReduceOp};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let rt = Runtime::init()?; // alone, unless something like `symrail run` has started several of us
//! let data = rt.alloc_slice::<f32>(1000)?;
//! data.fill(1.0);
//! let mut all = Communicator::new(&rt)?;
//! let buffer = Buffer::of(&data)?;
//! all.all_reduce(buffer, buffer, DataType::F32, ReduceOp::Sum)?;
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
//! | `selection` | which plan for which call |
//! | `members` | the PEs of a communicator |
//! | [`tuning`] | measured choices |
//! | `defaults` | plans of a folder that everybody takes first |
//! | `transfer` | sends and receives, and their order |
//! | [`plan`] | plans: the file, the proof, choosing |
//! | [`build`] | plans of our own |
//! | [`run`] | running plans |
//! | [`number`] | types of elements, and reducing them |
//! | [`error`] | what can go wrong |

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
pub use number::{Accumulate, DataType, ReduceOp};
pub use run::{Buffer, Call, Prepared};
pub use transfer::Transfer;
