//! Lets PEs on several hosts find each other without `symrail run` and without MPI.
//!
//! `rendezvous 192.0.2.7` creates a unique id on that interface of this machine, prints it, and serves it until its
//! standard input ends. Start every PE, wherever it runs and by whatever means, with
//!
//! `SYMRAIL_BOOTSTRAP_UID=<id> SYMRAIL_BOOTSTRAP_PE=<number> SYMRAIL_BOOTSTRAP_N_PES=<how many> PROGRAM`
//!
//! A process that knows the id can join the job, so pass it on as you would a password.

use std::io::Read;
use std::net::IpAddr;
use std::process::ExitCode;

use symrail::bootstrap::uid;

fn main() -> ExitCode {
    let interface = match std::env::args().nth(1).map(|text| text.parse::<IpAddr>()).transpose() {
        Ok(interface) => interface,
        Err(error) => return fail(&format!("{error}; give the address of one of this machine's interfaces")),
    };
    match uid::create(interface) {
        Ok(id) => println!("{}", id.to_hex()),
        Err(error) => return fail(&error.to_string()),
    }
    // The service runs in its own thread; an input that cannot be read has ended as well.
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    ExitCode::SUCCESS
}

fn fail(why: &str) -> ExitCode {
    eprintln!("rendezvous: {why}");
    ExitCode::FAILURE
}
