//! One GPU: its context, plain memory, copies.

use std::ops::Deref;
use std::ptr::null_mut;
use std::sync::{Arc, OnceLock};

use cudarc::driver::sys::{self, CUcontext};

use super::device::Device;
use super::error::{CudaError, Result, cuda};
use super::pointer::DevicePtr;

/// A GPU and a context on it, the primary one as a rule, which lives as long as this.
#[derive(Debug)]
pub struct Gpu {
    ordinal: i32,
    device: Device,
    context: CUcontext,
    is_primary: bool,
}

// SAFETY: contexts may be used from any thread; the driver serialises what has to be.
unsafe impl Send for Gpu {}
// SAFETY: as above.
unsafe impl Sync for Gpu {}

/// What was current on the calling thread, and is again when this goes.
#[derive(Debug)]
pub struct Current {
    /// Null where nothing was.
    context: CUcontext,
}

impl Current {
    /// Looks at what is current. Does nothing without a driver.
    #[must_use]
    pub fn keep() -> Current {
        let mut context = null_mut();
        if Self::has_driver() {
            // SAFETY: the driver is there, and writes one handle; it says so where it was not started yet.
            let _ = unsafe { sys::cuCtxGetCurrent(&raw mut context) };
        }
        Current { context }
    }

    /// As [`Gpu::has_driver`], which looks for the library each time.
    fn has_driver() -> bool {
        static HAS: OnceLock<bool> = OnceLock::new();
        *HAS.get_or_init(Gpu::has_driver)
    }
}

impl Drop for Current {
    fn drop(&mut self) {
        if Self::has_driver() {
            // SAFETY: what was current before; a context that is gone since is refused.
            let _ = unsafe { sys::cuCtxSetCurrent(self.context) };
        }
    }
}

/// How memory can be given to other processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sharing {
    /// The driver moves its pages between host and GPU.
    pub managed: bool,
    /// By a file descriptor, on one host.
    pub descriptor: bool,
    /// By a fabric handle, in a whole NVLink domain.
    pub fabric: bool,
}

impl Gpu {
    /// Whether there is a driver. Unlike everything else here this starts no threads of the driver's.
    #[must_use]
    pub fn has_driver() -> bool {
        // SAFETY: it only tries to load the library.
        unsafe { sys::is_culib_present() }
    }

    /// The number of GPUs; 0 without a driver.
    #[must_use]
    pub fn count() -> i32 {
        // SAFETY: it only tries to load the library.
        if !unsafe { sys::is_culib_present() } {
            return 0;
        }
        let mut count = 0;
        // SAFETY: the driver is there; it writes one number.
        let answer = unsafe { cuda!(-1, cuInit(0)).and_then(|()| cuda!(-1, cuDeviceGetCount(&raw mut count))) };
        if answer.is_ok() { count } else { 0 }
    }

    /// The calling thread's current GPU, if it has chosen one.
    #[must_use]
    pub fn current() -> Option<i32> {
        let (mut context, mut device) = (null_mut(), 0);
        let good = |answer| answer == sys::CUresult::CUDA_SUCCESS;
        // SAFETY: it tries to load the library; then the driver writes one handle, null where nothing is current, and
        // one number.
        let found = unsafe {
            sys::is_culib_present()
                && good(sys::cuInit(0))
                && good(sys::cuCtxGetCurrent(&raw mut context))
                && !context.is_null()
                && good(sys::cuCtxGetDevice(&raw mut device))
        };
        found.then_some(device)
    }

    /// Whether an address is that of a GPU's memory, or of managed memory; `false` for all else, and without a driver.
    #[must_use]
    pub fn has(address: usize) -> bool {
        Self::memory_at(address) == Some(sys::CUmemorytype::CU_MEMORYTYPE_DEVICE as u32)
    }

    /// Whether GPUs reach the memory at an address: their own, or host memory that is pinned; `false` without a driver.
    #[must_use]
    pub fn reaches(address: usize) -> bool {
        Self::memory_at(address).is_some()
    }

    /// The kind of memory at an address that the driver knows.
    fn memory_at(address: usize) -> Option<u32> {
        // SAFETY: it only tries to load the library.
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

    /// How the memory at an address can be given to other processes, as the driver tells of its very allocation: not at
    /// all, if the driver does not know it.
    #[must_use]
    pub fn sharing(address: u64) -> Sharing {
        use sys::CUmemAllocationHandleType as Kind;
        use sys::CUpointer_attribute as Attribute;
        // SAFETY: it only tries to load the library.
        if !unsafe { sys::is_culib_present() } {
            return Sharing::default();
        }
        let ask = |attribute| {
            // As wide as the widest of what is asked for.
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
    /// No driver, no such GPU, or what the driver says.
    pub fn open(ordinal: i32) -> Result<Arc<Gpu>> {
        // SAFETY: it only tries to load the library.
        if !unsafe { sys::is_culib_present() } {
            return Err(CudaError::NoDriver);
        }
        let (mut count, mut device, mut context) = (0, 0, null_mut());
        // SAFETY: the driver is there, and writes the numbers and handles it is given places for.
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

    /// The same GPU with a context of its own, for copies that kernels wait for. The driver has a lock for each
    /// context: who loads a module or frees memory holds it until all kernels of the context have ended, and until then
    /// keeps other threads from beginning copies in it. Memory that was mapped for the GPU (`cuMemMap`) and portable
    /// pinned memory are reached from all its contexts. What is current on this thread stays.
    ///
    /// # Errors
    /// The driver's error, or it is older than CUDA 12.5.
    pub fn in_context_of_its_own(&self) -> Result<Arc<Gpu>> {
        if Self::driver_version() < 12_050 {
            let what = "has a driver that does not make contexts (cuCtxCreate_v4)";
            return Err(CudaError::Lacks {
                gpu: self.ordinal,
                what,
                remedy: "update the driver to CUDA 12.5 or newer",
            });
        }
        let (_current, mut context) = (Current::keep(), null_mut());
        // SAFETY: the driver writes one handle, and makes it current, which ends with `_current`; no parameters make it
        // a context like others.
        unsafe { cuda!(self.ordinal, cuCtxCreate_v4(&raw mut context, null_mut(), 0, self.device.0)) }?;
        Ok(Arc::new(Gpu { ordinal: self.ordinal, device: self.device, context, is_primary: false }))
    }

    /// Makes the GPU the calling thread's current one.
    ///
    /// # Errors
    /// The driver's error.
    pub fn bind(&self) -> Result<()> {
        // SAFETY: the context lives as long as `self`.
        unsafe { cuda!(self.ordinal, cuCtxSetCurrent(self.context)) }
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
        // SAFETY: called with a GPU open or after the library was found; it writes one number.
        if unsafe { sys::is_culib_present() } {
            // SAFETY: as above.
            let _ = unsafe { sys::cuDriverGetVersion(&raw mut version) };
        }
        version
    }

    /// Zeroed device memory.
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

    /// Sets device memory to a byte, and waits for it.
    ///
    /// # Safety
    /// The range is memory of this process that the GPU reaches, and that nobody relies on.
    ///
    /// # Errors
    /// The driver's error.
    pub unsafe fn fill(&self, at: DevicePtr, byte: u8, bytes: usize) -> Result<()> {
        self.bind()?;
        // SAFETY: the caller vouches for the range.
        unsafe { cuda!(self.ordinal, cuMemsetD8_v2(at.get(), byte, bytes)) }?;
        self.synchronize()
    }

    /// Copies to device memory, and waits until it is there: by itself the driver returns when it has read the source,
    /// and kernels on streams of their own do not wait for the rest.
    ///
    /// # Safety
    /// As for [`Gpu::fill`].
    ///
    /// # Errors
    /// The driver's error.
    pub unsafe fn write(&self, at: DevicePtr, from: &[u8]) -> Result<()> {
        self.bind()?;
        // SAFETY: the slice is read during the call; the caller vouches for the range. Null is the stream of such
        // copies.
        unsafe {
            cuda!(self.ordinal, cuMemcpyHtoD_v2(at.get(), from.as_ptr().cast(), from.len()))?;
            cuda!(self.ordinal, cuStreamSynchronize(null_mut()))
        }
    }

    /// Copies from device memory.
    ///
    /// # Safety
    /// The range is memory of this process that the GPU reaches: through a unified address space it could be anything.
    ///
    /// # Errors
    /// The driver's error.
    pub unsafe fn read(&self, at: DevicePtr, to: &mut [u8]) -> Result<()> {
        self.bind()?;
        // SAFETY: the slice is written during the call; the caller vouches for the range.
        unsafe { cuda!(self.ordinal, cuMemcpyDtoH_v2(to.as_mut_ptr().cast(), at.get(), to.len())) }
    }

    /// Waits for everything that was started on the GPU.
    ///
    /// # Errors
    /// The driver's error, of any kernel since.
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
        // SAFETY: retained in `open`, or made in `in_context_of_its_own`, whose memory and streams keep it alive. At
        // the end of the process the driver may be gone already; then nothing is to do.
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
    /// The GPU's address of it.
    #[must_use]
    pub fn at(&self) -> DevicePtr {
        self.at
    }

    /// Its size.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Sets all of it to a byte, and waits for it.
    ///
    /// # Errors
    /// The driver's error.
    pub fn fill(&self, byte: u8) -> Result<()> {
        // SAFETY: the buffer's own range.
        unsafe { self.gpu.fill(self.at, byte, self.bytes) }
    }

    /// Copies to it from `offset` on, and waits until it is there.
    ///
    /// # Errors
    /// A range outside of it, or what the driver says.
    pub fn write(&self, offset: usize, from: &[u8]) -> Result<()> {
        let at = self.part(offset, from.len())?;
        // SAFETY: inside of the buffer, as was checked.
        unsafe { self.gpu.write(at, from) }
    }

    /// Copies from it, from `offset` on.
    ///
    /// # Errors
    /// A range outside of it, or what the driver says.
    pub fn read(&self, offset: usize, to: &mut [u8]) -> Result<()> {
        let at = self.part(offset, to.len())?;
        // SAFETY: inside of the buffer, as was checked.
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

/// Whether `len` bytes from `offset` on lie in `0..bytes`.
fn inside(offset: usize, len: usize, bytes: usize) -> bool {
    offset.checked_add(len).is_some_and(|end| end <= bytes)
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        if self.gpu.bind().is_ok() {
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
