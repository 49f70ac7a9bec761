//! `libsymrail.so`: OpenSHMEM 1.5 for C and C++ programs, over the runtime of the `symrail` crate.
//!
//! The functions do nothing but turn C's arguments into the runtime's, and its errors into OpenSHMEM's way: a message
//! that names the PE, the function and the cause, and the end of the job. A library that Rust programs use must not do
//! that; here it is what the interface promises.
//!
//! | file | concept |
//! |---|---|
//! | `types` | the table of types that functions and header are made from |
//! | `export` | how a row of the table becomes exported functions |
//! | `job` | the one job of the process: joining, leaving, who may call when |
//! | `environment` | the variables that OpenSHMEM names: `SHMEM_SYMMETRIC_SIZE`, `SHMEM_INFO`, … |
//! | `fail` | errors end the job |
//! | `streams` | what the program has printed comes out before that |
//! | `handle` | contexts and teams as C sees them |
//! | `api::*` | the routines, a chapter of the specification each |
//!
//! `include/shmem.h` is made by `examples/emit_header.rs` from the same table; tests compare it with the committed one
//! and with what the library exports.

#[macro_use]
mod types;
#[macro_use]
mod export;

mod api;
mod environment;
mod fail;
mod handle;
mod job;
mod streams;
