//! Creating communicators. In a group they are created at its end.

use std::ffi::{c_int, c_void};
use std::ptr::null;

use symrail::Settings;
use symrail::bootstrap::uid;
use symrail::kernels::cuda::Gpu;

use crate::export::nccl;
use crate::guard::{Failure, given};
use crate::rank::Joining;
use crate::types::{Handle, UniqueId};
use crate::{config, group, library};

/// A new id, whose rendezvous is served on the loopback interface unless the user names another one.
pub fn new_id() -> Result<uid::UniqueId, Failure> {
    let settings = Settings::from_env().map_err(symrail::Error::from)?;
    Ok(uid::create_on(settings.nccl_interface.as_deref())?)
}

/// Joins, or does so at the end of the group.
pub fn join(new: *mut Handle, size: c_int, id: &UniqueId, rank: c_int, config: *const c_void) -> Result<(), Failure> {
    // SAFETY: C's caller vouches for its pointers.
    let new = unsafe { given("comm", new) }?;
    *new = std::ptr::null_mut();
    if size < 1 || !(0..size).contains(&rank) {
        return Err(Failure::argument(format!("rank {rank} of {size} ranks")));
    }
    // SAFETY: as above.
    unsafe { config::of_communicator(config) }?;
    *new = group::join(Joining::by_id(id.job()?, rank as u32, size as u32)?)?;
    Ok(())
}

nccl! {
    fn ncclGetUniqueId(id: *mut UniqueId) leaves (library::is_needed()) {
        // SAFETY: C's caller vouches for its pointers.
        *unsafe { given("uniqueId", id) }? = UniqueId::of(&new_id()?);
        Ok(())
    }
}

nccl! {
    fn ncclCommInitRank(new: *mut Handle, size: c_int, id: UniqueId, rank: c_int) leaves (!id.is_ours()) {
        group::call(|| join(new, size, &id, rank, null()))
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
        group::call(|| join(new, size, &id, rank, config))
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
        group::call(|| {
            if ids < 1 {
                return Err(Failure::argument(format!("{ids} ids, where there has to be one")));
            }
            // SAFETY: C's caller vouches for its pointers.
            let id = *unsafe { given("commId", id) }?;
            join(new, size, &id, rank, config)
        })
    }
}

nccl! {
    fn ncclCommInitAll(new: *mut Handle, count: c_int, devices: *const c_int) leaves (library::is_needed()) {
        if count < 1 {
            return Err(Failure::usage(format!("a communicator of {count} ranks in one process")));
        }
        // SAFETY: C's caller vouches for its pointers.
        let _ = unsafe { given("comm", new) }?;
        let id = UniqueId::of(&uid::create(None)?);
        group::all(|| {
            for rank in 0..count {
                let place = rank as usize;
                // SAFETY: as above: there is a place for each rank, and a device unless the list is missing.
                let (new, device) = unsafe {
                    (new.add(place), if devices.is_null() { rank } else { devices.add(place).read() })
                };
                // The GPU is current when the rank is named.
                let _gpu = Gpu::open(device)?;
                join(new, count, &id, rank, null())?;
            }
            Ok(())
        })
    }
}
