//! Memory: calls accept any of the GPU's memory without registration, since they copy data that must be symmetric.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::Mutex;

use symrail::kernels::cuda::{DeviceBuffer, Gpu};
use symrail_core::lock;

use crate::export::nccl;
use crate::guard::{Failure, given};
use crate::registry;
use crate::types::Handle;

static ALLOCATED: Mutex<Option<HashMap<usize, DeviceBuffer>>> = Mutex::new(None);

nccl! {
    fn ncclMemAlloc(to: *mut *mut c_void, bytes: usize) {
        // SAFETY: C's caller vouches for its pointers.
        let to = unsafe { given("ptr", to) }?;
        let buffer = Gpu::open(Gpu::current().unwrap_or(0))?.alloc(bytes)?;
        let at = buffer.at().get() as usize;
        lock(&ALLOCATED).get_or_insert_default().insert(at, buffer);
        *to = std::ptr::with_exposed_provenance_mut(at);
        Ok(())
    }
}

nccl! {
    fn ncclMemFree(at: *mut c_void) {
        let buffer = lock(&ALLOCATED).as_mut().and_then(|all| all.remove(&at.addr()));
        if buffer.is_none() && !at.is_null() {
            return Err(Failure::argument(format!("{at:?} was not allocated by ncclMemAlloc")));
        }
        Ok(())
    }
}

nccl! {
    fn ncclCommRegister(comm: Handle, at: *mut c_void, bytes: usize, handle: *mut *mut c_void) of comm {
        registry::find(comm)?;
        // SAFETY: C's caller vouches for its pointers.
        *unsafe { given("handle", handle) }? = at;
        Ok(())
    }
}

nccl! {
    fn ncclCommDeregister(comm: Handle, handle: *mut c_void) of comm {
        registry::find(comm).map(drop)
    }
}
