//! Tests across crates and processes: whole jobs, started by `symrail run`, over real providers.
//!
//! A test (in `tests/`) describes a [`Job`](job::Job): a program, how many PEs, on how many pretended hosts, with how
//! many rails, under which settings. The programs are in `src/bin`, named `pe_*` for what their PEs do. Jobs run one at
//! a time, whichever processes the tests run in, and each ends within its limit.
//!
//! | module | concept |
//! |---|---|
//! | [`job`] | starting a job and looking at what became of it |
//! | [`path`] | the paths from PE to PE: mapped, providers, rails, policies |
//! | [`pe`] | what all test programs have in common |
//! | [`rail_peer`] | a peer on a rail that belongs to no job |
//! | [`unlaunched`] | jobs without a launcher |
//! | [`pattern`] | bytes and values that tell where they come from |
//! | [`used`] | memory, descriptors and threads of a process |
//! | [`device`] | the CPU device of a PE |
//! | [`collectives`] | what device collectives work on, and what they are to give |
//! | [`pencils`] | arrays in pencils, filled and checked element by element |
//! | [`ops`] | every operation, verified at the other end |
//!
//! `cargo test -p symrail-tests` is enough; the launcher is built when it is not there yet. After changes to it, build
//! it: `cargo build -p symrail-perftest`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod collectives;
pub mod device;
pub mod job;
pub mod ops;
pub mod path;
pub mod pattern;
pub mod pe;
pub mod pencils;
pub mod rail_peer;
pub mod unlaunched;
pub mod used;
