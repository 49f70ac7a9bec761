//! `libcudecomp.so`: pencil transposes and halos by the interface of cuDecomp 0.7, on host memory and on GPUs.
//!
//! | file | concept |
//! |---|---|
//! | `guard` | the conversion of errors and panics to results |
//! | `layouts` | the structures of `include/cudecomp.h` and their versions |
//! | `backends` | the back ends: their names, and the modes that they stand for |
//! | `mpi` | communicators of the process's MPI library |
//! | `job` | the runtime, and what borrows it |
//! | `handle` | handles: joining, leaving, calls of all ranks |
//! | `joining` | the functions that make and end handles |
//! | `candidates` | the back ends and process grids among which measurements choose |
//! | `tuning` | these measurements |
//! | `config` | the check of a configuration |
//! | `grid` | grid descriptors: their creation and their end |
//! | `geometry` | their properties: pencils, neighbours, sizes of workspaces |
//! | `workspaces` | memory for workspaces |
//! | `operations` | transposes and halos |

mod backends;
mod candidates;
mod config;
mod counters;
mod geometry;
mod grid;
mod guard;
mod handle;
mod job;
mod joining;
mod layouts;
mod mpi;
mod operations;
mod tuning;
mod workspaces;
