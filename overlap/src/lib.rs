//! Matrix products of tensor-parallel layers, whose shards move while others are multiplied.
//!
//! A linear layer is spread over the ranks of a team by the columns of its weight, or by the rows. The rows of its
//! input, or of its output, are spread as well ([`Shards`]). [`AllGatherMatmul`] gathers the rows and multiplies them.
//! [`MatmulReduce`] multiplies, and adds the products of all ranks. Both are plans. All ranks make a plan together for
//! a shape, and compare their arguments. The plan then runs without a collective.
//!
//! ```
//! use symrail::{Runtime, TeamHeap};
//! use symrail_overlap::{AllGatherMatmul, Layout, Schedule, Shards, Weight};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let rt = Runtime::init()?;
//! let (heap, team) = (TeamHeap::new(&rt, 1 << 20)?, rt.team_world()?);
//! let shards = Shards::split(4, rt.n_pes() as usize);
//! let mut plan = AllGatherMatmul::new(&heap, &team, &shards, 2, Schedule::choose(&shards, 2, 3))?;
//! let weight = [1.0, 2.0, 3.0, 10.0, 20.0, 30.0];
//! let own = vec![1.0; shards.of(rt.my_pe() as usize).len() * 2];
//! let mut output = vec![0.0; 4 * 3];
//! plan.run(&own, &Weight::new(&weight, Layout::ByInputs, 2, 3), &mut output)?;
//! assert_eq!(output[..3], [11.0, 22.0, 33.0]);
//! plan.free(&team)?;
//! heap.free()?;
//! # Ok(())
//! # }
//! ```
//!
//! | file | concept |
//! |---|---|
//! | [`shards`] | the rows of each rank, the pieces in which they move, and the schedules that pay |
//! | [`weight`] | the second factor, and products with it |
//! | [`all_gather`], [`reduce`] | the two kinds of plans |
//! | [`products`] | plans by shape, for callers that have arrays |
//! | `product` | the names of the products, and the ranks that get sums |
//! | `program` | the steps of a rank in a round, in lanes |
//! | `host` | a round on one thread of the host |
//! | `exchange` | words and rows between ranks |
//! | [`step`] | the steps of a plan, for observers |
//! | [`cuda`] | the same products on GPUs |
//! | [`error`] | the errors |
//!
//! # Invariants
//! - All ranks compare their arguments before anything is sent.
//! - Words hold numbers of rounds, which only grow. No rank clears a word, and no barrier separates rounds.
//! - Results have the same bits for each [`Schedule`], whichever rank or step is late.
//! - Every wait ends: with the event that it waits for, or with an error that names the dead PE.

pub mod all_gather;
pub mod cuda;
pub mod error;
mod exchange;
mod host;
mod product;
pub mod products;
mod program;
pub mod reduce;
pub mod shards;
pub mod step;
pub mod weight;

pub use all_gather::AllGatherMatmul;
pub use error::{Error, Result};
pub use product::Reduced;
pub use products::{Gathered, Products};
pub use reduce::MatmulReduce;
pub use shards::{Schedule, Shards};
pub use step::Step;
pub use weight::{Layout, Weight};
