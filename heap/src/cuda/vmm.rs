//! A symmetric heap in device memory. Addresses are reserved once, so they never change. Memory is mapped segment by
//! segment, and peers can map each segment.

use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use symrail_cuda::sys::{
    self, CUdevice, CUdevice_attribute, CUdeviceptr, CUmemAccessDesc, CUmemAllocationHandleType, CUmemAllocationProp,
    CUmemGenericAllocationHandle,
};

use crate::export::Exported;
use symrail_cuda::error::{CudaError, Result, cuda, failed};
use symrail_cuda::{Device, DevicePtr, Gpu};

/// The counter of segments.
static GENERATION: AtomicU32 = AtomicU32::new(1);

/// How a segment can be shared with other processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum HandleKind {
    /// By a handle of 64 bytes that is valid in a whole NVLink domain.
    Fabric = 1,
    /// By a file descriptor, on one host.
    FileDescriptor = 2,
}

impl HandleKind {
    pub(super) const fn raw(self) -> CUmemAllocationHandleType {
        match self {
            HandleKind::Fabric => CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_FABRIC,
            HandleKind::FileDescriptor => CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        }
    }
}

/// One allocation of the driver in the heap.
#[derive(Debug)]
pub struct DeviceSegment {
    /// Its number.
    pub id: u32,
    /// Its first byte's offset in the heap.
    pub offset: u64,
    /// Its size in bytes.
    pub bytes: u64,
    /// How it can be shared.
    pub kind: HandleKind,
    /// A number that differs for all segments of this process.
    pub generation: u32,
    memory: CUmemGenericAllocationHandle,
}

/// A symmetric heap in the memory of one GPU.
#[derive(Debug)]
pub struct DeviceHeap {
    range: Range,
    granularity: u64,
    segments: Vec<DeviceSegment>,
    committed: u64,
}

impl DeviceHeap {
    /// Reserves addresses for `capacity` bytes, rounded up to the GPU's mapping granularity.
    ///
    /// # Errors
    /// The GPU has no virtual memory management, or the error of the driver.
    pub fn reserve(gpu: &Arc<Gpu>, capacity: u64) -> Result<Self> {
        use CUdevice_attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED as SUPPORTED;
        if gpu.attribute(SUPPORTED) == 0 {
            let what = "has no virtual memory management";
            return Err(CudaError::Lacks { gpu: gpu.ordinal(), what, remedy: "use SYMRAIL_HEAP_KIND=pinned" });
        }
        gpu.bind()?;
        let mut granularity = 0;
        let prop = properties(gpu, HandleKind::FileDescriptor);
        let recommended = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED;
        // SAFETY: the driver reads the properties and writes one number.
        unsafe {
            cuda!(gpu.ordinal(), cuMemGetAllocationGranularity(&raw mut granularity, &raw const prop, recommended))
        }?;
        let granularity = granularity.max(2 << 20) as u64;
        let range = Range::reserve(gpu, capacity.max(1).next_multiple_of(granularity), granularity)?;
        Ok(Self { range, granularity, segments: Vec::new(), committed: 0 })
    }

    /// Maps memory for the first `to` bytes, except for parts that have some already. Returns the new segment, if any.
    ///
    /// # Errors
    /// More than the capacity, or the error of the driver.
    pub fn grow(&mut self, to: u64) -> Result<Option<&DeviceSegment>> {
        let Some(bytes) = to.checked_sub(self.committed).filter(|&n| n > 0) else { return Ok(None) };
        let bytes = bytes.next_multiple_of(self.granularity);
        if bytes > self.range.bytes - self.committed {
            let limit = self.range.bytes;
            let remedy = "raise SYMRAIL_HEAP_SIZE on all PEs";
            return Err(CudaError::TooLarge { what: "a device heap", bytes: to, limit, remedy });
        }
        let gpu = Arc::clone(&self.range.gpu);
        gpu.bind()?;
        let (memory, kind) = create(&gpu, bytes)?;
        if let Err(error) = self.range.map(self.committed, bytes, memory) {
            // SAFETY: created above and mapped nowhere.
            let _ = unsafe { sys::cuMemRelease(memory) };
            return Err(error);
        }
        let id = self.segments.len() as u32;
        let generation = GENERATION.fetch_add(1, Ordering::Relaxed);
        self.segments.push(DeviceSegment { id, offset: self.committed, bytes, kind, generation, memory });
        // SAFETY: the segment that was mapped above.
        unsafe { gpu.fill(self.base() + self.committed, 0, bytes as usize) }?;
        self.committed += bytes;
        tracing::debug!(gpu = gpu.ordinal(), segment = id, bytes, ?kind, "device heap grew");
        Ok(self.segments.last())
    }

    /// Lets all GPUs of this process that can map the heap's GPU access the memory that is mapped now.
    ///
    /// # Errors
    /// The driver's error.
    pub fn open_to_gpus(&self) -> Result<()> {
        let own = self.range.gpu.device();
        for other in Device::all()?.iter().filter(|other| other.device() != own && other.maps(&self.range.gpu)) {
            self.range.open_to(other.device(), 0, self.committed)?;
        }
        Ok(())
    }

    /// All mapped memory, exported for NICs.
    ///
    /// # Errors
    /// As for [`Gpu::dmabuf`].
    pub fn export(&self) -> Result<Exported> {
        Exported::of_gpu(&self.range.gpu, self.base(), self.committed)
    }

    /// The GPU of the heap.
    #[must_use]
    pub fn gpu(&self) -> &Arc<Gpu> {
        &self.range.gpu
    }

    /// The heap's address on the GPU.
    #[must_use]
    pub fn base(&self) -> DevicePtr {
        DevicePtr::new(self.range.base)
    }

    /// Bytes with mapped memory.
    #[must_use]
    pub fn committed(&self) -> u64 {
        self.committed
    }

    /// Bytes of reserved addresses.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.range.bytes
    }

    /// The segments.
    #[must_use]
    pub fn segments(&self) -> &[DeviceSegment] {
        &self.segments
    }

    /// The driver's mapping granularity.
    #[must_use]
    pub fn granularity(&self) -> u64 {
        self.granularity
    }
}

impl Drop for DeviceHeap {
    fn drop(&mut self) {
        self.range.unmap();
        for segment in self.segments.drain(..) {
            // SAFETY: created by `grow`, released once; peers that mapped it hold their own reference.
            let _ = unsafe { sys::cuMemRelease(segment.memory) };
        }
    }
}

impl DeviceSegment {
    /// A file descriptor for it.
    ///
    /// # Errors
    /// The driver's error.
    pub fn export_fd(&self, gpu: &Gpu) -> Result<OwnedFd> {
        gpu.bind()?;
        let mut fd: i32 = -1;
        let kind = HandleKind::FileDescriptor.raw();
        // SAFETY: for this kind the driver writes one int.
        unsafe { cuda!(gpu.ordinal(), cuMemExportToShareableHandle((&raw mut fd).cast(), self.memory, kind, 0)) }?;
        // SAFETY: a new descriptor that is ours.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// The 64 bytes of its fabric handle.
    ///
    /// # Errors
    /// The driver's error.
    pub fn export_fabric(&self, gpu: &Gpu) -> Result<[u8; 64]> {
        gpu.bind()?;
        let mut handle = [0u8; 64];
        let kind = HandleKind::Fabric.raw();
        // SAFETY: for this kind the driver writes 64 bytes.
        unsafe {
            cuda!(gpu.ordinal(), cuMemExportToShareableHandle(handle.as_mut_ptr().cast(), self.memory, kind, 0))
        }?;
        Ok(handle)
    }
}

/// Creates memory with the widest sharing that the machine permits. Only an attempt shows that: the attribute describes
/// the GPU, not the rights of this process.
fn create(gpu: &Gpu, bytes: u64) -> Result<(CUmemGenericAllocationHandle, HandleKind)> {
    use CUdevice_attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED as FABRIC;
    let mut kinds = vec![HandleKind::FileDescriptor];
    if gpu.attribute(FABRIC) == 1 {
        kinds.insert(0, HandleKind::Fabric);
    }
    let mut last = sys::CUresult::CUDA_ERROR_NOT_SUPPORTED;
    for kind in kinds {
        let prop = properties(gpu, kind);
        let mut memory = 0;
        // SAFETY: the driver reads the properties and writes one handle.
        last = unsafe { sys::cuMemCreate(&raw mut memory, bytes as usize, &raw const prop, 0) };
        if last == sys::CUresult::CUDA_SUCCESS {
            return Ok((memory, kind));
        }
        tracing::debug!(gpu = gpu.ordinal(), ?kind, ?last, "device memory cannot be handed on in this way");
    }
    let detail = format!(": {bytes} bytes; lower SYMRAIL_HEAP_SIZE, or look who else uses the GPU's memory");
    Err(failed(gpu.ordinal(), "cuMemCreate", last, detail))
}

fn properties(gpu: &Gpu, kind: HandleKind) -> CUmemAllocationProp {
    // SAFETY: a struct of numbers and a pointer; zero means the default.
    let mut prop: CUmemAllocationProp = unsafe { std::mem::zeroed() };
    prop.type_ = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.requestedHandleTypes = kind.raw();
    prop.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    prop.location.id = gpu.device();
    prop.allocFlags.gpuDirectRDMACapable =
        u8::from(gpu.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED) == 1);
    prop
}

/// Reserved addresses of a GPU, and the mappings in them.
#[derive(Debug)]
pub(super) struct Range {
    pub(super) gpu: Arc<Gpu>,
    pub(super) base: CUdeviceptr,
    pub(super) bytes: u64,
    mapped: Vec<(u64, u64)>,
}

impl Range {
    pub(super) fn reserve(gpu: &Arc<Gpu>, bytes: u64, align: u64) -> Result<Self> {
        gpu.bind()?;
        let mut base = 0;
        // SAFETY: the driver writes one address.
        unsafe { cuda!(gpu.ordinal(), cuMemAddressReserve(&raw mut base, bytes as usize, align as usize, 0, 0)) }?;
        Ok(Self { gpu: Arc::clone(gpu), base, bytes, mapped: Vec::new() })
    }

    /// Maps memory at an offset and lets this GPU read and write it.
    pub(super) fn map(&mut self, offset: u64, bytes: u64, memory: CUmemGenericAllocationHandle) -> Result<()> {
        self.gpu.bind()?;
        let (at, gpu) = (self.base + offset, self.gpu.ordinal());
        // SAFETY: the driver checks that the part is reserved and free, and the handle's size.
        unsafe { cuda!(gpu, cuMemMap(at, bytes as usize, 0, memory, 0)) }?;
        self.mapped.push((offset, bytes));
        let opened = self.open_to(self.gpu.device(), offset, bytes);
        if opened.is_err() {
            self.mapped.pop();
            // SAFETY: mapped above, and not used since.
            let _ = unsafe { sys::cuMemUnmap(at, bytes as usize) };
        }
        opened
    }

    /// Lets a GPU read and write a part that is mapped.
    fn open_to(&self, device: CUdevice, offset: u64, bytes: u64) -> Result<()> {
        // SAFETY: a struct of numbers; zero means the default.
        let mut access: CUmemAccessDesc = unsafe { std::mem::zeroed() };
        access.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
        access.location.id = device;
        access.flags = sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        let (at, gpu) = (self.base + offset, self.gpu.ordinal());
        // SAFETY: the caller has mapped the part; the driver reads one description.
        unsafe { cuda!(gpu, cuMemSetAccess(at, bytes as usize, &raw const access, 1)) }
    }

    /// Removes all mappings. All kernels that use them have ended.
    pub(super) fn unmap(&mut self) {
        let _ = self.gpu.bind();
        for (offset, bytes) in self.mapped.drain(..) {
            // SAFETY: mapped by `map` with this size.
            let _ = unsafe { sys::cuMemUnmap(self.base + offset, bytes as usize) };
        }
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        self.unmap();
        // SAFETY: reserved by `reserve` with this size, and nothing is mapped any more.
        let _ = unsafe { sys::cuMemAddressFree(self.base, self.bytes as usize) };
    }
}
