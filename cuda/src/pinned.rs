//! Host memory that GPUs can access over PCIe: allocated by the driver, or registered in place.

use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use cudarc::driver::sys::{self, CUdevice_attribute};

use super::driver::{Current, Gpu};
use super::error::{CudaError, Result, cuda, failed};
use super::pointer::DevicePtr;
use super::relaxed::RelaxedCapture;

/// Memory is registered in whole pages of this size.
const PAGE: usize = 4096;

/// Foreign host memory that the GPU can access as long as this value lives.
#[derive(Debug)]
pub struct Registration {
    gpu: Arc<Gpu>,
    base: usize,
    device: DevicePtr,
    bytes: usize,
}

impl Registration {
    /// Registers mapped host memory with a GPU, which pins it.
    ///
    /// # Safety
    /// `base` points to `bytes` mapped bytes that stay mapped as long as the registration lives. No code holds
    /// references into them while a kernel may change them.
    ///
    /// # Errors
    /// The error of the driver: not mapped, registered already, or over the limit of locked memory.
    pub unsafe fn new(gpu: &Arc<Gpu>, base: NonNull<u8>, bytes: usize) -> Result<Self> {
        gpu.bind()?;
        let bytes = bytes.next_multiple_of(PAGE);
        let flags = sys::CU_MEMHOSTREGISTER_PORTABLE | sys::CU_MEMHOSTREGISTER_DEVICEMAP;
        let pointer = base.as_ptr();
        // SAFETY: the caller's promise.
        let answer = unsafe { sys::cuMemHostRegister_v2(pointer.cast(), bytes, flags) };
        if answer != sys::CUresult::CUDA_SUCCESS {
            let detail =
                format!(": {bytes} bytes at {pointer:p}; is the limit of locked memory (ulimit -l) high enough?");
            return Err(failed(gpu.ordinal(), "cuMemHostRegister", answer, detail));
        }
        let mut registration =
            Self { gpu: Arc::clone(gpu), base: pointer.expose_provenance(), device: DevicePtr::NULL, bytes };
        use CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM as SAME;
        registration.device = if gpu.attribute(SAME) == 1 {
            DevicePtr::new(registration.base as u64)
        } else {
            let mut device = 0;
            // SAFETY: the memory was registered above; the driver writes one address.
            unsafe { cuda!(gpu.ordinal(), cuMemHostGetDevicePointer_v2(&raw mut device, pointer.cast(), 0)) }?;
            DevicePtr::new(device)
        };
        Ok(registration)
    }

    /// The GPU's address of the first byte.
    #[must_use]
    pub fn device(&self) -> DevicePtr {
        self.device
    }

    /// The registered length.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let _current = Current::keep();
        if self.gpu.bind().is_ok() {
            // SAFETY: registered by `new`, and still mapped, as its caller promised.
            let _ = unsafe { sys::cuMemHostUnregister(std::ptr::with_exposed_provenance_mut(self.base)) };
        }
    }
}

/// Zeroed host memory from the driver, which every GPU of the process can access.
#[derive(Debug)]
pub struct PinnedBuffer {
    gpu: Arc<Gpu>,
    base: NonNull<u8>,
    device: DevicePtr,
    bytes: usize,
}

// SAFETY: the memory belongs to the process; the pointer gives no access without unsafe code.
unsafe impl Send for PinnedBuffer {}
// SAFETY: as above.
unsafe impl Sync for PinnedBuffer {}

impl PinnedBuffer {
    /// Allocates `bytes`, aligned to a page.
    ///
    /// # Errors
    /// The driver's error.
    pub fn new(gpu: &Arc<Gpu>, bytes: usize) -> Result<Self> {
        gpu.bind()?;
        let (mut host, mut device) = (null_mut(), 0);
        let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
        // SAFETY: the driver writes the address; the memory is ours from then on.
        unsafe { cuda!(gpu.ordinal(), cuMemHostAlloc(&raw mut host, bytes.max(1), flags)) }?;
        let none = CudaError::Lacks { gpu: gpu.ordinal(), what: "gave no address", remedy: "update the driver" };
        let base = NonNull::new(host.cast::<u8>()).ok_or(none)?;
        // SAFETY: freshly allocated with this size, and no other code knows it.
        unsafe { base.as_ptr().write_bytes(0, bytes) };
        // SAFETY: allocated above; the driver writes one address.
        unsafe { cuda!(gpu.ordinal(), cuMemHostGetDevicePointer_v2(&raw mut device, host, 0)) }?;
        Ok(Self { gpu: Arc::clone(gpu), base, device: DevicePtr::new(device), bytes })
    }

    /// The address of the first byte for the host.
    #[must_use]
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// The address of the first byte for GPUs.
    #[must_use]
    pub fn device(&self) -> DevicePtr {
        self.device
    }

    /// Its size.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Reads the 64-bit word number `index`, which a GPU may change; 0 if it is outside.
    #[must_use]
    pub fn word(&self, index: usize) -> u64 {
        if (index + 1) * 8 > self.bytes {
            return 0;
        }
        // SAFETY: inside of the buffer, aligned as a page is; a volatile read of memory that devices write.
        unsafe { self.base.as_ptr().cast::<u64>().add(index).read_volatile() }
    }

    /// Writes the 64-bit word number `index`; no effect if it is outside.
    pub fn set_word(&self, index: usize, value: u64) {
        if (index + 1) * 8 <= self.bytes {
            // SAFETY: as in `word`.
            unsafe { self.base.as_ptr().cast::<u64>().add(index).write_volatile(value) };
        }
    }
}

impl Drop for PinnedBuffer {
    fn drop(&mut self) {
        let _current = Current::keep();
        if self.gpu.bind().is_ok() {
            // As for memory of the GPU: a graph may be captured.
            let _relaxed = RelaxedCapture::begin(self.gpu.ordinal());
            // SAFETY: allocated by `new`, freed once.
            let _ = unsafe { sys::cuMemFreeHost(self.base.as_ptr().cast()) };
        }
    }
}
