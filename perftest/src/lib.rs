//! The program `symrail`: starts PEs (`run`), measures (`perf`, `tune`), describes this machine (`info`) and shows the
//! activity of its PEs (`top`). It is a library, so that the Python package contains it too.
//!
//! - `run`: the launcher. `symrail perf` uses its `run::launch` to start its own PEs.
//! - `perf`: the measurements.
//! - `tune`: the best algorithms of collectives, as tables.
//! - `info`: hardware and libraries found, the rails chosen, and the reasons.
//! - `top`: the activity of the PEs on this host.
//! - `doctor`: what this machine lacks for the fastest paths, with the commands that mend it.
//! - `cc`: compilers that find OpenSHMEM's headers and library.
//! - `manual`: the test that keeps the manual pages like the options.
//! - `print`: standard output that may be closed or full.

mod cc;
mod doctor;
mod info;
#[cfg(test)]
mod manual;
mod perf;
mod print;
mod run;
mod top;
mod tune;

use std::ffi::OsString;

use clap::{Parser, Subcommand};
pub use info::libraries;
#[cfg(feature = "scale")]
pub use symrail_scale::memory::Counting;
use symrail_transport::env::log;

#[derive(Debug, Parser)]
#[command(name = "symrail", version, about = "Starts PEs, measures and watches them, and says what this machine has")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start N PEs of a program, on this machine or on others
    Run(run::Args),
    /// Start PEs for `symrail run` on another host
    #[command(hide = true)]
    Agent,
    /// Measure put, get, atomics, signals and barriers
    Perf(perf::Args),
    /// Measure collectives' algorithms, and write which are best
    Tune(tune::Args),
    /// Say what was found, what was chosen, and why
    Info(info::Args),
    /// Check this machine for what slows or stops PEs, and print the commands that mend it
    Doctor(doctor::Args),
    /// Show what the PEs on this host are doing
    Top(top::Args),
    /// Compile C with OpenSHMEM's headers and library
    Cc(cc::Args),
    /// Compile C++ with OpenSHMEM's headers and library
    #[command(name = "c++")]
    Cxx(cc::Args),
}

/// Performs a command line (the name that the program was called by and its arguments) and returns the exit code.
/// `program` is the command that starts this program again, without arguments.
#[must_use]
pub fn main(program: &[OsString], words: Vec<OsString>) -> u8 {
    // Standard output holds only the command's result.
    log::start(&log::asked_for().unwrap_or_else(|| "warn".into()));
    let again: Vec<OsString> = program.iter().chain(words.iter().skip(1)).cloned().collect();
    let code = match Cli::try_parse_from(cc::command_line(words)) {
        Ok(cli) => perform(cli.command, program, &again),
        // Help and version go to standard output, errors to standard error.
        Err(answer) => answer.print().map_or_else(|reason| print::failed("symrail", &reason), |()| answer.exit_code()),
    };
    // Exit codes are a byte; a larger value is still a failure.
    u8::try_from(code).unwrap_or(1)
}

fn perform(command: Command, program: &[OsString], again: &[OsString]) -> i32 {
    match command {
        Command::Run(args) => run::main(&args, program),
        Command::Agent => run::agent::main(),
        Command::Perf(args) => perf::main(&args, again),
        Command::Tune(args) => tune::main(&args, again),
        Command::Info(args) => info::main(&args),
        Command::Doctor(args) => doctor::main(&args),
        Command::Top(args) => top::main(&args),
        Command::Cc(args) => cc::main(&args, cc::Language::C),
        Command::Cxx(args) => cc::main(&args, cc::Language::Cxx),
    }
}
