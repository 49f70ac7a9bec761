//! The job of a handle: the runtime, the memory for plans and workspaces, and the GPU's kernels.

use std::time::Duration;

use symrail::bootstrap::Bootstrap;
use symrail::gpu::{GpuDevice, gpu_of, heap_kind};
use symrail::kernels::cuda::compile::Nvrtc;
use symrail::{Runtime, Settings, Team, TeamHeap, with_timeout};
use symrail_decomp::cuda::GpuKernels;

use crate::guard::Failure;

/// The part of the symmetric heap that is not for workspaces and plans: half of it, but not more than so many bytes.
const OWN: usize = 64 << 20;
/// The part of a GPU's memory for heaps, where no setting gives their size: one of so many parts.
const PART: usize = 4;
/// The time-out of every wait in seconds, unless `SYMRAIL_TIMEOUT_S` is set: programs let ranks wait much longer for one
/// another than PEs of one job usually do.
const TIMEOUT_S: u64 = 600;

/// What a handle's calls need.
pub struct Job {
    /// The kernels, if arrays are in a GPU's memory.
    kernels: Option<GpuKernels>,
    heap: TeamHeap,
    runtime: Runtime,
}

impl Job {
    /// The job that a launcher has started.
    pub fn of_launcher() -> Result<Job, Failure> {
        let settings = Job::settings()?;
        let bootstrap = symrail::bootstrap::open(&settings)?;
        Job::new(Runtime::join(settings, bootstrap)?)
    }

    /// A job of its own. Where settings do not tell, its heap is in the GPUs' memory if all ranks have one. Collective.
    pub fn join(mut bootstrap: Box<dyn Bootstrap>) -> Result<Job, Failure> {
        let mut settings = Job::settings()?;
        let kind = heap_kind::agree(&settings, &mut *bootstrap)?;
        if !Settings::is_set("SYMRAIL_HEAP_KIND") {
            settings.heap_kind = kind;
        }
        if settings.heap_kind == heap_kind::HeapKind::Device && !Settings::is_set("SYMRAIL_HEAP_SIZE") {
            settings.heap_size = Job::share_of_gpus(&mut *bootstrap)?.max(settings.heap_size);
        }
        Job::new(Runtime::join(settings, bootstrap)?)
    }

    fn settings() -> Result<Settings, Failure> {
        let mut settings = Settings::from_env().map_err(symrail::Error::from)?;
        if !Settings::is_set("SYMRAIL_TIMEOUT_S") {
            settings.timeout_s = TIMEOUT_S;
        }
        Ok(settings)
    }

    /// A part of the GPU's memory, divided among the ranks that use this GPU; the least of all ranks.
    fn share_of_gpus(bootstrap: &mut dyn Bootstrap) -> Result<usize, Failure> {
        let gpu = gpu_of(bootstrap.pe())?;
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
        let heap = TeamHeap::new(&runtime, bytes - OWN.min(bytes / 2))?;
        let kernels = match runtime.gpu() {
            None => None,
            Some(gpu) => {
                let nvrtc = Nvrtc::find().map_err(symrail_decomp::Error::from)?;
                Some(GpuKernels::new(&runtime.gpu_device(gpu)?, &nvrtc)?)
            }
        };
        Ok(Job { kernels, heap, runtime })
    }

    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// The memory for workspaces and plans.
    pub fn heap(&self) -> &TeamHeap {
        &self.heap
    }

    /// The failure of a call: for a heap without room with the call, its bytes and the setting.
    pub fn failure(&self, call: &str, error: impl Into<symrail_decomp::Error>) -> Failure {
        let error = error.into();
        let symrail_decomp::Error::Runtime(symrail::Error::TeamHeapFull { bytes, heap_bytes, .. }) = &error else {
            return error.into();
        };
        let (bytes, heap_bytes, now) = (*bytes, *heap_bytes, self.runtime.settings().heap_size);
        Failure::runtime(format!(
            "{call} needs {bytes} bytes, which are not free in one piece in the {heap_bytes} bytes for workspaces; set \
             SYMRAIL_HEAP_SIZE to {} or more on all ranks (now {now})",
            now.saturating_add(bytes)
        ))
    }

    /// The kernels, if arrays are in a GPU's memory.
    pub fn kernels(&self) -> Option<&GpuKernels> {
        self.kernels.as_ref()
    }

    /// The team of all ranks.
    pub fn team(&self) -> Result<Team, Failure> {
        Ok(self.runtime.team_world()?)
    }

    /// The limit of the waits of a step that all ranks take together: `times` times the time-out.
    pub fn limit(&self, times: u64) -> Duration {
        Duration::from_secs(self.runtime.settings().timeout_s.saturating_mul(times))
    }

    /// Waits for the GPU's work. Its errors concern what was computed, and not what follows.
    pub fn settle(&self) {
        if let Some(kernels) = &self.kernels {
            let _ = kernels.device().gpu().synchronize();
        }
    }

    /// Frees the memory and leaves the job together with the other ranks. Nothing made with it exists any more.
    pub fn leave(self) -> Result<(), Failure> {
        let limit = self.limit(1);
        let Job { kernels, heap, runtime } = self;
        let device = kernels.as_ref().map(|kernels| kernels.device().clone());
        drop(kernels);
        with_timeout(limit, || {
            let freed = heap.free();
            let closed = device.map_or(Ok(()), GpuDevice::close);
            let left = runtime.finalize();
            Ok(freed.and(closed).and(left)?)
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn ranks_of_a_launcher_wait_as_long_as_those_of_mpi() {
        let set = std::env::var("SYMRAIL_TIMEOUT_S").ok().and_then(|seconds| seconds.parse().ok());
        let job = Job::of_launcher().unwrap();
        assert_eq!(job.limit(1), Duration::from_secs(set.unwrap_or(TIMEOUT_S)));
        job.leave().unwrap();
    }
}
