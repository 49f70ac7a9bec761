//! CPU threads in place of a GPU: the same operations through the same channels, on a machine without one. For GPUs see
//! [`gpu`](crate::gpu).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use symrail_kernels::cpu::{DeviceError, DeviceParts, DeviceTeam, DeviceView, Element, Grid, LaunchError, Thread};

use crate::error::{Error, Result};
use crate::runtime::Runtime;
use crate::symmetric::{SymSlice, Symmetric};
use crate::team::Team;

/// The CPU device of a PE, made by [`Runtime::cpu_device`]: runs closures as kernels.
pub struct CpuDevice {
    view: DeviceView,
    runtime: Runtime,
}

impl Runtime {
    /// Makes CPU threads this PE's device. It can access the part of the heap that is committed now.
    ///
    /// # Errors
    /// The heap is in memory that the CPU cannot access.
    pub fn cpu_device(&self) -> Result<CpuDevice> {
        if self.comm().space.staged.is_some() {
            let what = "a CPU device on a heap in a GPU's memory".into();
            let remedy = "use Runtime::gpu_device, or set SYMRAIL_HEAP_KIND=host".into();
            return Err(symrail_transport::Error::Unsupported { what, by: "CPU threads".into(), remedy }.into());
        }
        // A thread that waits drives the engines, so it does not wait until a proxy thread gets the core.
        let drivers = self.comm().wire.as_ref().map_or_else(|_| Vec::new(), |wire| wire.drivers().to_vec());
        let progress = move || drivers.iter().map(|driver| driver.try_poll()).sum::<usize>() > 0;
        // SAFETY: the bases are those of the runtime's mappings, which the device keeps alive. No copy of the view leaves
        // `launch`, whose threads have ended when it returns.
        let view = unsafe { DeviceView::new(self.cpu_device_parts(Arc::new(progress))) };
        let view =
            view.map_err(|error| Error::System { what: "making CPU threads a device", reason: error.to_string() })?;
        Ok(CpuDevice { view, runtime: self.clone() })
    }

    /// The parts of a CPU device of this PE. Its waiting threads call `progress` (see [`DeviceParts::progress`]). Valid
    /// as long as the runtime. One device at a time uses the channels, and no host thread pushes to them.
    #[must_use]
    pub fn cpu_device_parts(&self, progress: Arc<dyn Fn() -> bool + Send + Sync>) -> DeviceParts {
        let (job, space) = (&self.comm().job, &self.comm().space);
        DeviceParts {
            me: job.me,
            n_pes: job.n_pes,
            heap_base: space.base,
            heap_size: space.committed.load(Ordering::Relaxed) as u64,
            peer_bases: Arc::from(space.bases.to_vec()),
            producers: self.producers().to_vec(),
            progress,
            direct_amos: self.cpu_performs_amos(),
            world: Arc::clone(&self.everybody().area.on_device),
            timeout: Duration::from_secs(job.settings.timeout_s),
        }
    }
}

impl CpuDevice {
    /// The kernels' name of a slice of the heap.
    ///
    /// # Errors
    /// The slice is in a part of the heap that was committed after the device was made.
    pub fn symmetric<S: Symmetric, T: Element>(
        &self,
        slice: &SymSlice<S>,
    ) -> Result<symrail_kernels::cpu::Symmetric<T>> {
        let bytes = slice.len() * size_of::<S>();
        let offset = self.runtime.symmetric_offset(slice.as_ptr().cast(), bytes)?;
        let named = self.view.symmetric(offset, (bytes / T::WIDTH.bytes()) as u64);
        named.map_err(|error| Error::System { what: "naming a slice for the CPU device", reason: error.to_string() })
    }

    /// The kernels' name of `len` elements at a symmetric offset (see [`Runtime::symmetric_offset`]).
    ///
    /// # Errors
    /// The elements are not aligned, or not within the part of the heap that the device can access.
    pub fn symmetric_at<T: Element>(
        &self,
        offset: u64,
        len: u64,
    ) -> std::result::Result<symrail_kernels::cpu::Symmetric<T>, DeviceError> {
        self.view.symmetric(offset, len)
    }

    /// Runs `kernel` on every thread of the grid, and returns the threads' results when all have ended: see
    /// [`Grid::launch`].
    ///
    /// # Errors
    /// The first error or panic of a thread; or the grid could not be started as a whole.
    pub fn launch<R, E, K>(&self, grid: Grid, kernel: K) -> std::result::Result<Vec<R>, LaunchError<E>>
    where
        R: Send,
        E: From<DeviceError> + Send,
        K: Fn(&Thread<'_>) -> std::result::Result<R, E> + Sync,
    {
        grid.launch(&self.view, kernel)
    }

    /// As [`CpuDevice::launch`]; the calling thread calls `watch` every 10 ms until all threads have ended.
    ///
    /// # Errors
    /// As for [`CpuDevice::launch`].
    pub fn launch_watched<R, E, K>(
        &self,
        grid: Grid,
        kernel: K,
        watch: impl FnMut(),
    ) -> std::result::Result<Vec<R>, LaunchError<E>>
    where
        R: Send,
        E: From<DeviceError> + Send,
        K: Fn(&Thread<'_>) -> std::result::Result<R, E> + Sync,
    {
        grid.launch_watched(&self.view, kernel, watch)
    }
}

impl Team {
    /// The team for threads of a CPU device, the same each time. It must not be used after the team is destroyed.
    #[must_use]
    pub fn on_cpu_device(&self) -> Arc<DeviceTeam> {
        Arc::clone(self.on_device())
    }
}
