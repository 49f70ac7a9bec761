//! Conversion of errors to NCCL's codes and lines of its log, and containment of panics.

use std::ffi::{CString, c_char, c_int, c_ulong};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicPtr, Ordering};

use symrail_core::ErrorKind;
use symrail_heap::cuda::CudaError;
use symrail_transport::Error;

/// NCCL's result codes.
pub const SUCCESS: c_int = 0;
const UNHANDLED_CUDA_ERROR: c_int = 1;
const SYSTEM_ERROR: c_int = 2;
const INTERNAL_ERROR: c_int = 3;
const INVALID_ARGUMENT: c_int = 4;
const INVALID_USAGE: c_int = 5;
const REMOTE_ERROR: c_int = 6;

/// NCCL's log: level, subsystem, file, line, format and arguments.
pub type Logger = unsafe extern "C" fn(c_int, c_ulong, *const c_char, c_int, *const c_char, ...);

const WARN: c_int = 2;
const NET: c_ulong = 0x10;

/// The logger of the last `init`; null before the first.
static LOGGER: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());

/// An error code and its sentence.
#[derive(Debug, Clone)]
pub struct Failure {
    code: c_int,
    why: String,
    /// It was returned before, and logged.
    told: bool,
}

impl Failure {
    pub fn argument(why: impl Into<String>) -> Failure {
        Failure { code: INVALID_ARGUMENT, why: why.into(), told: false }
    }

    pub fn usage(why: impl Into<String>) -> Failure {
        Failure { code: INVALID_USAGE, why: why.into(), told: false }
    }

    pub fn remote(why: impl Into<String>) -> Failure {
        Failure { code: REMOTE_ERROR, why: why.into(), told: false }
    }

    /// The same failure, for all but the first call that returns it.
    pub fn told(&self) -> Failure {
        Failure { told: true, ..self.clone() }
    }

    /// The same failure, with what it is about.
    pub fn about(self, what: &str) -> Failure {
        Failure { why: format!("{what}: {}", self.why), ..self }
    }

    pub fn null(what: &str) -> Failure {
        Failure::argument(format!("{what} is a null pointer"))
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        use ErrorKind as Kind;
        let code = match Kind::from(&error) {
            Kind::Library | Kind::NoRail | Kind::Fabric | Kind::System => SYSTEM_ERROR,
            Kind::Mismatch | Kind::Malformed => REMOTE_ERROR,
            Kind::Operation | Kind::PeerLost | Kind::Timeout => REMOTE_ERROR,
            Kind::Setting => INVALID_USAGE,
            _ => INTERNAL_ERROR,
        };
        Failure { code, why: error.to_string(), told: false }
    }
}

impl From<CudaError> for Failure {
    fn from(error: CudaError) -> Failure {
        Failure { code: UNHANDLED_CUDA_ERROR, why: error.to_string(), told: false }
    }
}

pub type Result<T> = std::result::Result<T, Failure>;

/// Keeps NCCL's logger.
pub fn log_to(logger: Option<Logger>) {
    LOGGER.store(logger.map_or(std::ptr::null_mut(), |logger| logger as *mut ()), Ordering::Relaxed);
}

/// Runs the body of a function of the tables, logs its error, and returns its code.
#[inline]
pub fn guarded(function: &str, body: impl FnOnce() -> Result<()>) -> c_int {
    // Mutexes that stay usable guard the state that a panic leaves behind.
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => SUCCESS,
        Ok(Err(failure)) => {
            if !failure.told {
                warn(function, &failure.why);
            }
            failure.code
        }
        Err(_) => {
            warn(function, "a defect of the plugin; standard error has its message");
            INTERNAL_ERROR
        }
    }
}

#[cold]
fn warn(function: &str, why: &str) {
    let text = CString::new(format!("NET/symrail: {function}: {why}")).unwrap_or_default();
    let logger = LOGGER.load(Ordering::Relaxed);
    if logger.is_null() {
        tracing::warn!("{function}: {why}");
        return;
    }
    // SAFETY: `log_to` stored a logger, which NCCL keeps as long as it uses the plugin. The format takes one string.
    unsafe {
        let logger: Logger = std::mem::transmute::<*mut (), Logger>(logger);
        logger(WARN, NET, c"nccl-net-symrail".as_ptr(), 0, c"%s".as_ptr(), text.as_ptr());
    }
}
