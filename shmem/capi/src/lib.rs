//! `libsymrail.so`: OpenSHMEM 1.5 for C and C++ programs, over the runtime of the `symrail` crate.
//!
//! The functions only convert C's arguments to the runtime's, and its errors to OpenSHMEM's behaviour: a message that
//! names the PE, the function and the cause, and the end of the job. A Rust library must not end the process; here the
//! interface promises it.
//!
//! | file | concept |
//! |---|---|
//! | `types` | the table of types that functions and header are made from |
//! | `export` | how a row of the table becomes exported functions |
//! | `job` | the one job of the process: joining, leaving, which calls are legal when |
//! | `environment` | the variables that OpenSHMEM names: `SHMEM_SYMMETRIC_SIZE`, `SHMEM_INFO`, … |
//! | `fail` | errors end the job |
//! | `streams` | flushes the program's output before the job ends |
//! | `handle` | contexts and teams as C's handles |
//! | `api::*` | the routines, a chapter of the specification each |
//!
//! `examples/emit_header.rs` makes `include/shmem.h` from the same table; tests compare it with the committed header
//! and with the library's exports.

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
