//! The `symrail` binary.

use std::process::ExitCode;

/// Counts what simulated PEs hold.
#[cfg(feature = "scale")]
#[global_allocator]
static ALLOCATOR: symrail_perftest::Counting = symrail_perftest::Counting;

fn main() -> ExitCode {
    // Where /proc is missing, by the name that it was called by.
    let called = || std::env::args_os().next().unwrap_or_default();
    let program = std::env::current_exe().map_or_else(|_| called(), Into::into);
    ExitCode::from(symrail_perftest::main(&[program], std::env::args_os().collect()))
}
