//! Memory of a GPU that several processes of a host access (CUDA IPC).

use std::sync::Arc;

use cudarc::driver::sys::{self, CUpointer_attribute as Attribute};

use super::driver::{Current, Gpu};
use super::error::{CudaError, Result, cuda};
use super::pointer::DevicePtr;
use super::relaxed::RelaxedCapture;

/// Bytes of a handle.
pub const HANDLE_LEN: usize = size_of::<sys::CUipcMemHandle>();

/// An allocation that another process can map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shareable {
    /// Its first byte.
    pub base: DevicePtr,
    /// The handle for other processes.
    pub handle: [u8; HANDLE_LEN],
}

fn ask(attribute: Attribute, at: DevicePtr) -> Option<u64> {
    // It is as wide as the widest of the attributes that are asked for here.
    let mut value = 0u64;
    // SAFETY: the library is loaded where there is such memory; the driver looks the address up, and writes at most 64
    // bits.
    let answer = unsafe { sys::cuPointerGetAttribute((&raw mut value).cast(), attribute, at.get()) };
    (answer == sys::CUresult::CUDA_SUCCESS).then_some(value)
}

impl Gpu {
    /// The number of the GPU in whose memory an address is; `None` for other memory, and without a driver.
    #[must_use]
    pub fn holding(at: DevicePtr) -> Option<i32> {
        if !Gpu::has(at.get() as usize) {
            return None;
        }
        ask(Attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, at).map(|ordinal| ordinal as i32)
    }

    /// The allocation with `bytes` bytes from an address on, for other processes of this host. Memory of `cudaMalloc`
    /// has a handle; that of pools (`cudaMallocAsync`) and of `cuMemCreate` has none.
    ///
    /// # Errors
    /// [`CudaError::Lacks`] for memory without a handle; the driver's error.
    pub fn share(&self, at: DevicePtr, bytes: u64) -> Result<Shareable> {
        let base = ask(Attribute::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, at).unwrap_or(0);
        let len = ask(Attribute::CU_POINTER_ATTRIBUTE_RANGE_SIZE, at).unwrap_or(0);
        let inside = at.get().checked_sub(base).is_some_and(|front| front + bytes <= len);
        let capable = ask(Attribute::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, at).unwrap_or(0) & 1 == 1;
        if !inside || !capable {
            let what = "has memory that other processes cannot map";
            return Err(CudaError::Lacks { gpu: self.ordinal(), what, remedy: "allocate it by cudaMalloc" });
        }
        let _current = Current::keep();
        self.bind()?;
        let _relaxed = RelaxedCapture::begin(self.ordinal());
        let mut handle = sys::CUipcMemHandle { reserved: [0; HANDLE_LEN] };
        // SAFETY: the driver writes one handle.
        unsafe { cuda!(self.ordinal(), cuIpcGetMemHandle(&raw mut handle, base)) }?;
        Ok(Shareable { base: DevicePtr::new(base), handle: handle.reserved.map(|byte| byte as u8) })
    }

    /// Lets this GPU's copies access the memory of another one of this process, where the two are connected.
    ///
    /// # Errors
    /// The driver's error.
    pub fn reach(&self, other: &Gpu) -> Result<()> {
        if self.ordinal() == other.ordinal() {
            return Ok(());
        }
        let _current = Current::keep();
        self.bind()?;
        let _relaxed = RelaxedCapture::begin(self.ordinal());
        // SAFETY: two contexts that live.
        match unsafe { sys::cuCtxEnablePeerAccess(other.context(), 0) } {
            sys::CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => Ok(()),
            answer => super::error::check(self.ordinal(), "cuCtxEnablePeerAccess", answer),
        }
    }
}

/// An allocation of another process, in the address space of this process's primary context on a GPU. The driver maps
/// an allocation once, however often it is opened there.
#[derive(Debug)]
pub struct Opened {
    gpu: Arc<Gpu>,
    base: DevicePtr,
}

impl Opened {
    /// Maps the allocation behind a handle for a GPU.
    ///
    /// # Errors
    /// The driver's error: the other process has ended, this GPU does not reach that memory, or the handle is one of
    /// this process itself.
    pub fn new(gpu: &Arc<Gpu>, handle: &[u8; HANDLE_LEN]) -> Result<Self> {
        let _current = Current::keep();
        gpu.bind()?;
        let _relaxed = RelaxedCapture::begin(gpu.ordinal());
        let (mut base, handle) = (0, sys::CUipcMemHandle { reserved: handle.map(|byte| byte as _) });
        let flags = sys::CUipcMem_flags::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as u32;
        // SAFETY: the driver checks the handle, and writes one address.
        unsafe { cuda!(gpu.ordinal(), cuIpcOpenMemHandle_v2(&raw mut base, handle, flags)) }?;
        Ok(Opened { gpu: Arc::clone(gpu), base: DevicePtr::new(base) })
    }

    /// Its first byte.
    #[must_use]
    pub fn base(&self) -> DevicePtr {
        self.base
    }

    /// Its length in bytes; 0 if the driver does not know it.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        ask(Attribute::CU_POINTER_ATTRIBUTE_RANGE_SIZE, self.base).unwrap_or(0)
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        let _current = Current::keep();
        if self.gpu.bind().is_ok() {
            let _relaxed = RelaxedCapture::begin(self.gpu.ordinal());
            // SAFETY: opened by `new`, closed once; no copy uses it, as those that start copies see to.
            let _ = unsafe { sys::cuIpcCloseMemHandle(self.base.get()) };
        }
    }
}
