//! Making communicators, and ending them.

use std::ffi::{c_int, c_void};
use std::net::IpAddr;

use symrail::Settings;
use symrail::bootstrap::uid;

use crate::communicator::Communicator;
use crate::guard::{Failure, given, guarded, result};
use crate::registry;
use crate::types::{Handle, UniqueId, VERSION};

/// Where new ids' rendezvous is served: the loopback interface, unless a setting names another address.
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
    let id = uid::UniqueId::from_bytes(&id.0[..uid::UniqueId::LEN])?;
    *new = registry::add(Communicator::join(id, rank as u32, size as u32)?);
    Ok(())
}

#[unsafe(no_mangle)]
extern "C" fn ncclGetVersion(version: *mut c_int) -> c_int {
    guarded(|| {
        // SAFETY: C's caller vouches for its pointers.
        *unsafe { given("version", version) }? = VERSION;
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn ncclGetUniqueId(id: *mut UniqueId) -> c_int {
    guarded(|| {
        // SAFETY: C's caller vouches for its pointers.
        let to = unsafe { given("uniqueId", id) }?;
        to.0 = [0; 128];
        to.0[..uid::UniqueId::LEN].copy_from_slice(&uid::create(interface()?)?.to_bytes());
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn ncclCommInitRank(new: *mut Handle, size: c_int, id: UniqueId, rank: c_int) -> c_int {
    guarded(|| join(new, size, &id, rank))
}

#[unsafe(no_mangle)]
extern "C" fn ncclCommInitRankConfig(
    new: *mut Handle,
    size: c_int,
    id: UniqueId,
    rank: c_int,
    _config: *mut c_void,
) -> c_int {
    guarded(|| join(new, size, &id, rank))
}

/// Of several ids the first serves all.
#[unsafe(no_mangle)]
extern "C" fn ncclCommInitRankScalable(
    new: *mut Handle,
    size: c_int,
    rank: c_int,
    ids: c_int,
    id: *mut UniqueId,
    _config: *mut c_void,
) -> c_int {
    guarded(|| {
        if ids < 1 {
            return Err(Failure::argument(format!("{ids} ids, where there has to be one")));
        }
        // SAFETY: C's caller vouches for its pointers.
        let id = *unsafe { given("commId", id) }?;
        join(new, size, &id, rank)
    })
}

#[unsafe(no_mangle)]
extern "C" fn ncclCommInitAll(new: *mut Handle, count: c_int, devices: *const c_int) -> c_int {
    guarded(|| {
        if count != 1 {
            let remedy = "start a process for each GPU, and let each call ncclCommInitRank";
            return Err(Failure::usage(format!("{count} ranks in one process, where one can be: {remedy}")));
        }
        // SAFETY: C's caller vouches for its pointers.
        let device = unsafe { devices.as_ref() }.copied().unwrap_or(0);
        // It stays the current one until the communicator has it.
        let _gpu = symrail::kernels::cuda::Gpu::open(device)?;
        let mut id = UniqueId([0; 128]);
        id.0[..uid::UniqueId::LEN].copy_from_slice(&uid::create(None)?.to_bytes());
        join(new, 1, &id, 0)
    })
}

#[unsafe(no_mangle)]
extern "C" fn ncclCommFinalize(comm: Handle) -> c_int {
    guarded(|| registry::find(comm)?.finalize())
}

#[unsafe(no_mangle)]
extern "C" fn ncclCommDestroy(comm: Handle) -> c_int {
    guarded(|| if comm.is_null() { Ok(()) } else { registry::take(comm)?.finalize() })
}

#[unsafe(no_mangle)]
extern "C" fn ncclCommAbort(comm: Handle) -> c_int {
    guarded(|| if comm.is_null() { Ok(()) } else { registry::take(comm)?.abort() })
}

#[unsafe(no_mangle)]
extern "C" fn ncclCommGetAsyncError(comm: Handle, error: *mut c_int) -> c_int {
    guarded(|| {
        // SAFETY: C's caller vouches for its pointers.
        let error = unsafe { given("asyncError", error) }?;
        let communicator = registry::find(comm)?;
        *error = result(|| communicator.check());
        Ok(())
    })
}

fn tell(comm: Handle, to: *mut c_int, what: impl FnOnce(&Communicator) -> c_int) -> c_int {
    guarded(|| {
        // SAFETY: C's caller vouches for its pointers.
        *unsafe { given("the place for the answer", to) }? = what(&*registry::find(comm)?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn ncclCommCount(comm: Handle, count: *mut c_int) -> c_int {
    tell(comm, count, |communicator| communicator.size as c_int)
}

#[unsafe(no_mangle)]
extern "C" fn ncclCommCuDevice(comm: Handle, device: *mut c_int) -> c_int {
    tell(comm, device, |communicator| communicator.gpu)
}

#[unsafe(no_mangle)]
extern "C" fn ncclCommUserRank(comm: Handle, rank: *mut c_int) -> c_int {
    tell(comm, rank, |communicator| communicator.rank as c_int)
}
