//! Errors end the job, as OpenSHMEM's users expect.

use std::fmt::Display;
use std::io::Write;
use std::time::Duration;

use crate::job;

/// The exit code of a PE that ends the job because of an error.
pub const EXIT_CODE: i32 = 1;

/// Prints the error with the function's name and ends the job. A thread that still makes calls while the process ends in
/// another one has made no mistake: it waits for that end.
#[cold]
pub fn fail(function: &str, why: &dyn Display) -> ! {
    while job::ends_in_another_thread() {
        std::thread::sleep(Duration::from_secs(1));
    }
    let message = match job::pe_for_messages() {
        Some(pe) => format!("PE {pe}: {function}: {why}"),
        None => format!("{function}: {why}"),
    };
    // One write, since all PEs may print at once. A failed write is ignored: no reader is left.
    let _ = std::io::stderr().write_all(format!("symrail: {message}\n").as_bytes());
    job::end_all(EXIT_CODE, &message);
    // SAFETY: ends the process without its exit handlers, which may wait for what has just failed.
    unsafe { libc::_exit(EXIT_CODE) }
}

/// Unwraps the value, or ends the job.
#[inline]
pub fn check<T, E: Display>(function: &str, result: Result<T, E>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => fail(function, &error),
    }
}
