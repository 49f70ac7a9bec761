//! Buffers on the GPU that the heap is in or pinned for, and the job that they belong to.

use std::sync::Arc;

use pyo3::prelude::*;
use symrail::gpu::GpuDevice;
use symrail::kernels::cuda::compile::Nvrtc;
use symrail::kernels::cuda::{Gpu, Stream};
use symrail::with_timeout;
use symrail_ep::WaitLimit;

use super::{FREED, raised, wait_limit};
use crate::deferred_free::{CollectiveFree, DeferredFree};
use crate::errors::{Kind, failed_on_gpu, raise};
use crate::job::Job;
use crate::runtime::Runtime;

/// Buffers that are freed collectively, when the GPU has ended all calls.
pub trait DeviceBuffers: Send + 'static {
    fn free(self) -> symrail_ep::Result<()>;
}

struct Device<B> {
    buffers: B,
    gpu: Arc<Gpu>,
}

impl<B: DeviceBuffers> CollectiveFree for Device<B> {
    const KIND: &'static str = "buffers of symrail.ep on GPUs";

    fn free_on_all(self) -> PyResult<()> {
        self.gpu.synchronize().map_err(failed_on_gpu)?;
        self.buffers.free().map_err(raised)
    }
}

/// Buffers of one kind, and the longest wait of the host for ranks.
pub struct OnGpu<B: DeviceBuffers> {
    buffers: DeferredFree<Device<B>>,
    limit: WaitLimit,
}

impl<B: DeviceBuffers> OnGpu<B> {
    /// Makes buffers, and compiles their kernels. Collective.
    pub fn new(
        py: Python<'_>,
        runtime: &Runtime,
        timeout: Option<f64>,
        make: impl FnOnce(&GpuDevice, &Nvrtc, WaitLimit) -> symrail_ep::Result<B> + Send,
    ) -> PyResult<OnGpu<B>> {
        let job = Arc::clone(runtime.job());
        job.running()?;
        let gpu = job.streams()?;
        let nvrtc = gpu.nvrtc().map_err(failed_on_gpu)?;
        let limit = wait_limit(job.runtime(), timeout)?;
        runtime.free_deferred(py, Some(limit.time.as_secs_f64()), Device::<B>::KIND)?;
        let make = || with_timeout(limit.time, || make(gpu.device(), &nvrtc, limit));
        let buffers = py.detach(make).map_err(raised)?;
        let made = Device { buffers, gpu: Arc::clone(gpu.gpu()) };
        Ok(OnGpu { buffers: DeferredFree::new(job, made), limit })
    }

    /// The job whose heap they are in.
    pub fn job(&self) -> &Arc<Job> {
        &self.buffers.job
    }

    /// The longest wait for ranks.
    pub fn limit(&self) -> WaitLimit {
        self.limit
    }

    /// Makes a call in which all ranks meet, as `Buffers::meet`.
    pub fn meet<T: Send>(&self, py: Python<'_>, call: impl FnOnce(&B) -> symrail_ep::Result<T> + Send) -> PyResult<T> {
        self.call(py, 0, |buffers, _| with_timeout(2 * self.limit.time, || call(buffers)))
    }

    /// Makes a call in the order of a stream.
    pub fn call<T: Send>(
        &self,
        py: Python<'_>,
        stream: usize,
        call: impl FnOnce(&B, &Stream) -> symrail_ep::Result<T> + Send,
    ) -> PyResult<T> {
        self.job().running()?;
        let gpu = self.job().streams()?;
        let made = py.detach(|| self.buffers.with(|made| call(&made.buffers, &gpu.stream(stream))));
        made?.ok_or_else(|| raise(Kind::State, FREED))?.map_err(raised)
    }

    /// Frees the buffers, if they exist. Collective.
    pub fn free(&self, py: Python<'_>) -> PyResult<()> {
        let Some(made) = self.buffers.take(py)? else { return Ok(()) };
        py.detach(move || with_timeout(self.limit.time, || made.free_on_all()))
    }
}
