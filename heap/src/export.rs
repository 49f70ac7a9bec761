//! Memory that the CPU does not touch, exported for NICs.

use std::os::fd::{AsFd, OwnedFd};

use symrail_cuda::{DevicePtr, Gpu};
use symrail_transport::device::Export;

/// An exported range, which lives until rails have registered it.
#[derive(Debug)]
pub enum Exported {
    /// Memory of a GPU with this CUDA number, and a dmabuf of all of it, where there is one.
    Gpu(i32, Option<OwnedFd>),
    /// Memory that has another mapping, which begins here.
    Mapping(*mut u8),
}

impl Exported {
    /// A GPU's memory: a dmabuf, or only its address where the driver or the GPU does not create one.
    ///
    /// # Errors
    /// As for [`Gpu::dmabuf`].
    pub fn of_gpu(gpu: &Gpu, at: DevicePtr, bytes: u64) -> symrail_cuda::Result<Self> {
        Ok(Exported::Gpu(gpu.ordinal(), gpu.dmabuf(at, bytes)?))
    }

    /// The form for rails.
    #[must_use]
    pub fn as_export(&self) -> Export<'_> {
        match self {
            Exported::Gpu(ordinal, dmabuf) => {
                Export::Gpu { ordinal: *ordinal, dmabuf: dmabuf.as_ref().map(OwnedFd::as_fd) }
            }
            Exported::Mapping(at) => Export::Mapping(*at),
        }
    }
}
