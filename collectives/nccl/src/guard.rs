//! Converts errors to results, and stops panics.

use std::ffi::c_int;

use symrail::kernels::cuda::Current;
use symrail_collectives::Error;
use symrail_core::CPointer;

/// `ncclResult_t`.
pub const SUCCESS: c_int = 0;
pub const CUDA_ERROR: c_int = 1;
pub const SYSTEM_ERROR: c_int = 2;
pub const INTERNAL_ERROR: c_int = 3;
pub const INVALID_ARGUMENT: c_int = 4;
pub const INVALID_USAGE: c_int = 5;
pub const REMOTE_ERROR: c_int = 6;

/// A result code and its text.
#[derive(Debug, Clone)]
pub struct Failure {
    code: c_int,
    why: String,
}

impl Failure {
    pub fn argument(why: impl Into<String>) -> Failure {
        Failure { code: INVALID_ARGUMENT, why: why.into() }
    }

    pub fn usage(why: impl Into<String>) -> Failure {
        Failure { code: INVALID_USAGE, why: why.into() }
    }

    /// Adds the context in front of the text.
    pub fn within(self, what: &str) -> Failure {
        Failure { code: self.code, why: format!("{what}: {}", self.why) }
    }

    /// Whether the communicator is unusable from now on: the call itself was not at fault.
    pub fn lasts(&self) -> bool {
        !matches!(self.code, INVALID_ARGUMENT | INVALID_USAGE)
    }
}

/// The refusal of a function that this library does not have.
pub fn refuse<T>(name: &str, why: &str) -> Result<T, Failure> {
    let remedy = "SYMRAIL_NCCL_LIBRARY names one that has it, for its own communicators";
    Err(Failure::usage(format!("{name}: this library does not have {why}; {remedy}")))
}

impl<E: Into<Error>> From<E> for Failure {
    fn from(error: E) -> Failure {
        let error: Error = error.into();
        let code = match &error {
            Error::Call(_) | Error::Plan { .. } | Error::OtherRuntime { .. } => INVALID_USAGE,
            Error::Round(_) | Error::Sizes { .. } => REMOTE_ERROR,
            Error::Gpu(_) => CUDA_ERROR,
            Error::Runtime(_) => SYSTEM_ERROR,
            _ => INTERNAL_ERROR,
        };
        Failure { code, why: error.to_string() }
    }
}

impl From<Failure> for (c_int, String) {
    fn from(Failure { code, why }: Failure) -> (c_int, String) {
        (code, why)
    }
}

/// Writes the reason to standard error: programs print NCCL's own text of a result, and the reason would be lost.
pub fn write(failure: &Failure) {
    symrail_core::guard::write_line(&format!("symrail: {}", failure.why));
}

/// Runs a function's body, and returns its result code.
pub fn guarded(body: impl FnOnce() -> Result<(), Failure>) -> c_int {
    result(|| body().inspect_err(write))
}

/// As [`guarded`], for failures that were written when they occurred.
pub fn result(body: impl FnOnce() -> Result<(), Failure>) -> c_int {
    // Programs rely on the device that is current on their threads.
    let _current = Current::keep();
    symrail_core::guard::guarded(INTERNAL_ERROR, body)
}

/// A pointer that must not be null.
pub fn given<T>(what: &str, pointer: CPointer<T>) -> Result<CPointer<T>, Failure> {
    if pointer.is_null() { Err(Failure::argument(format!("{what} is a null pointer"))) } else { Ok(pointer) }
}
