//! Where errors become codes and messages, and panics end.

use std::ffi::c_int;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};

use symrail_heap::cuda::CudaError;
use symrail_transport::Error;

use crate::abi::status;

/// A code for the host library, and a sentence for its user.
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

/// Does what a function has to do, says what went wrong, and gives its code.
#[inline]
pub fn guarded(function: &str, body: impl FnOnce() -> Result<(), Failure>) -> c_int {
    // What a panic leaves behind is behind mutexes that go on after it.
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

/// The host library says that an operation failed, not why; so it is said here, whatever is logged.
#[cold]
fn say(function: &str, why: &str) {
    // In one piece, since all PEs may say it at once. Where nobody listens there is nothing to do about it.
    let _ = std::io::stderr().write_all(format!("symrail: NVSHMEM transport, {function}: {why}\n").as_bytes());
}
