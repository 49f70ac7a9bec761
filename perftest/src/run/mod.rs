//! `symrail run`: starts the PEs of a job, here or on several hosts, and supervises them until all are gone.
//!
//! | file | concept |
//! |---|---|
//! | `args` | the command line |
//! | `job` | the job, its checks, and each PE's environment |
//! | `hosts` | `--hosts` and `--hostfile`: the hosts of PEs, and the number of PEs on each |
//! | `pes` | the loop's interface to PEs, wherever they are |
//! | `local` | PEs on this machine |
//! | `remote` | PEs on hosts reached by ssh |
//! | `spawn` | one process: its own group, the secret's pipe, dying with the launcher, its cores |
//! | `children` | the processes: which have ended, and how |
//! | `guard` | a process that ends what outlives the launcher |
//! | `job_id` | the id that all processes of a job carry |
//! | `signals` | the signals that the launcher reads as events |
//! | `inbox` | events from threads for the loop |
//! | `watch` | the loop: starting, signals, deaths, the rendezvous' events, and how a job ends |
//! | `cause` | why a job fails: the first cause, among what followed from it |
//! | `ending` | how a process ended, in words and as an exit code |
//! | `output` | output through pipes: whole lines with the PE's number, or unchanged |
//!
//! # Promises
//! - The PEs find each other through a rendezvous service in the launcher, on a random port: of 127.0.0.1, or of the
//!   address from which ssh reaches their hosts.
//! - A PE that fails ends the job: the others get SIGTERM, and SIGKILL 2 s later. The launcher prints which PE it was
//!   and why, and its exit code is that PE's (128 + the signal's number for a death by signal). What other PEs suffered
//!   from that is printed after it: a failure waits for the ends of processes that had begun before.
//! - When the launcher is gone, however it ended, so are the PEs and all processes that they have started, in
//!   whatever groups and sessions: all are killed when the job ends. A process that was started without the variable
//!   `SYMRAIL_LAUNCHER_JOBS` and in its own group stays.
//! - The launcher passes SIGINT, SIGTERM, SIGHUP and SIGQUIT on to the PEs' process groups, and they end the job,
//!   with exit code 128 + the signal's number: after 2 s, or at the second such signal, SIGKILL does. That also holds
//!   while PEs are still being started.
//! - The launcher passes SIGUSR1, SIGUSR2, SIGTSTP (Ctrl-Z) and SIGCONT on. A signal that the launcher was started to
//!   ignore is ignored, by the PEs as well.
//! - Standard input goes to PE 0 unless it is a terminal (a PE's group is not the terminal's, so it could not read
//!   it); the other PEs read nothing.

mod args;
mod cause;
mod children;
mod ending;
mod guard;
mod hosts;
mod inbox;
mod job;
mod job_id;
mod local;
mod output;
mod pes;
mod remote;
mod signals;
mod spawn;
mod watch;

pub use args::Args;
pub use job::Job;
pub use remote::agent;
pub use watch::launch;

use std::ffi::OsString;

use crate::print;

/// Runs `symrail run` and returns its exit code; `program` is the command that starts this program again.
pub fn main(args: &Args, program: &[OsString]) -> i32 {
    match args.job(program).and_then(|job| launch(&job)) {
        Ok(code) => code,
        Err(error) => {
            print::error("symrail run", &error);
            error.exit_code()
        }
    }
}
