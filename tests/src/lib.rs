//! Tests across crates and processes: whole jobs, started by `symrail run`, over real providers.
//!
//! A test (in `tests/`) describes a [`Job`](job::Job): a program, the number of PEs, of simulated hosts and of rails,
//! and settings. The programs are in `src/bin/pe`, named for what their PEs do: `pe PROGRAM`. Jobs run one at a time, whichever
//! processes the tests run in, and each ends within its limit.
//!
//! | module | concept |
//! |---|---|
//! | [`job`] | starting a job and reading its outcome |
//! | [`path`] | the paths from PE to PE: mapped, providers, rails, policies |
//! | [`pe`] | common parts of all test programs |
//! | [`rail_peer`] | a peer on a rail that belongs to no job |
//! | [`unlaunched`] | jobs without a launcher |
//! | [`pattern`] | bytes and values that identify their source |
//! | [`used`] | memory, descriptors and threads of a process |
//! | [`device`] | the CPU device of a PE |
//! | [`collectives`] | inputs of device collectives, and their expected results |
//! | [`pencils`] | arrays in pencils, filled and checked element by element |
//! | [`ops`] | every operation, verified at the other end |
//!
//! `cargo test -p symrail-tests` is enough; it builds the launcher if that does not exist yet. After changes to the
//! launcher, build it: `cargo build -p symrail-perftest`.
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
