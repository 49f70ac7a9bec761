//! `libsymrail_decomp_c.so`: pencil transposes and halos with the names of cuDecomp, on host memory and on GPUs.
//!
//! | file | concept |
//! |---|---|
//! | `guard` | the conversion of errors and panics to results |
//! | `types` | the structures and numbers of `include/cudecomp.h` |
//! | `handle` | joining and leaving |
//! | `grid` | grid descriptors: their creation, their properties, and workspaces |
//! | `operations` | transposes and halos |

mod grid;
mod guard;
mod handle;
mod operations;
mod types;
