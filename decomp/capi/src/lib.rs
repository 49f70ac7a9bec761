//! `libsymrail_decomp_c.so`: pencil transposes and halos by the names of cuDecomp, on host memory.
//!
//! | file | concept |
//! |---|---|
//! | `guard` | where errors become results, and panics end |
//! | `types` | the structures and numbers of `include/cudecomp.h` |
//! | `handle` | joining and leaving |
//! | `grid` | grid descriptors: making them, what they tell, workspaces |
//! | `operations` | transposes and halos |

mod grid;
mod guard;
mod handle;
mod operations;
mod types;
