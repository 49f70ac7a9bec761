//! Functions that only the other library implements: windows, and communicators for kernels.

use std::ffi::{c_int, c_void};

use crate::export::nccl;
use crate::guard::Failure;
use crate::types::Handle;

fn refuse(name: &str) -> Result<(), Failure> {
    let remedy = "SYMRAIL_NCCL_LIBRARY names one that has it, for its own communicators";
    Err(Failure::usage(format!("{name}: this library does not have it; {remedy}")))
}

nccl! {
    fn ncclCommWindowRegister(
        comm: Handle,
        at: *mut c_void,
        bytes: usize,
        window: *mut *mut c_void,
        flags: c_int,
    ) of comm {
        refuse("ncclCommWindowRegister")
    }
}

nccl! {
    fn ncclCommWindowDeregister(comm: Handle, window: *mut c_void) of comm {
        refuse("ncclCommWindowDeregister")
    }
}

nccl! {
    fn ncclWinGetUserPtr(comm: Handle, window: *mut c_void, to: *mut *mut c_void) of comm {
        refuse("ncclWinGetUserPtr")
    }
}

nccl! {
    fn ncclDevCommCreate(comm: Handle, requirements: *const c_void, to: *mut c_void) of comm {
        refuse("ncclDevCommCreate")
    }
}

nccl! {
    fn ncclDevCommDestroy(comm: Handle, device: *const c_void) of comm {
        refuse("ncclDevCommDestroy")
    }
}

/// Does nothing: the log's settings are read once.
#[unsafe(no_mangle)]
extern "C" fn ncclResetDebugInit() {}

#[unsafe(no_mangle)]
extern "C" fn pncclResetDebugInit() {}
