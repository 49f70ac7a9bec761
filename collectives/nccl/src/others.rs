//! What is left to NCCL itself: windows, and communicators for kernels.

use std::ffi::{c_int, c_void};

use crate::guard::{Failure, guarded};
use crate::types::Handle;

fn refuse(name: &str) -> c_int {
    guarded(|| Err(Failure::usage(format!("{name}: this library does not have it"))))
}

#[unsafe(no_mangle)]
extern "C" fn ncclCommWindowRegister(_: Handle, _: *mut c_void, _: usize, _: *mut *mut c_void, _: c_int) -> c_int {
    refuse("ncclCommWindowRegister")
}

#[unsafe(no_mangle)]
extern "C" fn ncclCommWindowDeregister(_: Handle, _: *mut c_void) -> c_int {
    refuse("ncclCommWindowDeregister")
}

#[unsafe(no_mangle)]
extern "C" fn ncclWinGetUserPtr(_: Handle, _: *mut c_void, _: *mut *mut c_void) -> c_int {
    refuse("ncclWinGetUserPtr")
}

#[unsafe(no_mangle)]
extern "C" fn ncclDevCommCreate(_: Handle, _: *const c_void, _: *mut c_void) -> c_int {
    refuse("ncclDevCommCreate")
}

#[unsafe(no_mangle)]
extern "C" fn ncclDevCommDestroy(_: Handle, _: *const c_void) -> c_int {
    refuse("ncclDevCommDestroy")
}

/// Does nothing: the log's settings are read once.
#[unsafe(no_mangle)]
extern "C" fn ncclResetDebugInit() {}
