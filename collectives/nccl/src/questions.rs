//! What the library and a communicator say of themselves.

use std::ffi::c_int;

use symrail_core::CPointer;

use crate::communicator::{Communicator, State};
use crate::config::Structure;
use crate::export::nccl;
use crate::guard::{Failure, given, result};
use crate::registry;
use crate::types::{Handle, VERSION};

nccl! {
    fn ncclGetVersion(version: CPointer<c_int>) {
        given("version", version)?.set(VERSION);
        Ok(())
    }
}

nccl! {
    fn ncclCommGetAsyncError(comm: Handle, error: CPointer<c_int>) of comm {
        let error = given("asyncError", error)?;
        let communicator = registry::find(comm)?;
        error.set(result(|| communicator.check()));
        Ok(())
    }
}

fn answer(comm: Handle, to: CPointer<c_int>, what: impl FnOnce(&Communicator) -> c_int) -> Result<(), Failure> {
    let communicator = registry::find(comm)?;
    given("the place for the answer", to)?.set(what(&communicator));
    Ok(())
}

nccl! {
    fn ncclCommCount(comm: Handle, count: CPointer<c_int>) of comm {
        answer(comm, count, |communicator| communicator.size as c_int)
    }
}

nccl! {
    fn ncclCommCuDevice(comm: Handle, device: CPointer<c_int>) of comm {
        answer(comm, device, |communicator| communicator.gpu)
    }
}

nccl! {
    fn ncclCommUserRank(comm: Handle, rank: CPointer<c_int>) of comm {
        answer(comm, rank, |communicator| communicator.rank as c_int)
    }
}

nccl! {
    fn ncclCommMemStats(comm: Handle, stat: c_int, value: CPointer<u64>) of comm {
        let communicator = registry::find(comm)?;
        given("value", value)?.set(match stat {
            // ncclStatGpuMemSuspend: none of it can be given up for a time.
            0 => 0,
            // ncclStatGpuMemSuspended
            1 => (communicator.state() == State::Suspended).into(),
            // ncclStatGpuMemPersist, ncclStatGpuMemTotal
            2 | 3 => communicator.gpu_bytes(),
            _ => return Err(Failure::argument(format!("there is no statistic {stat}"))),
        });
        Ok(())
    }
}

nccl! {
    fn ncclCommQueryProperties(comm: Handle, properties: Structure) of comm {
        let communicator = registry::find(comm)?;
        let known = [communicator.rank as c_int, communicator.size as c_int, communicator.gpu, communicator.gpu];
        properties.fill_properties(known)
    }
}
