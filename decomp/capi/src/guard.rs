//! The conversion of errors and panics to results.

use std::ffi::{c_char, c_int};

use symrail::kernels::cuda::Current;
use symrail_core::CPointer;
use symrail_decomp::Error;

/// `cudecompResult_t`.
pub const INVALID_USAGE: c_int = 1;
const NOT_SUPPORTED: c_int = 2;
const INTERNAL_ERROR: c_int = 3;
const CUDA_ERROR: c_int = 4;
const MPI_ERROR: c_int = 6;
/// An error of the runtime: it is in the place of NVSHMEM.
const RUNTIME_ERROR: c_int = 8;

/// A result, and its message.
#[derive(Debug, Clone)]
pub struct Failure {
    pub code: c_int,
    why: String,
}

impl Failure {
    pub fn new(code: c_int, why: impl Into<String>) -> Failure {
        Failure { code, why: why.into() }
    }

    pub fn usage(why: impl Into<String>) -> Failure {
        Failure::new(INVALID_USAGE, why)
    }

    pub fn unsupported(why: impl Into<String>) -> Failure {
        Failure::new(NOT_SUPPORTED, why)
    }

    pub fn mpi(why: impl Into<String>) -> Failure {
        Failure::new(MPI_ERROR, why)
    }

    pub fn runtime(why: impl Into<String>) -> Failure {
        Failure::new(RUNTIME_ERROR, why)
    }

    /// The same, with more about it.
    pub fn with(self, more: &str) -> Failure {
        Failure { why: format!("{}; {more}", self.why), ..self }
    }
}

impl<E: Into<Error>> From<E> for Failure {
    fn from(error: E) -> Failure {
        let error: Error = error.into();
        let code = match &error {
            Error::Runtime(symrail::Error::ParametersDiffer { .. }) => INVALID_USAGE,
            Error::Gpu(_) => CUDA_ERROR,
            Error::Runtime(_) | Error::Round(_) => RUNTIME_ERROR,
            _ => INVALID_USAGE,
        };
        Failure { code, why: error.to_string() }
    }
}

impl From<Failure> for (c_int, String) {
    fn from(Failure { code, why }: Failure) -> (c_int, String) {
        (code, why)
    }
}

/// The message of the last failure in this thread.
#[unsafe(no_mangle)]
extern "C" fn symrailDecompLastError() -> *const c_char {
    symrail_core::guard::last()
}

/// Writes a message to standard error, as cuDecomp does: its interface has no other place for it.
pub fn write(why: &str) {
    symrail_core::guard::write_line(&format!("CUDECOMP:ERROR: {why}"));
}

/// Runs the body of a C function, and returns its result.
pub fn guarded(body: impl FnOnce() -> Result<(), Failure>) -> c_int {
    // Programs rely on the device that is current on their threads.
    let _current = Current::keep();
    symrail_core::guard::guarded(INTERNAL_ERROR, || body().inspect_err(|failure| write(&failure.why)))
}

/// A pointer that must not be null.
pub fn given<T>(what: &str, pointer: CPointer<T>) -> Result<CPointer<T>, Failure> {
    if pointer.is_null() { Err(Failure::usage(format!("{what} is a null pointer"))) } else { Ok(pointer) }
}

/// The value at a pointer that must not be null.
pub fn value<T: Copy>(what: &str, pointer: CPointer<T>) -> Result<T, Failure> {
    pointer.get().ok_or_else(|| Failure::usage(format!("{what} is a null pointer")))
}

/// Three numbers along X, Y and Z, as C passes them.
pub type Three = CPointer<[i32; 3]>;

/// Numbers that are not negative. A null pointer stands for zeros.
pub fn three(what: &str, numbers: Three) -> Result<[usize; 3], Failure> {
    numbers.get().map_or(Ok([0; 3]), |numbers| extents(what, numbers))
}

/// Numbers that are not negative.
pub fn extents(what: &str, numbers: [i32; 3]) -> Result<[usize; 3], Failure> {
    match numbers.map(usize::try_from) {
        [Ok(x), Ok(y), Ok(z)] => Ok([x, y, z]),
        _ => Err(Failure::usage(format!("{what} {numbers:?}: none is below 0"))),
    }
}
