//! What the library and a communicator say of themselves.

use std::ffi::{c_int, c_void};

use crate::communicator::{Communicator, State};
use crate::config;
use crate::export::nccl;
use crate::guard::{Failure, given, result};
use crate::registry;
use crate::types::{Handle, VERSION};

nccl! {
    fn ncclGetVersion(version: *mut c_int) {
        // SAFETY: C's caller vouches for its pointers.
        *unsafe { given("version", version) }? = VERSION;
        Ok(())
    }
}

nccl! {
    fn ncclCommGetAsyncError(comm: Handle, error: *mut c_int) of comm {
        // SAFETY: C's caller vouches for its pointers.
        let error = unsafe { given("asyncError", error) }?;
        let communicator = registry::find(comm)?;
        *error = result(|| communicator.check());
        Ok(())
    }
}

fn answer(comm: Handle, to: *mut c_int, what: impl FnOnce(&Communicator) -> c_int) -> Result<(), Failure> {
    // SAFETY: C's caller vouches for its pointers.
    *unsafe { given("the place for the answer", to) }? = what(&*registry::find(comm)?);
    Ok(())
}

nccl! {
    fn ncclCommCount(comm: Handle, count: *mut c_int) of comm {
        answer(comm, count, |communicator| communicator.size as c_int)
    }
}

nccl! {
    fn ncclCommCuDevice(comm: Handle, device: *mut c_int) of comm {
        answer(comm, device, |communicator| communicator.gpu)
    }
}

nccl! {
    fn ncclCommUserRank(comm: Handle, rank: *mut c_int) of comm {
        answer(comm, rank, |communicator| communicator.rank as c_int)
    }
}

nccl! {
    fn ncclCommMemStats(comm: Handle, stat: c_int, value: *mut u64) of comm {
        let communicator = registry::find(comm)?;
        // SAFETY: C's caller vouches for its pointers.
        let value = unsafe { given("value", value) }?;
        *value = match stat {
            // ncclStatGpuMemSuspend: none of it can be given up for a time.
            0 => 0,
            // ncclStatGpuMemSuspended
            1 => (communicator.state() == State::Suspended).into(),
            // ncclStatGpuMemPersist, ncclStatGpuMemTotal
            2 | 3 => communicator.gpu_bytes(),
            _ => return Err(Failure::argument(format!("there is no statistic {stat}"))),
        };
        Ok(())
    }
}

nccl! {
    fn ncclCommQueryProperties(comm: Handle, properties: *mut c_void) of comm {
        let communicator = registry::find(comm)?;
        let known = [communicator.rank as c_int, communicator.size as c_int, communicator.gpu, communicator.gpu];
        // SAFETY: C's caller vouches for its pointers.
        unsafe { config::fill_properties(properties, known) }
    }
}
