//! Memory: calls accept any of the GPU's memory without registration, since they copy data that must be symmetric.

use std::ffi::c_void;

use symrail_core::CPointer;

use crate::export::nccl;
use crate::guard::{Failure, given};
use crate::types::Handle;
use crate::{allocated, registry};

nccl! {
    fn ncclMemAlloc(to: CPointer<*mut c_void>, bytes: usize) {
        given("ptr", to)?.set(allocated::alloc(bytes)?);
        Ok(())
    }
}

nccl! {
    fn ncclMemFree(at: *mut c_void) {
        if !allocated::free(at)? && !at.is_null() {
            return Err(Failure::argument(format!("{at:?} was not allocated by ncclMemAlloc")));
        }
        Ok(())
    }
}

nccl! {
    fn ncclCommRegister(comm: Handle, at: *mut c_void, bytes: usize, handle: CPointer<*mut c_void>) of comm {
        registry::find(comm)?;
        given("handle", handle)?.set(at);
        Ok(())
    }
}

nccl! {
    fn ncclCommDeregister(comm: Handle, handle: *mut c_void) of comm {
        registry::find(comm).map(drop)
    }
}
