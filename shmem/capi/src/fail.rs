//! Errors end the job, as OpenSHMEM's users know it.

use std::fmt::Display;
use std::io::Write;

use crate::job;

/// The exit code of a PE that ends the job because of an error.
pub const EXIT_CODE: i32 = 1;

/// Says what went wrong in which function, and ends the job.
#[cold]
pub fn fail(function: &str, why: &dyn Display) -> ! {
    let message = match job::pe_for_messages() {
        Some(pe) => format!("PE {pe}: {function}: {why}"),
        None => format!("{function}: {why}"),
    };
    // In one piece, since all PEs may say it at once. Where nobody listens there is nothing to do about it.
    let _ = std::io::stderr().write_all(format!("symrail: {message}\n").as_bytes());
    job::end_all(EXIT_CODE, &message);
    // SAFETY: ends the process without running what it has registered for a normal end, which may be waiting for
    // what just failed.
    unsafe { libc::_exit(EXIT_CODE) }
}

/// The value, or the end.
#[inline]
pub fn check<T, E: Display>(function: &str, result: Result<T, E>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => fail(function, &error),
    }
}
