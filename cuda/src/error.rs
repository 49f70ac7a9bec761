//! Errors of GPUs.

use std::ffi::CStr;

use cudarc::driver::sys::{self, CUresult};

/// A failure of the CUDA driver, or of what surrounds it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CudaError {
    /// There is no driver.
    #[error("no CUDA driver (libcuda.so.1) on this machine: install NVIDIA's driver, or use SYMRAIL_HEAP_KIND=host")]
    NoDriver,
    /// There is no such GPU.
    #[error("GPU {ordinal} does not exist: the driver shows {count} (CUDA_VISIBLE_DEVICES)")]
    NoSuchGpu {
        /// Which was asked for.
        ordinal: i32,
        /// The number of those.
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
        /// Sizes and what to do, starting with a colon; or nothing.
        detail: String,
    },
    /// The GPU lacks something.
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
    /// Something does not fit.
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
    /// There is no NVRTC.
    #[error("no NVRTC library: {tried}; install it, or name its folder in LD_LIBRARY_PATH")]
    NoNvrtc {
        /// The places that were searched.
        tried: String,
    },
    /// There is no cuBLASLt.
    #[error("no cuBLASLt library: {tried}; install it, or name its folder in LD_LIBRARY_PATH")]
    NoCublasLt {
        /// The places that were searched.
        tried: String,
    },
    /// NVRTC does not accept a program.
    #[error("{name} does not compile for {arch}:\n{log}")]
    Compile {
        /// The program.
        name: String,
        /// The target.
        arch: String,
        /// NVRTC's messages.
        log: String,
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

/// Makes a result of a driver's answer.
pub fn check(gpu: i32, call: &'static str, answer: CUresult) -> Result<()> {
    if answer == CUresult::CUDA_SUCCESS { Ok(()) } else { Err(failed(gpu, call, answer, String::new())) }
}

/// The error of a driver's answer.
#[cold]
pub fn failed(gpu: i32, call: &'static str, answer: CUresult, detail: String) -> CudaError {
    let ask = |f: unsafe fn(CUresult, *mut *const std::ffi::c_char) -> CUresult| {
        let mut text = std::ptr::null();
        // SAFETY: the driver stores a pointer to a constant string, or nothing.
        let answer = unsafe { f(answer, &raw mut text) };
        if answer != CUresult::CUDA_SUCCESS || text.is_null() {
            return String::from("unknown");
        }
        // SAFETY: a constant, terminated string of the driver.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    };
    CudaError::Call { call, gpu, name: ask(sys::cuGetErrorName), text: ask(sys::cuGetErrorString), detail }
}

/// Calls a function of the driver and makes a [`Result`] of its answer.
#[macro_export]
macro_rules! cuda {
    ($gpu:expr, $function:ident($($argument:expr),* $(,)?)) => {
        $crate::error::check($gpu, stringify!($function), $crate::sys::$function($($argument),*))
    };
}
pub use cuda;
