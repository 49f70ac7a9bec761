//! Joining and leaving.

use std::ffi::c_int;
use std::sync::Arc;

use symrail::bootstrap::uid::{self, UniqueId};
use symrail::kernels::cuda::Gpu;
use symrail::kernels::cuda::compile::Nvrtc;
use symrail::{Runtime, Settings, Team, TeamHeap};
use symrail_decomp::cuda::GpuKernels;

use crate::guard::{Failure, given, guarded};

/// The share of the symmetric heap for workspaces and plans: one of so many parts.
const SHARE: usize = 2;

/// `cudecompHandle_t`. [`cudecompFinalize`] frees all of it.
pub struct Handle {
    /// The GPU of the arrays, if the symmetric heap is in its memory, or pinned for it.
    pub kernels: Option<GpuKernels>,
    pub heap: TeamHeap,
    pub runtime: Runtime,
}

impl Handle {
    fn new(runtime: Runtime) -> Result<Handle, Failure> {
        let bytes = runtime.settings().heap_size / SHARE;
        let heap = TeamHeap::new(&runtime, bytes)?;
        let kernels = runtime.gpu().map(|gpu| Handle::kernels(&runtime, gpu)).transpose()?;
        Ok(Handle { kernels, heap, runtime })
    }

    fn kernels(runtime: &Runtime, gpu: &Arc<Gpu>) -> Result<GpuKernels, Failure> {
        let nvrtc = Nvrtc::find().map_err(symrail_decomp::Error::from)?;
        Ok(GpuKernels::new(&runtime.gpu_device(gpu)?, &nvrtc)?)
    }

    /// The team of all ranks.
    pub fn team(&self) -> Result<Team, Failure> {
        Ok(self.runtime.team_world()?)
    }
}

fn hand_out(to: *mut *mut Handle, join: impl FnOnce() -> symrail::Result<Runtime>) -> c_int {
    guarded(|| {
        // SAFETY: C's caller vouches for its pointers.
        let to = unsafe { given("handle", to) }?;
        *to = Box::into_raw(Box::new(Handle::new(join()?)?));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn symrailDecompInit(handle: *mut *mut Handle) -> c_int {
    hand_out(handle, Runtime::init)
}

#[unsafe(no_mangle)]
extern "C" fn symrailDecompUniqueId(id: *mut [u8; UniqueId::LEN]) -> c_int {
    guarded(|| {
        // SAFETY: C's caller vouches for its pointers.
        let to = unsafe { given("id", id) }?;
        *to = uid::create(None).map_err(symrail::Error::from)?.to_bytes();
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn symrailDecompJoin(handle: *mut *mut Handle, id: *mut [u8; UniqueId::LEN], rank: i32, size: i32) -> c_int {
    hand_out(handle, || {
        // SAFETY: C's caller vouches for its pointers.
        let bytes = unsafe { id.as_ref() }.map_or(&[][..], |id| id);
        let [rank, size] = [rank, size].map(|number| u32::try_from(number).unwrap_or(u32::MAX));
        let bootstrap = uid::open(UniqueId::from_bytes(bytes)?, rank, size)?;
        Runtime::join(Settings::from_env()?, bootstrap)
    })
}

#[unsafe(no_mangle)]
extern "C" fn symrailDecompRank(handle: *mut Handle, rank: *mut i32, size: *mut i32) -> c_int {
    guarded(|| {
        // SAFETY: C's caller vouches for its pointers, and for the handle.
        let (handle, rank, size) = unsafe { (given("handle", handle)?, given("rank", rank)?, given("size", size)?) };
        (*rank, *size) = (handle.runtime.my_pe() as i32, handle.runtime.n_pes() as i32);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudecompFinalize(handle: *mut Handle) -> c_int {
    guarded(|| {
        // SAFETY: C's caller vouches for the handle, which it does not use again.
        let handle = unsafe {
            given("handle", handle)?;
            Box::from_raw(handle)
        };
        let Handle { kernels, heap, runtime } = *handle;
        drop((kernels, heap));
        Ok(runtime.finalize()?)
    })
}
