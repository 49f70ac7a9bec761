//! The job of a handle: the runtime, and what borrows it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use symrail::bootstrap::Bootstrap;
use symrail::gpu::{GpuDevice, heap_kind};
use symrail::kernels::cuda::Gpu;
use symrail::kernels::cuda::compile::Nvrtc;
use symrail::{Runtime, Settings, Team, TeamHeap};
use symrail_decomp::cuda::GpuKernels;

use crate::guard::Failure;

/// The part of the symmetric heap that is not for workspaces and plans: half of it, but not more than so many bytes.
const OWN: usize = 64 << 20;
/// The part of a GPU's memory for heaps, where no setting gives their size: one of so many parts.
const PART: usize = 4;
/// The time-out of every wait in seconds, unless `SYMRAIL_TIMEOUT_S` is set: programs let ranks wait much longer for one
/// another than PEs of one job usually do.
const TIMEOUT_S: u64 = 600;
/// How often a wait looks whether its time is over.
const POLL: Duration = Duration::from_millis(20);

/// What a handle's calls need. Parts are dropped in the order of the fields of [`Owned`].
pub struct Job {
    owned: Owned,
    time_limit: Arc<TimeLimit>,
}

/// When waits of the current call end.
struct TimeLimit {
    since: Instant,
    /// Milliseconds after `since`; 0: never.
    ends: AtomicU64,
}

/// Each part borrows those after it.
struct Owned {
    kernels: Option<*mut GpuKernels<'static>>,
    device: Option<*mut GpuDevice<'static>>,
    heap: Option<*mut TeamHeap<'static>>,
    runtime: *mut Runtime,
}

// SAFETY: the parts are owned boxes, each of which may be used by any thread; a mutex guards the handle.
unsafe impl Send for Job {}

impl Job {
    /// The job that a launcher has started.
    pub fn of_launcher() -> Result<Job, Failure> {
        Job::new(Runtime::init()?)
    }

    /// A job of its own. Where settings do not tell, its heap is in the GPUs' memory if all ranks have one. Collective.
    pub fn join(mut bootstrap: Box<dyn Bootstrap>) -> Result<Job, Failure> {
        let mut settings = Settings::from_env().map_err(symrail::Error::from)?;
        if !Settings::is_set("SYMRAIL_TIMEOUT_S") {
            settings.timeout_s = TIMEOUT_S;
        }
        let kind = heap_kind::agree(&settings, &mut *bootstrap)?;
        if !Settings::is_set("SYMRAIL_HEAP_KIND") {
            settings.heap_kind = kind;
        }
        if settings.heap_kind == heap_kind::HeapKind::Device && !Settings::is_set("SYMRAIL_HEAP_SIZE") {
            settings.heap_size = Job::share_of_gpus(&mut *bootstrap)?.max(settings.heap_size);
        }
        Job::new(Runtime::join(settings, bootstrap)?)
    }

    /// A part of the GPU's memory, divided among the ranks that use this GPU; the least of all ranks.
    fn share_of_gpus(bootstrap: &mut dyn Bootstrap) -> Result<usize, Failure> {
        let gpu = Gpu::open(Gpu::current().unwrap_or(0)).map_err(symrail_decomp::Error::from)?;
        // GPUs of several hosts may have the same address. Shares are then smaller than they could be.
        let name = gpu.pci().map_or_else(String::new, |address| address.to_string());
        let part = (gpu.memory() / PART) as u64;
        let all = bootstrap.allgather(&[&part.to_le_bytes()[..], name.as_bytes()].concat())?;
        let share = |one: &Vec<u8>| {
            let ranks = all.iter().filter(|other| other.get(8..) == one.get(8..)).count();
            let part = one.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
            part as usize / ranks.max(1)
        };
        Ok(all.iter().map(share).min().unwrap_or(0) >> 21 << 21)
    }

    fn new(runtime: Runtime) -> Result<Job, Failure> {
        let bytes = runtime.settings().heap_size;
        let time_limit = Arc::new(TimeLimit { since: Instant::now(), ends: AtomicU64::new(0) });
        let limit = Arc::clone(&time_limit);
        runtime.set_interrupt(move || (!limit.is_over()).then_some(POLL));
        let owned = Owned { kernels: None, device: None, heap: None, runtime: Box::into_raw(Box::new(runtime)) };
        let mut job = Job { owned, time_limit };
        let heap = TeamHeap::new(job.runtime(), bytes - OWN.min(bytes / 2))?;
        job.owned.heap = Some(Box::into_raw(Box::new(heap)));
        if let Some(gpu) = job.runtime().gpu() {
            let nvrtc = Nvrtc::find().map_err(symrail_decomp::Error::from)?;
            let device = Box::into_raw(Box::new(job.runtime().gpu_device(gpu)?));
            job.owned.device = Some(device);
            // SAFETY: the device lives until `owned` is dropped, after the kernels.
            let kernels = GpuKernels::new(unsafe { &*device }, &nvrtc)?;
            job.owned.kernels = Some(Box::into_raw(Box::new(kernels)));
        }
        Ok(job)
    }

    /// The runtime. It lives as long as the job: whoever keeps the reference is dropped before.
    pub fn runtime(&self) -> &'static Runtime {
        // SAFETY: a box that `owned` frees last.
        unsafe { &*self.owned.runtime }
    }

    /// The memory for workspaces and plans, as [`Job::runtime`].
    pub fn heap(&self) -> Result<&'static TeamHeap<'static>, Failure> {
        let none = || Failure::runtime("the job has no memory for teams");
        // SAFETY: as for the runtime.
        self.owned.heap.map(|heap| unsafe { &*heap }).ok_or_else(none)
    }

    /// The kernels, if arrays are in a GPU's memory, as [`Job::runtime`].
    pub fn kernels(&self) -> Option<&'static GpuKernels<'static>> {
        // SAFETY: as for the runtime.
        self.owned.kernels.map(|kernels| unsafe { &*kernels })
    }

    /// The team of all ranks.
    pub fn team(&self) -> Result<Team<'static>, Failure> {
        Ok(self.runtime().team_world()?)
    }

    /// Lets waits end when this call has lasted `times` times the time-out.
    pub fn limit_waits(&self, times: u64) {
        let seconds = self.runtime().settings().timeout_s.saturating_mul(times);
        let ends = (self.time_limit.since.elapsed().as_millis() as u64).saturating_add(seconds.saturating_mul(1000));
        self.time_limit.ends.store(ends.max(1), Ordering::Relaxed);
    }

    /// Waits for the GPU's work. Its errors concern what was computed, and not what follows.
    pub fn settle(&self) {
        if let Some(kernels) = self.kernels() {
            let _ = kernels.device().gpu().synchronize();
        }
    }

    /// Leaves the job together with the other ranks.
    pub fn leave(mut self) -> Result<(), Failure> {
        self.limit_waits(1);
        let closed = self.owned.close();
        let left = self.runtime().leave();
        closed.and(Ok(left?))
    }
}

impl TimeLimit {
    fn is_over(&self) -> bool {
        let ends = self.ends.load(Ordering::Relaxed);
        ends != 0 && self.since.elapsed().as_millis() as u64 > ends
    }
}

impl Owned {
    /// Frees the kernels, and the device's memory together with the other ranks.
    fn close(&mut self) -> Result<(), Failure> {
        // SAFETY: both were boxes, and nothing borrows them any more.
        let device = unsafe {
            drop(self.kernels.take().map(|kernels| Box::from_raw(kernels)));
            self.device.take().map(|device| Box::from_raw(device))
        };
        Ok(device.map_or(Ok(()), |device| device.close())?)
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: all were boxes, and nothing borrows them any more: each part is dropped before those it borrows.
        unsafe {
            drop(self.kernels.take().map(|kernels| Box::from_raw(kernels)));
            drop(self.device.take().map(|device| Box::from_raw(device)));
            drop(self.heap.take().map(|heap| Box::from_raw(heap)));
            drop(Box::from_raw(self.runtime));
        }
    }
}
