//! Conversion of errors to codes and messages, and containment of panics.

use std::ffi::c_int;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};

use symrail_heap::cuda::CudaError;
use symrail_transport::Error;

use crate::abi::status;

/// An error code for the host library, and a sentence for its user.
pub struct Failure {
    pub code: c_int,
    pub why: String,
}

impl Failure {
    pub fn argument(why: String) -> Failure {
        Failure { code: status::INVALID_VALUE, why }
    }

    pub fn null(what: &str) -> Failure {
        Failure::argument(format!("{what} is a null pointer"))
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure { code: status::INTERNAL, why: error.to_string() }
    }
}

impl From<CudaError> for Failure {
    fn from(error: CudaError) -> Failure {
        Failure { code: status::INTERNAL, why: error.to_string() }
    }
}

/// Runs the body of a function of the interface, prints its error, and returns its code.
#[inline]
pub fn guarded(function: &str, body: impl FnOnce() -> Result<(), Failure>) -> c_int {
    // Mutexes that stay usable guard the state that a panic leaves behind.
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => status::SUCCESS,
        Ok(Err(failure)) => {
            say(function, &failure.why);
            failure.code
        }
        Err(_) => {
            say(function, "a defect of the transport; please report it with the message above");
            status::INTERNAL
        }
    }
}

/// The host library reports that an operation failed, but not why. So the reason is printed here, whatever the log
/// level.
#[cold]
fn say(function: &str, why: &str) {
    // It is one write, since all PEs may print at once. A failure to print is ignored.
    let _ = std::io::stderr().write_all(format!("symrail: NVSHMEM transport, {function}: {why}\n").as_bytes());
}
