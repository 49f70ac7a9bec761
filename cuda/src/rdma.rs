//! GPUDirect RDMA: access of NICs to a GPU's memory.

use std::os::fd::{FromRawFd, OwnedFd};

use cudarc::driver::sys::{self, CUdevice_attribute};

use super::driver::Gpu;
use super::error::{CudaError, Result, cuda};
use super::pointer::DevicePtr;

/// The first driver that exports dmabufs: CUDA 11.7's.
const FIRST_WITH_DMABUF: i32 = 11_070;

/// When NICs' writes to a GPU's memory become visible to it (CUDA's GPUDirect RDMA attributes).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NicWrites {
    /// They become visible before any later write that the GPU observes.
    InOrder,
    /// They become visible after a flush by the host.
    WhenAsked,
    /// NICs cannot access the memory, or the visibility is unknown.
    Never,
}

impl Gpu {
    /// When NICs' writes to this GPU's memory become visible to it.
    #[must_use]
    pub fn nic_writes(&self) -> NicWrites {
        use CUdevice_attribute::{
            CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS as FLUSH,
            CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED as SUPPORTED,
            CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING as ORDERING,
        };
        let ordered = sys::CUGPUDirectRDMAWritesOrdering::CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER as i32;
        let by_host = sys::CUflushGPUDirectRDMAWritesOptions::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST as i32;
        if self.attribute(SUPPORTED) == 0 {
            NicWrites::Never
        } else if self.attribute(ORDERING) >= ordered {
            NicWrites::InOrder
        } else if self.attribute(FLUSH) & by_host != 0 {
            NicWrites::WhenAsked
        } else {
            NicWrites::Never
        }
    }

    /// Makes NICs' writes to this GPU's memory visible to it ([`NicWrites::WhenAsked`]).
    ///
    /// # Errors
    /// The driver's error.
    pub fn see_nic_writes(&self) -> Result<()> {
        self.bind()?;
        let target = sys::CUflushGPUDirectRDMAWritesTarget::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX;
        let scope = sys::CUflushGPUDirectRDMAWritesScope::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER;
        // SAFETY: no pointers.
        unsafe { cuda!(self.ordinal(), cuFlushGPUDirectRDMAWrites(target, scope)) }
    }

    /// Exports this GPU's memory as a dmabuf for NICs. `None` where the driver or the GPU does not create one, so that
    /// only the address remains.
    ///
    /// # Errors
    /// NICs cannot access this GPU, or the error of the driver.
    pub fn dmabuf(&self, at: DevicePtr, bytes: u64) -> Result<Option<OwnedFd>> {
        use CUdevice_attribute::CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED as SUPPORTED;
        if self.nic_writes() == NicWrites::Never {
            let what = "has no memory that NICs reach, or does not say when it sees what they write";
            return Err(CudaError::Lacks { gpu: self.ordinal(), what, remedy: "use SYMRAIL_GPUDIRECT=off" });
        }
        if Gpu::driver_version() < FIRST_WITH_DMABUF || self.attribute(SUPPORTED) == 0 {
            return Ok(None);
        }
        self.bind()?;
        let mut fd: i32 = -1;
        let kind = sys::CUmemRangeHandleType::CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD;
        // SAFETY: for this kind the driver writes one int; it checks the range.
        unsafe {
            let to = (&raw mut fd).cast();
            cuda!(self.ordinal(), cuMemGetHandleForAddressRange(to, at.get(), bytes as usize, kind, 0))
        }?;
        // SAFETY: a new descriptor that is ours.
        Ok(Some(unsafe { OwnedFd::from_raw_fd(fd) }))
    }
}
