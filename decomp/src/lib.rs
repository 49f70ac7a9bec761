//! Three-dimensional arrays spread over PEs in pencils: transposes and halos, for FFTs and stencils.
//!
//! A [`Decomposition`] spreads a [`Grid`] over a team. All PEs of the team make its plans together, once. A plan runs
//! any number of times, on host memory or on [GPUs](cuda). A PE reaches peers of the same host by loads and stores, and
//! others over rails.
//!
//! ```
//! use symrail::{Runtime, TeamHeap};
//! use symrail_decomp::{Axis, Decomposition, Form, Grid, Transpose};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let rt = Runtime::init()?;
//! let heap = TeamHeap::new(&rt, 1 << 20)?;
//! let grid = Grid::new([8, 6, 4], [1, rt.n_pes() as usize]).axis_contiguous();
//! let array = Decomposition::new(&heap, rt.team_world()?, grid)?;
//! let (x, y) = (array.pencil(Axis::X, Form::default()), array.pencil(Axis::Y, Form::default()));
//! let (mut along_x, mut along_y) = (vec![1.5; x.len()], vec![0.0; y.len()]);
//! let mut plan = array.transpose(&Transpose::new((Axis::X, Axis::Y), size_of::<f64>()))?;
//! let mut work = array.workspace(plan.workspace_bytes())?;
//! plan.run(&mut along_x, &mut along_y, &mut work)?;
//! assert_eq!(along_y, vec![1.5; y.len()]);
//! # Ok(())
//! # }
//! ```
//!
//! | file | concept |
//! |---|---|
//! | [`grid`], [`pencil`] | the elements of each PE, and their arrangement in memory |
//! | `view`, `copy` | parts of arrays; copies between two arrangements |
//! | `flow` | the blocks between PEs in one operation, to which [`transpose`], [`halo`] and [`all_to_all`] reduce |
//! | `blocks` | the blocks of a plan, and the buffers that it accepts |
//! | `mode`, `counters` | the choices of a plan that change its speed; the ways that its blocks took |
//! | [`plan`], `flight` | the exchange of these blocks; one round of it |
//! | [`cuda`] | the same on GPUs, in stream order |
//! | `exchange` | the words by which PEs signal where blocks may go, and that they have arrived |
//! | `small` | buffers for small blocks over rails |
//! | [`any_plan`] | a plan on either |
//! | [`operation`] | transposes and halos of callers without plans |
//! | [`staging`] | the rule: straight from and to the user's buffers, or through the workspace |
//! | [`workspace`] | symmetric memory of a team |
//! | [`decomposition`] | a grid on a team |
//! | [`mod@tune`], `measure` | the choice of a process grid and a mode by measurements; the time of one |
//! | [`crossover`] | the size of blocks above which copy engines are faster, measured |
//! | [`buffer`], [`error`] | the user's arrays; the errors |

pub mod all_to_all;
pub mod any_plan;
mod blocks;
pub mod buffer;
mod copy;
mod counters;
pub mod crossover;
pub mod cuda;
pub mod decomposition;
pub mod error;
mod exchange;
mod flight;
mod flow;
pub mod grid;
pub mod halo;
mod measure;
mod mode;
pub mod operation;
mod parts;
pub mod pencil;
pub mod plan;
mod small;
pub mod staging;
pub mod transpose;
pub mod tune;
mod view;
pub mod workspace;

#[cfg(test)]
mod geometry_tests;

pub use all_to_all::{AllToAll, GpuAllToAll, Span};
pub use any_plan::AnyPlan;
pub use buffer::{Buffer, Element};
pub use counters::Counters;
pub use crossover::{BlockTime, Crossover};
pub use decomposition::Decomposition;
pub use error::{Error, Refusal, Result};
pub use flight::Flight;
pub use grid::{Axis, Grid, RankOrder};
pub use halo::Halo;
pub use mode::Mode;
pub use operation::Operation;
pub use pencil::{Form, Pencil};
pub use plan::{PeerRoutes, Plan};
pub use transpose::Transpose;
pub use tune::{Candidate, Measured, Outcome, Round, Tuned, Tuning, tune, tune_among, tune_on};
pub use workspace::{Sharing, Workspace};
