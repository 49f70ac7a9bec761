//! Creating and destroying communicators.

use std::ffi::{c_int, c_void};
use std::net::IpAddr;

use symrail::Settings;
use symrail::bootstrap::uid;

use crate::communicator::Communicator;
use crate::export::nccl;
use crate::guard::{Failure, given, result};
use crate::types::{Handle, UniqueId, VERSION};
use crate::{library, registry};

/// The interface on which the rendezvous of new ids is served: the loopback interface, unless a setting names another
/// address.
pub fn interface() -> Result<Option<IpAddr>, Failure> {
    let settings = Settings::from_env().map_err(symrail::Error::from)?;
    let Some(text) = settings.nccl_interface else { return Ok(None) };
    let remedy = "give an address of this machine, such as 10.0.0.1";
    text.parse().map(Some).map_err(|_| Failure::usage(format!("SYMRAIL_NCCL_INTERFACE={text}: {remedy}")))
}

fn join(new: *mut Handle, size: c_int, id: &UniqueId, rank: c_int) -> Result<(), Failure> {
    // SAFETY: C's caller vouches for its pointers.
    let new = unsafe { given("comm", new) }?;
    *new = std::ptr::null_mut();
    if size < 1 || !(0..size).contains(&rank) {
        return Err(Failure::argument(format!("rank {rank} of {size} ranks")));
    }
    *new = registry::add(Communicator::join(id.job()?, rank as u32, size as u32)?);
    Ok(())
}

nccl! {
    fn ncclGetVersion(version: *mut c_int) {
        // SAFETY: C's caller vouches for its pointers.
        *unsafe { given("version", version) }? = VERSION;
        Ok(())
    }
}

nccl! {
    fn ncclGetUniqueId(id: *mut UniqueId) leaves (library::is_needed()) {
        // SAFETY: C's caller vouches for its pointers.
        *unsafe { given("uniqueId", id) }? = UniqueId::of(&uid::create(interface()?)?);
        Ok(())
    }
}

nccl! {
    fn ncclCommInitRank(new: *mut Handle, size: c_int, id: UniqueId, rank: c_int) leaves (!id.is_ours()) {
        join(new, size, &id, rank)
    }
}

nccl! {
    fn ncclCommInitRankConfig(
        new: *mut Handle,
        size: c_int,
        id: UniqueId,
        rank: c_int,
        config: *mut c_void,
    ) leaves (!id.is_ours()) {
        join(new, size, &id, rank)
    }
}

// Of several ids the first one is used.
nccl! {
    fn ncclCommInitRankScalable(
        new: *mut Handle,
        size: c_int,
        rank: c_int,
        ids: c_int,
        id: *mut UniqueId,
        config: *mut c_void,
        // SAFETY: C's caller vouches for its pointers.
    ) leaves (unsafe { id.as_ref() }.is_some_and(|id| !id.is_ours())) {
        if ids < 1 {
            return Err(Failure::argument(format!("{ids} ids, where there has to be one")));
        }
        // SAFETY: C's caller vouches for its pointers.
        let id = *unsafe { given("commId", id) }?;
        join(new, size, &id, rank)
    }
}

nccl! {
    fn ncclCommInitAll(new: *mut Handle, count: c_int, devices: *const c_int) leaves (count != 1 || library::is_needed()) {
        if count != 1 {
            let remedy = "start a process for each GPU, and let each call ncclCommInitRank";
            return Err(Failure::usage(format!("{count} ranks in one process, where one can be: {remedy}")));
        }
        // SAFETY: C's caller vouches for its pointers.
        let device = unsafe { devices.as_ref() }.copied().unwrap_or(0);
        // The GPU stays current until the communicator has it.
        let _gpu = symrail::kernels::cuda::Gpu::open(device)?;
        join(new, 1, &UniqueId::of(&uid::create(None)?), 0)
    }
}

nccl! {
    fn ncclCommFinalize(comm: Handle) of comm {
        registry::find(comm)?.finalize()
    }
}

nccl! {
    fn ncclCommDestroy(comm: Handle) of comm {
        if comm.is_null() {
            return Ok(());
        }
        // Removed after it has ended, so that an abort can find it until then.
        let ended = registry::find(comm)?.finalize();
        // Not there any more if it was aborted meanwhile.
        let _ = registry::take(comm);
        ended
    }
}

nccl! {
    fn ncclCommAbort(comm: Handle) of comm {
        if comm.is_null() { Ok(()) } else { registry::take(comm)?.abort() }
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
