//! Windows: memory that ranks register, and its addresses. Calls accept any of the GPU's memory: only one-sided calls and
//! these addresses need windows.

use std::ffi::c_int;

use symrail::kernels::cuda::DevicePtr;
use symrail_core::CPointer;
use symrail_core::registry::{is_known, number};

use crate::export::nccl;
use crate::guard::{Failure, given};
use crate::rank::Joining;
use crate::types::Handle;
use crate::window::{self, Window};
use crate::{group, registry};

/// `NCCL_WIN_COLL_SYMMETRIC`
const SYMMETRIC: c_int = 1;

// In a group it is registered at the end: ranks of one thread wait for one another.
nccl! {
    fn ncclCommWindowRegister(comm: Handle, at: usize, bytes: usize, to: CPointer<Handle>, flags: c_int) of comm {
        group::call(|| {
            let communicator = registry::find(comm)?;
            communicator.check_failed()?;
            given("win", to)?.set(0);
            if at == 0 || bytes == 0 || flags < 0 {
                return Err(Failure::argument(format!("a window of {bytes} bytes at {at:#x} with the flags {flags}")));
            }
            let window = number();
            if flags & SYMMETRIC == 0 {
                communicator.windows.put(window, Window::own(comm, at));
            } else {
                group::join(Joining::new(Some(comm), move || {
                    let made = communicator.with(|inside| {
                        // The others wait for this rank in any case.
                        let prepared = inside.one_sided.prepare();
                        let made = Window::shared(comm, at, bytes, communicator.gpu, &inside.ranks);
                        prepared.and(made)
                    })?;
                    communicator.windows.put(window, made);
                    Ok(None)
                }))?;
            }
            to.set(window);
            Ok(())
        })
    }
}

nccl! {
    fn ncclCommWindowDeregister(comm: Handle, window: Handle) of comm {
        let communicator = registry::find(comm)?;
        if window == 0 {
            return Ok(());
        }
        window::find_of(comm, window)?;
        // Puts under way use its mappings.
        let ended = communicator.wait_for_puts();
        let taken = communicator.windows.take(window);
        taken.map(drop).ok_or_else(|| Failure::argument("the window was deregistered meanwhile"))?;
        ended
    }
}

nccl! {
    fn ncclWinGetUserPtr(comm: Handle, window: Handle, to: CPointer<usize>) of comm {
        registry::find(comm)?;
        let found = window::find_of(comm, window)?;
        given("outUserPtr", to)?.set(found.at);
        Ok(())
    }
}

fn address(at: DevicePtr) -> usize {
    at.get() as usize
}

/// A rank, not checked against the number of ranks.
fn rank(rank: c_int) -> Result<u32, Failure> {
    u32::try_from(rank).map_err(|_| Failure::argument(format!("there is no rank {rank}")))
}

// Null where this rank's GPU has not mapped the peer's memory.
nccl! {
    fn ncclGetPeerDevicePointer(window: Handle, offset: usize, peer: c_int, to: CPointer<usize>)
        leaves (!is_known(window)) {
        let found = window::find(window)?;
        let to = given("outPtr", to)?;
        to.set(found.find(rank(peer)?, offset, 1)?.map_or(0, address));
        Ok(())
    }
}

// The ranks that access one another's memory are all, or these are not numbered.
nccl! {
    fn ncclGetLsaDevicePointer(window: Handle, offset: usize, peer: c_int, to: CPointer<usize>)
        leaves (!is_known(window)) {
        let found = window::find(window)?;
        let to = given("outPtr", to)?;
        let at = found.find(rank(peer)?, offset, 1)??;
        if !found.is_mapped() {
            let remedy = "ncclGetPeerDevicePointer takes numbers of the communicator";
            return Err(Failure::usage(format!("not all ranks' windows are mapped, so they have no numbers: {remedy}")));
        }
        to.set(address(at));
        Ok(())
    }
}

// There is no multicast: null, as NCCL answers without it.
nccl! {
    fn ncclGetLsaMultimemDevicePointer(window: Handle, offset: usize, to: CPointer<usize>)
        leaves (!is_known(window)) {
        window::find(window)?;
        given("outPtr", to)?.set(0);
        Ok(())
    }
}

// `multimem` is a structure of one address.
nccl! {
    fn ncclGetMultimemDevicePointer(window: Handle, offset: usize, multimem: usize, to: CPointer<usize>)
        leaves (!is_known(window)) {
        window::find(window)?;
        let to = given("outPtr", to)?;
        if multimem == 0 {
            return Err(Failure::argument("the multimem handle has no address"));
        }
        to.set(0);
        Ok(())
    }
}
