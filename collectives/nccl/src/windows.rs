//! Windows: memory that a program registers. Calls accept any of the GPU's memory, so a window only keeps its address.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use symrail_core::registry::Registry;

use crate::export::nccl;
use crate::guard::{Failure, given};
use crate::registry;
use crate::types::Handle;

type Window = *mut c_void;

/// A registered window.
struct Registered {
    communicator: Handle,
    at: *mut c_void,
}

// SAFETY: a number and an address, which are not accessed.
unsafe impl Send for Registered {}
// SAFETY: as above.
unsafe impl Sync for Registered {}

static WINDOWS: Registry<Registered> = Registry::new();

/// A communicator's window.
fn find(comm: Handle, window: Window) -> Result<Arc<Registered>, Failure> {
    registry::find(comm)?;
    let known = WINDOWS.find(window.addr()).filter(|known| known.communicator == comm);
    known.ok_or_else(|| Failure::argument(format!("{window:?} is no window of this communicator, or none any more")))
}

nccl! {
    fn ncclCommWindowRegister(comm: Handle, at: *mut c_void, bytes: usize, window: *mut Window, flags: c_int) of comm {
        registry::find(comm)?.check_failed()?;
        // SAFETY: C's caller vouches for its pointers.
        let window = unsafe { given("win", window) }?;
        *window = std::ptr::null_mut();
        if at.is_null() || bytes == 0 || flags < 0 {
            return Err(Failure::argument(format!("a window of {bytes} bytes at {at:?} with the flags {flags}")));
        }
        *window = std::ptr::without_provenance_mut(WINDOWS.add(Registered { communicator: comm, at }));
        Ok(())
    }
}

nccl! {
    fn ncclCommWindowDeregister(comm: Handle, window: Window) of comm {
        find(comm, window)?;
        WINDOWS.take(window.addr()).map(drop).ok_or_else(|| Failure::argument("the window was deregistered meanwhile"))
    }
}

nccl! {
    fn ncclWinGetUserPtr(comm: Handle, window: Window, to: *mut *mut c_void) of comm {
        let found = find(comm, window)?;
        // SAFETY: C's caller vouches for its pointers.
        *unsafe { given("outUserPtr", to) }? = found.at;
        Ok(())
    }
}
