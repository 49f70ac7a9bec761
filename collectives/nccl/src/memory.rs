//! Memory: calls accept any of the GPU's memory without registration, since they copy data that must be symmetric.

use symrail_core::CPointer;

use crate::export::nccl;
use crate::guard::{Failure, given};
use crate::types::Handle;
use crate::{allocated, registry};

nccl! {
    fn ncclMemAlloc(to: CPointer<usize>, bytes: usize) {
        given("ptr", to)?.set(allocated::alloc(bytes)?);
        Ok(())
    }
}

nccl! {
    fn ncclMemFree(at: usize) {
        if !allocated::free(at)? && at != 0 {
            return Err(Failure::argument(format!("{at:#x} was not allocated by ncclMemAlloc")));
        }
        Ok(())
    }
}

nccl! {
    fn ncclCommRegister(comm: Handle, at: usize, bytes: usize, handle: CPointer<usize>) of comm {
        registry::find(comm)?;
        given("handle", handle)?.set(at);
        Ok(())
    }
}

nccl! {
    fn ncclCommDeregister(comm: Handle, handle: usize) of comm {
        registry::find(comm).map(drop)
    }
}
