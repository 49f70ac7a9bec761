//! The texts of result codes and of failures.

use std::ffi::{CStr, c_char, c_int};

use crate::export::there;
use crate::guard::{CUDA_ERROR, INTERNAL_ERROR, INVALID_ARGUMENT, INVALID_USAGE, REMOTE_ERROR, SUCCESS, SYSTEM_ERROR};
use crate::library;
use crate::registry::is_unknown;
use crate::types::Handle;

/// The text of the last failure in this thread.
#[unsafe(no_mangle)]
extern "C" fn ncclGetLastError(comm: Handle) -> *const c_char {
    let there = there!(ncclGetLastError(comm: Handle) -> *const c_char);
    library::forwarded(there, || is_unknown(comm)).ok().flatten().unwrap_or_else(symrail_core::guard::last)
}

#[unsafe(no_mangle)]
extern "C" fn pncclGetLastError(comm: Handle) -> *const c_char {
    ncclGetLastError(comm)
}

#[unsafe(no_mangle)]
extern "C" fn pncclGetErrorString(result: c_int) -> *const c_char {
    ncclGetErrorString(result)
}

/// The text for a result code.
#[unsafe(no_mangle)]
extern "C" fn ncclGetErrorString(result: c_int) -> *const c_char {
    let text: &CStr = match result {
        SUCCESS => c"no error",
        CUDA_ERROR => c"a call of CUDA failed (ncclGetLastError has the reason)",
        SYSTEM_ERROR => c"the system or another rank failed (ncclGetLastError has the reason)",
        INTERNAL_ERROR => c"a defect of the library (ncclGetLastError has the reason)",
        INVALID_ARGUMENT => c"an argument that is not accepted (ncclGetLastError has the reason)",
        INVALID_USAGE => c"a call that is not accepted (ncclGetLastError has the reason)",
        REMOTE_ERROR => c"another rank is late, gone or has given up (ncclGetLastError has the reason)",
        7 => c"the call is still under way",
        8 => c"the time is over (ncclGetLastError has the reason)",
        _ => c"there is no such result",
    };
    text.as_ptr()
}
