//! Creating communicators. In a group they are created at its end.

use std::ffi::c_int;

use symrail::Settings;
use symrail::bootstrap::uid;
use symrail::kernels::cuda::Gpu;
use symrail_core::{CCount, CList, CPointer};

use crate::config::Structure;
use crate::export::nccl;
use crate::guard::{Failure, given};
use crate::rank::Joining;
use crate::types::{Handle, UniqueId};
use crate::{group, library};

/// A new id, whose rendezvous is served on the loopback interface unless the user names another one.
pub fn new_id() -> Result<uid::UniqueId, Failure> {
    let settings = Settings::from_env().map_err(symrail::Error::from)?;
    Ok(uid::create_on(settings.nccl_interface.as_deref())?)
}

/// Joins, or does so at the end of the group.
pub fn join(new: CPointer<Handle>, size: c_int, id: &UniqueId, rank: c_int, config: Structure) -> Result<(), Failure> {
    given("comm", new)?.set(0);
    if size < 1 || !(0..size).contains(&rank) {
        return Err(Failure::argument(format!("rank {rank} of {size} ranks")));
    }
    config.check_for_communicator()?;
    new.set(group::join(Joining::by_id(id.job()?, rank as u32, size as u32)?)?);
    Ok(())
}

nccl! {
    fn ncclGetUniqueId(id: CPointer<UniqueId>) leaves (library::is_needed()) {
        given("uniqueId", id)?.set(UniqueId::of(&new_id()?));
        Ok(())
    }
}

nccl! {
    fn ncclCommInitRank(new: CPointer<Handle>, size: c_int, id: UniqueId, rank: c_int) leaves (!id.is_ours()) {
        group::call(|| join(new, size, &id, rank, Structure::NONE))
    }
}

nccl! {
    fn ncclCommInitRankConfig(
        new: CPointer<Handle>,
        size: c_int,
        id: UniqueId,
        rank: c_int,
        config: Structure,
    ) leaves (!id.is_ours()) {
        group::call(|| join(new, size, &id, rank, config))
    }
}

// Of several ids the first one is used.
nccl! {
    fn ncclCommInitRankScalable(
        new: CPointer<Handle>,
        size: c_int,
        rank: c_int,
        ids: c_int,
        id: CPointer<UniqueId>,
        config: Structure,
    ) leaves (id.get().is_some_and(|id| !id.is_ours())) {
        group::call(|| {
            if ids < 1 {
                return Err(Failure::argument(format!("{ids} ids, where there has to be one")));
            }
            let id = id.get().ok_or_else(|| Failure::argument("commId is a null pointer"))?;
            join(new, size, &id, rank, config)
        })
    }
}

nccl! {
    fn ncclCommInitAll(new: CList<Handle>, count: CCount, devices: CList<c_int>) leaves (library::is_needed()) {
        let size = count.get();
        if size < 1 {
            return Err(Failure::usage(format!("a communicator of {size} ranks in one process")));
        }
        if new.is_null() {
            return Err(Failure::argument("comm is a null pointer"));
        }
        let id = UniqueId::of(&uid::create(None)?);
        group::all(|| {
            let devices = devices.get(count).unwrap_or_else(|| (0..size).collect());
            for ((rank, device), new) in (0..).zip(devices).zip(new.places(count)) {
                // The GPU is current when the rank is named.
                let _gpu = Gpu::open(device)?;
                join(new, size, &id, rank, Structure::NONE)?;
            }
            Ok(())
        })
    }
}
