//! GPUDirect RDMA: a GPU's memory in NICs' hands.

use std::os::fd::{FromRawFd, OwnedFd};

use cudarc::driver::sys::{self, CUdevice_attribute};

use super::driver::Gpu;
use super::error::{CudaError, Result, cuda};
use super::pointer::DevicePtr;

/// The first driver that exports dmabufs: CUDA 11.7's.
const FIRST_WITH_DMABUF: i32 = 11_070;

/// When a GPU sees what NICs write to its memory (CUDA's GPUDirect RDMA attributes).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NicWrites {
    /// What was written before something else that it sees.
    InOrder,
    /// When the host has asked the driver for it.
    WhenAsked,
    /// NICs do not reach it, or nobody knows when it sees what they write.
    Never,
}

impl Gpu {
    /// When this GPU sees what NICs write to its memory.
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

    /// Lets the GPU see what NICs have written to its memory ([`NicWrites::WhenAsked`]).
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

    /// A dmabuf of this GPU's memory, for NICs; `None` where driver or GPU do not make one, and the address alone has
    /// to do.
    ///
    /// # Errors
    /// NICs do not reach this GPU, or what the driver says.
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
