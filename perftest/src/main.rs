//! The `symrail` binary.

use std::process::ExitCode;

/// Counts the bytes that simulated PEs hold.
#[cfg(feature = "scale")]
#[global_allocator]
static ALLOCATOR: symrail_perftest::Counting = symrail_perftest::Counting;

fn main() -> ExitCode {
    // Without /proc, the name that the program was called by.
    let called = || std::env::args_os().next().unwrap_or_default();
    let program = std::env::current_exe().map_or_else(|_| called(), Into::into);
    ExitCode::from(symrail_perftest::main(&[program], std::env::args_os().collect()))
}
