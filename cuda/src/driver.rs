//! One GPU: its context, plain memory, copies.

use std::ops::Deref;
use std::ptr::null_mut;
use std::sync::{Arc, OnceLock};

use cudarc::driver::sys::{self, CUcontext};

use super::device::Device;
use super::error::{CudaError, Result, cuda};
use super::pointer::DevicePtr;
use super::relaxed::RelaxedCapture;

/// A GPU and a context on it, usually the primary one, which lives as long as this value.
#[derive(Debug)]
pub struct Gpu {
    ordinal: i32,
    device: Device,
    context: CUcontext,
    is_primary: bool,
}

// SAFETY: any thread may use contexts; the driver serialises calls where necessary.
unsafe impl Send for Gpu {}
// SAFETY: as above.
unsafe impl Sync for Gpu {}

/// The context that was current on the calling thread. Dropping this value makes it current again.
#[derive(Debug)]
pub struct Current {
    /// Null if there was none.
    context: CUcontext,
}

impl Current {
    /// Records the current context. Does nothing without a driver.
    #[must_use]
    pub fn keep() -> Current {
        let mut context = null_mut();
        if Self::has_driver() {
            // SAFETY: the library is loaded, and writes one handle; it returns an error if it was not started yet.
            let _ = unsafe { sys::cuCtxGetCurrent(&raw mut context) };
        }
        Current { context }
    }

    /// As [`Gpu::has_driver`], which looks up the library each time, but cached.
    fn has_driver() -> bool {
        static HAS: OnceLock<bool> = OnceLock::new();
        *HAS.get_or_init(Gpu::has_driver)
    }
}

impl Drop for Current {
    fn drop(&mut self) {
        if Self::has_driver() {
            // SAFETY: the former current context; the driver refuses one that was destroyed since.
            let _ = unsafe { sys::cuCtxSetCurrent(self.context) };
        }
    }
}

/// How memory can be shared with other processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sharing {
    /// Whether the driver moves its pages between host and GPU.
    pub managed: bool,
    /// Whether it can be shared by a file descriptor, on one host.
    pub descriptor: bool,
    /// Whether it can be shared by a fabric handle, in a whole NVLink domain.
    pub fabric: bool,
}

impl Gpu {
    /// Whether there is a driver. Unlike all other calls, this one starts no threads of the driver.
    #[must_use]
    pub fn has_driver() -> bool {
        // SAFETY: the call only tries to load the library.
        unsafe { sys::is_culib_present() }
    }

    /// The number of GPUs; 0 without a driver.
    #[must_use]
    pub fn count() -> i32 {
        // SAFETY: the call only tries to load the library.
        if !unsafe { sys::is_culib_present() } {
            return 0;
        }
        let mut count = 0;
        // SAFETY: the library is loaded, and writes one number.
        let answer = unsafe { cuda!(-1, cuInit(0)).and_then(|()| cuda!(-1, cuDeviceGetCount(&raw mut count))) };
        if answer.is_ok() { count } else { 0 }
    }

    /// The calling thread's current GPU, if it has chosen one.
    #[must_use]
    pub fn current() -> Option<i32> {
        let (mut context, mut device) = (null_mut(), 0);
        let good = |answer| answer == sys::CUresult::CUDA_SUCCESS;
        // SAFETY: the call tries to load the library. Then the driver writes one handle, null where no context is
        // current, and one number.
        let found = unsafe {
            sys::is_culib_present()
                && good(sys::cuInit(0))
                && good(sys::cuCtxGetCurrent(&raw mut context))
                && !context.is_null()
                && good(sys::cuCtxGetDevice(&raw mut device))
        };
        found.then_some(device)
    }

    /// Whether an address is in a GPU's memory or in managed memory; `false` otherwise, and without a driver.
    #[must_use]
    pub fn has(address: usize) -> bool {
        Self::memory_at(address) == Some(sys::CUmemorytype::CU_MEMORYTYPE_DEVICE as u32)
    }

    /// Whether GPUs can access the memory at an address: GPU memory, or pinned host memory; `false` without a driver.
    #[must_use]
    pub fn reaches(address: usize) -> bool {
        Self::memory_at(address).is_some()
    }

    /// The kind of memory at an address, if the driver knows it.
    fn memory_at(address: usize) -> Option<u32> {
        // SAFETY: the call only tries to load the library.
        if !unsafe { sys::is_culib_present() } {
            return None;
        }
        let mut kind = 0u32;
        let attribute = sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
        // SAFETY: the driver looks the address up, and writes one number.
        let answer =
            unsafe { sys::cuPointerGetAttribute((&raw mut kind).cast(), attribute, address as sys::CUdeviceptr) };
        (answer == sys::CUresult::CUDA_SUCCESS).then_some(kind)
    }

    /// How the memory at an address can be shared with other processes, according to the driver's record of its
    /// allocation. Memory without a record cannot be shared.
    #[must_use]
    pub fn sharing(address: u64) -> Sharing {
        use sys::CUmemAllocationHandleType as Kind;
        use sys::CUpointer_attribute as Attribute;
        // SAFETY: the call only tries to load the library.
        if !unsafe { sys::is_culib_present() } {
            return Sharing::default();
        }
        let ask = |attribute| {
            // It is as wide as the widest of the requested attributes.
            let mut value = 0u64;
            // SAFETY: the driver looks the address up, and writes one number of at most 64 bits.
            let answer =
                unsafe { sys::cuPointerGetAttribute((&raw mut value).cast(), attribute, address as sys::CUdeviceptr) };
            if answer == sys::CUresult::CUDA_SUCCESS { value } else { 0 }
        };
        let kinds = ask(Attribute::CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES);
        let has = |kind: Kind| kinds & u64::from(kind.0) != 0;
        Sharing {
            managed: ask(Attribute::CU_POINTER_ATTRIBUTE_IS_MANAGED) != 0,
            descriptor: has(Kind::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
            fabric: has(Kind::CU_MEM_HANDLE_TYPE_FABRIC),
        }
    }

    /// Opens a GPU and makes its primary context current on this thread.
    ///
    /// # Errors
    /// No driver, no such GPU, or the error of the driver.
    pub fn open(ordinal: i32) -> Result<Arc<Gpu>> {
        // SAFETY: the call only tries to load the library.
        if !unsafe { sys::is_culib_present() } {
            return Err(CudaError::NoDriver);
        }
        let (mut count, mut device, mut context) = (0, 0, null_mut());
        // SAFETY: the library is loaded, and writes the numbers and handles to the given places.
        unsafe {
            cuda!(ordinal, cuInit(0))?;
            cuda!(ordinal, cuDeviceGetCount(&raw mut count))?;
            if !(0..count).contains(&ordinal) {
                return Err(CudaError::NoSuchGpu { ordinal, count });
            }
            cuda!(ordinal, cuDeviceGet(&raw mut device, ordinal))?;
            cuda!(ordinal, cuDevicePrimaryCtxRetain(&raw mut context, device))?;
        }
        let device = Device(device);
        let gpu = Gpu { ordinal, device, context, is_primary: true };
        gpu.bind()?;
        Ok(Arc::new(gpu))
    }

    /// The same GPU with a context of its own, for copies for which kernels wait; or this context, with a warning, if the
    /// driver makes none. The driver has a lock for each context. A thread that loads a module or frees memory holds it
    /// until all kernels of the context have ended, and meanwhile keeps other threads from starting copies in the
    /// context. All contexts of a GPU can access memory that was mapped for it (`cuMemMap`), and portable pinned memory.
    /// The current context of this thread stays.
    #[must_use]
    pub fn for_copies(self: &Arc<Self>) -> Arc<Gpu> {
        self.with_context_of_its_own().unwrap_or_else(|error| {
            tracing::warn!(%error, "copies are made in the program's context: who loads or frees something there while \
                a kernel waits keeps them from it");
            Arc::clone(self)
        })
    }

    /// Fails if the driver is older than CUDA 12.5.
    fn with_context_of_its_own(&self) -> Result<Arc<Gpu>> {
        if Self::driver_version() < 12_050 {
            let what = "has a driver that does not make contexts (cuCtxCreate_v4)";
            return Err(CudaError::Lacks {
                gpu: self.ordinal,
                what,
                remedy: "update the driver to CUDA 12.5 or newer",
            });
        }
        let (_current, mut context) = (Current::keep(), null_mut());
        // SAFETY: the driver writes one handle and makes it current until `_current` is dropped; no parameters mean an
        // ordinary context.
        unsafe { cuda!(self.ordinal, cuCtxCreate_v4(&raw mut context, null_mut(), 0, self.device.0)) }?;
        Ok(Arc::new(Gpu { ordinal: self.ordinal, device: self.device, context, is_primary: false }))
    }

    /// Makes the GPU the calling thread's current one.
    ///
    /// # Errors
    /// The driver's error.
    pub fn bind(&self) -> Result<()> {
        let mut current = null_mut();
        // SAFETY: the context lives as long as `self`; the driver writes one handle. Mostly it is current.
        unsafe {
            match sys::cuCtxGetCurrent(&raw mut current) {
                sys::CUresult::CUDA_SUCCESS if current == self.context => Ok(()),
                _ => cuda!(self.ordinal, cuCtxSetCurrent(self.context)),
            }
        }
    }

    /// The driver's handle of the context, alive as long as this.
    pub(crate) fn context(&self) -> CUcontext {
        self.context
    }

    /// The GPU's number.
    #[must_use]
    pub fn ordinal(&self) -> i32 {
        self.ordinal
    }

    /// The driver's version, as 1000 × major + 10 × minor of the CUDA version that it supports.
    #[must_use]
    pub fn driver_version() -> i32 {
        let mut version = 0;
        // SAFETY: called with a GPU open or after the library was found; the driver writes one number.
        if unsafe { sys::is_culib_present() } {
            // SAFETY: as above.
            let _ = unsafe { sys::cuDriverGetVersion(&raw mut version) };
        }
        version
    }

    /// Allocates zeroed device memory.
    ///
    /// # Errors
    /// The driver's error.
    pub fn alloc(self: &Arc<Self>, bytes: usize) -> Result<DeviceBuffer> {
        self.bind()?;
        let mut at = 0;
        // SAFETY: the driver writes the address; the memory is ours from then on.
        unsafe { cuda!(self.ordinal, cuMemAlloc_v2(&raw mut at, bytes.max(1))) }?;
        let buffer = DeviceBuffer { gpu: Arc::clone(self), at: DevicePtr::new(at), bytes };
        buffer.fill(0)?;
        Ok(buffer)
    }

    /// Sets device memory to a byte, and waits until that is done.
    ///
    /// # Safety
    /// The range is memory of this process that the GPU can access, and no other code relies on its content.
    ///
    /// # Errors
    /// The driver's error.
    pub unsafe fn fill(&self, at: DevicePtr, byte: u8, bytes: usize) -> Result<()> {
        self.bind()?;
        // SAFETY: the caller's promise about the range.
        unsafe { cuda!(self.ordinal, cuMemsetD8_v2(at.get(), byte, bytes)) }?;
        self.synchronize()
    }

    /// Copies to device memory, and waits until the bytes are there. The driver's call alone returns when it has read
    /// the source, and kernels on streams of their own do not wait for the rest.
    ///
    /// # Safety
    /// As for [`Gpu::fill`].
    ///
    /// # Errors
    /// The driver's error.
    pub unsafe fn write(&self, at: DevicePtr, from: &[u8]) -> Result<()> {
        self.bind()?;
        // SAFETY: the slice is read during the call; the caller's promise about the range. Null is the stream of such
        // copies.
        unsafe {
            cuda!(self.ordinal, cuMemcpyHtoD_v2(at.get(), from.as_ptr().cast(), from.len()))?;
            cuda!(self.ordinal, cuStreamSynchronize(null_mut()))
        }
    }

    /// Copies from device memory.
    ///
    /// # Safety
    /// The range is memory of this process that the GPU can access. In a unified address space it could be anything.
    ///
    /// # Errors
    /// The driver's error.
    pub unsafe fn read(&self, at: DevicePtr, to: &mut [u8]) -> Result<()> {
        self.bind()?;
        // SAFETY: the slice is written during the call; the caller's promise about the range.
        unsafe { cuda!(self.ordinal, cuMemcpyDtoH_v2(to.as_mut_ptr().cast(), at.get(), to.len())) }
    }

    /// Waits for all work on the GPU.
    ///
    /// # Errors
    /// The driver's error, of any kernel since the last call.
    pub fn synchronize(&self) -> Result<()> {
        self.bind()?;
        // SAFETY: no arguments.
        unsafe { cuda!(self.ordinal, cuCtxSynchronize()) }
    }
}

impl Deref for Gpu {
    type Target = Device;

    fn deref(&self) -> &Device {
        &self.device
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        // SAFETY: retained in `open`, or made in `with_context_of_its_own`; its memory and streams keep it alive. At the
        // end of the process the driver may be gone already, and there is nothing to do.
        let _ = unsafe {
            if self.is_primary {
                sys::cuDevicePrimaryCtxRelease_v2(self.device.0)
            } else {
                sys::cuCtxDestroy_v2(self.context)
            }
        };
    }
}

/// Device memory, freed when dropped.
#[derive(Debug)]
pub struct DeviceBuffer {
    pub(crate) gpu: Arc<Gpu>,
    pub(crate) at: DevicePtr,
    pub(crate) bytes: usize,
}

impl DeviceBuffer {
    /// Its address on the GPU.
    #[must_use]
    pub fn at(&self) -> DevicePtr {
        self.at
    }

    /// Its size.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Sets the whole buffer to a byte, and waits until that is done.
    ///
    /// # Errors
    /// The driver's error.
    pub fn fill(&self, byte: u8) -> Result<()> {
        // SAFETY: the buffer's own range.
        unsafe { self.gpu.fill(self.at, byte, self.bytes) }
    }

    /// Copies to the buffer at `offset`, and waits until the bytes are there.
    ///
    /// # Errors
    /// A range outside of the buffer, or the error of the driver.
    pub fn write(&self, offset: usize, from: &[u8]) -> Result<()> {
        let at = self.part(offset, from.len())?;
        // SAFETY: checked to be inside of the buffer.
        unsafe { self.gpu.write(at, from) }
    }

    /// Copies from the buffer at `offset`.
    ///
    /// # Errors
    /// A range outside of the buffer, or the error of the driver.
    pub fn read(&self, offset: usize, to: &mut [u8]) -> Result<()> {
        let at = self.part(offset, to.len())?;
        // SAFETY: checked to be inside of the buffer.
        unsafe { self.gpu.read(at, to) }
    }

    /// The address of a part of it.
    fn part(&self, offset: usize, len: usize) -> Result<DevicePtr> {
        match inside(offset, len, self.bytes) {
            true => Ok(self.at + offset as u64),
            false => Err(CudaError::TooLarge {
                what: "a copy to or from a device buffer",
                bytes: (offset as u64).saturating_add(len as u64),
                limit: self.bytes as u64,
                remedy: "copy less, or allocate more",
            }),
        }
    }
}

/// Whether `len` bytes at `offset` are in `0..bytes`.
fn inside(offset: usize, len: usize, bytes: usize) -> bool {
    offset.checked_add(len).is_some_and(|end| end <= bytes)
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        if self.gpu.bind().is_ok() {
            // Python drops objects at any time, also while it captures a graph, which a plain call would end.
            let _relaxed = RelaxedCapture::begin(self.gpu.ordinal());
            // SAFETY: allocated by `Gpu::alloc`, freed once.
            let _ = unsafe { sys::cuMemFree_v2(self.at.get()) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::inside;

    #[test]
    fn copies_stay_inside_of_their_buffer() {
        assert!(inside(0, 8, 8) && inside(8, 0, 8) && inside(3, 5, 8));
        for (offset, len) in [(0, 9), (1, 8), (9, 0), (usize::MAX, 2)] {
            assert!(!inside(offset, len, 8), "{offset} {len}");
        }
    }
}
