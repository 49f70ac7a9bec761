//! GPUs of NVIDIA. The driver is loaded at the first use; without it only the use of GPU memory fails.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard};

use nix::sys::memfd::MFdFlags;
use serde::{Deserialize, Serialize};
use symrail_core::{encoding, lock};
use symrail_cuda::copies::Copies;
use symrail_cuda::ipc::{HANDLE_LEN, Opened};
use symrail_cuda::{Current, DevicePtr, Event, Gpu, Registration, Stream};
use symrail_heap::copy_engine::{Between, CopyEngine};
use symrail_heap::cuda::CudaCopyEngine;
use symrail_heap::export::Exported;
use symrail_heap::mapping::{Access, MAPPING_ALIGN, Mapping, memory_file};
use symrail_proxy::stage::{MAX_COPIES, STAGING_BUFFER_BYTES};
use symrail_transport::token;

use super::staging::Staging;
use super::{Copying, DeviceMemory, Devices, Mapped};

/// Bytes that a GPU's engine copies once at the start, to itself.
const FIRST_COPIES: usize = 1 << 20;
const WHAT: &str = "shared memory of a GPU";
const NOT_OF_CUDA_MALLOC: &str = "it is not memory of cudaMalloc";
/// Exports for rails are of whole pages.
const PAGE: u64 = 4096;

#[allow(clippy::needless_pass_by_value, reason = "for map_err")]
fn text(error: impl ToString) -> String {
    error.to_string()
}

/// A GPU that is in use.
pub(super) struct Open {
    gpu: Arc<Gpu>,
    /// Copies between its memory and the staging buffer, in a context of their own.
    pub engine: CudaCopyEngine,
    /// For copies between GPUs, in turn: one keeps a link busy while the driver begins the next copy.
    streams: [Arc<Stream>; 2],
}

/// The GPUs that are in use, by their numbers. The staging buffer is pinned with the first one.
#[derive(Default)]
pub(super) struct OpenGpus {
    by_number: BTreeMap<i32, Open>,
    pinned: Option<Registration>,
}

impl OpenGpus {
    pub fn get_mut(&mut self, device: i32) -> Option<&mut Open> {
        self.by_number.get_mut(&device)
    }

    pub fn all(&mut self) -> impl Iterator<Item = &mut Open> {
        self.by_number.values_mut()
    }
}

/// The GPUs of an agent, and its staging buffer.
pub(super) struct Gpus {
    // They are dropped before the staging buffer.
    open: Mutex<OpenGpus>,
    staging_buffer: Mapping,
}

impl Gpus {
    fn new() -> Result<Gpus, String> {
        let len = STAGING_BUFFER_BYTES.next_multiple_of(MAPPING_ALIGN);
        let mapped = memory_file("symrail-agent-staging", MFdFlags::empty(), len as u64)
            .and_then(|file| Mapping::of_file(file.as_fd(), len, Access::Open));
        let staging_buffer = mapped.map_err(|error| format!("{} of {len} bytes: {}", error.call, error.errno))?;
        Ok(Gpus { open: Mutex::default(), staging_buffer })
    }

    pub fn open(&self) -> MutexGuard<'_, OpenGpus> {
        lock(&self.open)
    }

    pub fn staging_buffer(&self) -> (NonNull<u8>, usize) {
        (self.staging_buffer.base(), self.staging_buffer.len())
    }

    /// The GPU with this number, opened if it is not.
    fn gpu(&self, device: i32) -> Result<Arc<Gpu>, String> {
        let mut open = self.open();
        if let Some(known) = open.by_number.get(&device) {
            return Ok(Arc::clone(&known.gpu));
        }
        let _current = Current::keep();
        let gpu = Gpu::open(device).map_err(text)?;
        if open.pinned.is_none() {
            let (base, len) = self.staging_buffer();
            // SAFETY: the mapping is dropped after the registration.
            open.pinned = Some(unsafe { Registration::new(&gpu, base, len) }.map_err(text)?);
        }
        let engine = CudaCopyEngine::new([&gpu, &gpu.for_copies()], FIRST_COPIES, MAX_COPIES).map_err(text)?;
        let stream = || Stream::with_priority(&gpu).map(Arc::new).map_err(text);
        let streams = [stream()?, stream()?];
        open.by_number.insert(device, Open { gpu: Arc::clone(&gpu), engine, streams });
        Ok(gpu)
    }
}

/// What another agent needs to map memory of a GPU.
#[derive(Serialize, Deserialize)]
struct Shared {
    /// By this number agents of the owner's process find the memory, which needs no mapping there.
    number: [u8; 16],
    /// The offset of the memory in its allocation, and the allocation's handle; none if only the process itself can
    /// access it.
    handle: Option<(u64, Vec<u8>)>,
}

/// The memory that agents of this process have shared.
static OF_THIS_PROCESS: Mutex<BTreeMap<[u8; 16], DeviceMemory>> = Mutex::new(BTreeMap::new());

/// Whether there is a driver. It is not started.
#[must_use]
pub fn is_present() -> bool {
    Gpu::has_driver()
}

/// The number of the GPU whose memory an address is in.
#[must_use]
pub fn device_of(address: u64) -> Option<i32> {
    Gpu::holding(DevicePtr::new(address))
}

/// All GPUs that the driver shows.
pub struct Cuda(Arc<Gpus>);

impl Cuda {
    /// Opens no GPU, and does not load the driver.
    ///
    /// # Errors
    /// There is no memory for the staging buffer.
    pub fn new() -> Result<Cuda, String> {
        Ok(Cuda(Arc::new(Gpus::new()?)))
    }
}

impl Devices for Cuda {
    fn copy_engine(&self) -> Result<Box<dyn CopyEngine>, String> {
        Ok(Box::new(Staging::new(Arc::clone(&self.0))))
    }

    fn add(&self, DeviceMemory { device, base, len }: DeviceMemory) -> Result<(), String> {
        for end in [base, base + (len - 1)] {
            if is_present() && device_of(end) != Some(device) {
                return Err(format!("what is at {end:#x} is not in the memory of GPU {device}"));
            }
        }
        self.0.gpu(device).map(drop)
    }

    fn export(&self, DeviceMemory { device, base, len }: DeviceMemory) -> Result<Exported, String> {
        let gpu = self.0.gpu(device)?;
        let _current = Current::keep();
        let exported = Exported::of_gpu(&gpu, DevicePtr::new(base), len.next_multiple_of(PAGE));
        exported.inspect_err(|error| tracing::debug!(%error, len, "rails do not reach this memory")).map_err(text)
    }

    fn remove(&self, memory: DeviceMemory, shared: Option<&[u8]>) {
        let shared = shared.map(|shared| encoding::decode::<Shared>(shared, WHAT, 0));
        if let Some(Ok(Shared { number, .. })) = shared {
            lock(&OF_THIS_PROCESS).remove(&number);
        }
        if let Some(gpu) = self.0.open().get_mut(memory.device) {
            gpu.engine.settle();
        }
    }

    fn share(&self, memory: DeviceMemory) -> Result<Vec<u8>, String> {
        let DeviceMemory { device, base, len } = memory;
        let shareable = self.0.gpu(device)?.share(DevicePtr::new(base), len);
        let shareable = shareable.inspect_err(|error| tracing::info!(%error, len, "other processes stage this memory"));
        let handle = shareable.ok().map(|found| (base - found.base.get(), found.handle.to_vec()));
        let number = token::random_bytes().map_err(text)?;
        lock(&OF_THIS_PROCESS).insert(number, memory);
        Ok(encoding::encode(&Shared { number, handle }))
    }

    fn map(&self, device: i32, shared: &[u8], len: u64) -> Result<Box<dyn Mapped>, String> {
        let Shared { number, handle } = encoding::decode(shared, WHAT, 0).map_err(text)?;
        let gpu = self.0.gpu(device)?;
        let here = lock(&OF_THIS_PROCESS).get(&number).copied();
        let other_length = || "it has another length than its owner's metadata says".to_owned();
        if let Some(memory) = here {
            if memory.len != len {
                return Err(other_length());
            }
            if memory.device != device {
                // Access to all memory of a context is that to its memory of cudaMalloc.
                handle.ok_or(NOT_OF_CUDA_MALLOC)?;
                gpu.reach(&*self.0.gpu(memory.device)?).map_err(text)?;
            }
            return Ok(Box::new(Whole { base: memory.base, _opened: None }));
        }
        let (offset, handle) = handle.ok_or(NOT_OF_CUDA_MALLOC)?;
        let handle: [u8; HANDLE_LEN] = handle.try_into().map_err(|_| "its handle has another size")?;
        let opened = Opened::new(&gpu, &handle).map_err(text)?;
        if offset.checked_add(len).is_none_or(|end| end > opened.bytes()) {
            return Err(other_length());
        }
        Ok(Box::new(Whole { base: opened.base().get().wrapping_add(offset), _opened: Some(opened) }))
    }

    unsafe fn copy(&self, device: i32, copies: &mut dyn Iterator<Item = Between>) -> Result<Box<dyn Copying>, String> {
        let (gpu, stream) = {
            let mut open = self.0.open();
            let gpu = open.get_mut(device).ok_or_else(|| format!("GPU {device} is not in use"))?;
            gpu.streams.swap(0, 1);
            (Arc::clone(&gpu.gpu), Arc::clone(&gpu.streams[0]))
        };
        let mut batch = Copies::default();
        for Between { to, from, len } in copies {
            batch.add(DevicePtr::new(to as u64), DevicePtr::new(from as u64), len);
        }
        let _current = Current::keep();
        let event = Event::new(&gpu).map_err(text)?;
        // SAFETY: the caller's promise.
        let started = unsafe { batch.start(&stream) };
        // Some may be under way where one could not be started. A stream without events runs nothing.
        event.record(&stream).map_err(text)?;
        Ok(Box::new(Started { event, failed: started.err().map(text), _stream: stream }))
    }
}

/// Memory that is accessible as a whole.
struct Whole {
    base: u64,
    _opened: Option<Opened>,
}

impl Mapped for Whole {
    fn base(&self) -> u64 {
        self.base
    }
}

struct Started {
    event: Event,
    /// Why not all copies were started.
    failed: Option<String>,
    _stream: Arc<Stream>,
}

impl Copying for Started {
    fn outcome(&mut self) -> Option<Result<(), String>> {
        let _current = Current::keep();
        match self.event.has_passed() {
            Ok(false) => None,
            Ok(true) => Some(self.failed.take().map_or(Ok(()), Err)),
            Err(error) => Some(Err(text(error))),
        }
    }
}
