//! `symrail run`: starts the PEs of a job on this machine and supervises them until all are gone.
//!
//! | file | concept |
//! |---|---|
//! | `job` | what is to be started, checked, and each PE's environment |
//! | `spawn` | one process: its own group, the secret's pipe, dying with the launcher, its cores |
//! | `children` | the processes: which have ended, and how |
//! | `guard` | a process that ends what outlives the launcher |
//! | `job_id` | what a job has started, wherever it has gone |
//! | `signals` | the signals that the launcher reads as events |
//! | `watch` | the loop: starting, signals, deaths, the rendezvous' events, and how a job ends |
//! | `ending` | how a process ended, in words and as an exit code |
//! | `output` | `--prefix`: whole lines with the PE's number |
//!
//! # What it promises
//! - The PEs find each other through a rendezvous service in the launcher, on 127.0.0.1 and a random port.
//! - A PE that fails ends the job: the others get SIGTERM, and SIGKILL 2 s later. The launcher says which PE it was and
//!   why, and its exit code is that PE's (128 + the signal's number for a death by signal).
//! - When the launcher is gone, so are the PEs and all that they have started, however it went, in whatever groups and
//!   sessions: it is killed when the job ends. What is started without the variable `SYMRAIL_LAUNCHER_JOBS` and in a
//!   group of its own stays.
//! - SIGINT, SIGTERM, SIGHUP and SIGQUIT are passed on to the PEs' process groups and end the job, with exit code 128 +
//!   the signal's number: after 2 s, or at the second one, SIGKILL does. That holds while PEs are still being started,
//!   too.
//! - SIGUSR1, SIGUSR2, SIGTSTP (Ctrl-Z) and SIGCONT are passed on. A signal that the launcher was started to ignore is
//!   ignored, by the PEs as well.
//! - Standard input goes to PE 0 unless it is a terminal (a PE's group is not the terminal's, so it could not read it);
//!   the others read nothing.

mod children;
mod ending;
mod guard;
mod job;
mod job_id;
mod output;
mod signals;
mod spawn;
mod watch;

pub use job::Job;
use symrail::bootstrap::MAX_PES;
pub use watch::launch;

use crate::print;

/// The arguments of `symrail run`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// How many PEs to start
    #[arg(short = 'n', value_name = "N", value_parser = clap::value_parser!(u32).range(1..=MAX_PES.into()))]
    n: u32,
    /// Let the PEs believe that they are on H hosts, in blocks
    #[arg(long, value_name = "H")]
    hosts: Option<u32>,
    /// Give every PE R rails: the addresses 127.0.0.2 and following, unless SYMRAIL_NIC_LIST names some
    #[arg(long, value_name = "R")]
    rails: Option<u32>,
    /// Put `[PE] ` before every line that the PEs print
    #[arg(long)]
    prefix: bool,
    /// Give every PE cores of its own
    #[arg(long)]
    bind: bool,
    /// End the job after S seconds, with exit code 124
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u64).range(1..))]
    timeout: Option<u64>,
    /// The program and its arguments
    // The first word that is no option is the program; what follows it is the program's.
    #[arg(trailing_var_arg = true, required = true, value_name = "PROGRAM")]
    program: Vec<std::ffi::OsString>,
}

/// Runs `symrail run` and returns its exit code.
pub fn main(args: &Args) -> i32 {
    let Some((program, rest)) = args.program.split_first() else { return 2 };
    let job = Job {
        program: program.clone(),
        args: rest.to_vec(),
        n: args.n,
        hosts: args.hosts,
        rails: args.rails,
        prefix: args.prefix,
        bind: args.bind,
        env: Vec::new(),
        timeout: args.timeout.map(std::time::Duration::from_secs),
    };
    match launch(&job) {
        Ok(code) => code,
        Err(error) => {
            print::error("symrail run", &error);
            error.exit_code()
        }
    }
}
