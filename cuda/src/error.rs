//! Errors of GPUs.

use std::ffi::CStr;

use cudarc::driver::sys::{self, CUresult};

/// An error of the CUDA driver or of this crate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CudaError {
    /// There is no driver.
    #[error("no CUDA driver (libcuda.so.1) on this machine: install NVIDIA's driver, or use SYMRAIL_HEAP_KIND=host")]
    NoDriver,
    /// There is no such GPU.
    #[error("GPU {ordinal} does not exist: the driver shows {count} (CUDA_VISIBLE_DEVICES)")]
    NoSuchGpu {
        /// The requested number.
        ordinal: i32,
        /// The number of GPUs.
        count: i32,
    },
    /// A call of the driver failed.
    #[error("{call} on GPU {gpu} failed: {name} ({text}){detail}")]
    Call {
        /// The driver's function.
        call: &'static str,
        /// The GPU's ordinal.
        gpu: i32,
        /// The driver's name for the error.
        name: String,
        /// The driver's sentence.
        text: String,
        /// Sizes and the remedy, starting with a colon; or empty.
        detail: String,
    },
    /// The GPU lacks a capability.
    #[error("GPU {gpu} {what}: {remedy}")]
    Lacks {
        /// The GPU's ordinal.
        gpu: i32,
        /// The missing capability.
        what: &'static str,
        /// The remedy.
        remedy: &'static str,
    },
    /// Peers could not exchange handles.
    #[error("exchanging memory handles with PE {pe}: {what}: {reason}")]
    Exchange {
        /// The peer.
        pe: u32,
        /// The operation that failed.
        what: &'static str,
        /// The system's error.
        reason: String,
    },
    /// A request exceeds a limit.
    #[error("{what} of {bytes} bytes does not fit: {limit} bytes are there; {remedy}")]
    TooLarge {
        /// The requested value.
        what: &'static str,
        /// The length.
        bytes: u64,
        /// The available amount.
        limit: u64,
        /// The remedy.
        remedy: &'static str,
    },
    /// NVRTC is missing.
    #[error("no NVRTC library: {tried}; install it, or name its folder in LD_LIBRARY_PATH")]
    NoNvrtc {
        /// The paths that were tried.
        tried: String,
    },
    /// cuBLASLt is missing.
    #[error("no cuBLASLt library: {tried}; install it, or name its folder in LD_LIBRARY_PATH")]
    NoCublasLt {
        /// The paths that were tried.
        tried: String,
    },
    /// NVRTC rejects a program.
    #[error("{name} does not compile for {arch}:\n{log}")]
    Compile {
        /// The program.
        name: String,
        /// The target.
        arch: String,
        /// NVRTC's messages.
        log: String,
    },
    /// A type of numbers that cuBLASLt does not multiply.
    #[error("cuBLASLt multiplies float32, float16, bfloat16, float8_e4m3fn and float8_e5m2, not {ty}")]
    NotMultiplied {
        /// The type.
        ty: symrail_core::DataType,
    },
    /// A module lacks a kernel.
    #[error("the module has no kernel {name:?}: declare kernels extern \"C\" __global__")]
    NoKernel {
        /// Its name.
        name: String,
    },
}

/// Results of this crate.
pub type Result<T, E = CudaError> = std::result::Result<T, E>;

/// Converts a driver's status to a result.
pub fn check(gpu: i32, call: &'static str, answer: CUresult) -> Result<()> {
    if answer == CUresult::CUDA_SUCCESS { Ok(()) } else { Err(failed(gpu, call, answer, String::new())) }
}

/// The error for a driver's status.
#[cold]
pub fn failed(gpu: i32, call: &'static str, answer: CUresult, detail: String) -> CudaError {
    let ask = |f: unsafe fn(CUresult, *mut *const std::ffi::c_char) -> CUresult| {
        let mut text = std::ptr::null();
        // SAFETY: the driver stores a pointer to a constant string, or null.
        let answer = unsafe { f(answer, &raw mut text) };
        if answer != CUresult::CUDA_SUCCESS || text.is_null() {
            return String::from("unknown");
        }
        // SAFETY: a constant, terminated string of the driver.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    };
    CudaError::Call { call, gpu, name: ask(sys::cuGetErrorName), text: ask(sys::cuGetErrorString), detail }
}

/// Calls a function of the driver and converts its status to a [`Result`].
#[macro_export]
macro_rules! cuda {
    ($gpu:expr, $function:ident($($argument:expr),* $(,)?)) => {
        $crate::error::check($gpu, stringify!($function), $crate::sys::$function($($argument),*))
    };
}
pub use cuda;
