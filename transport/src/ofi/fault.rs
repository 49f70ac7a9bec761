//! Faults from libfabric's error numbers.

use libfabric_sys::Libfabric;

use crate::error::Fault;

/// A libfabric result (negated error number) as a fault.
pub fn fault(library: &Libfabric, code: isize) -> Fault {
    let code = i32::try_from(code.unsigned_abs()).unwrap_or(i32::MAX);
    Fault { code, text: library.strerror(code), retryable: is_path_error(code) }
}

/// Whether an error number concerns the path to a peer rather than the request.
pub fn is_path_error(code: i32) -> bool {
    [
        libc::ECONNRESET,
        libc::ECONNABORTED,
        libc::ECONNREFUSED,
        libc::ENOTCONN,
        libc::ESHUTDOWN,
        libc::ETIMEDOUT,
        libc::ENETDOWN,
        libc::ENETUNREACH,
        libc::ENETRESET,
        libc::EHOSTDOWN,
        libc::EHOSTUNREACH,
        libc::EPIPE,
        libc::EIO,
        libc::ECANCELED,
    ]
    .contains(&code)
}
