//! Buffers on the GPU that the heap is in or pinned for, and the job that they belong to.

use std::sync::{Arc, Mutex, PoisonError};

use pyo3::prelude::*;
use pyo3::sync::MutexExt;
use symrail::gpu::GpuDevice;
use symrail::kernels::cuda::Stream;
use symrail::kernels::cuda::compile::Nvrtc;

use super::raised;
use crate::errors::{Kind, failed_on_gpu, raise};
use crate::job::Job;
use crate::runtime::Runtime;

/// Buffers of one kind. `None` after `free`.
pub struct OnGpu<B> {
    buffers: Mutex<Option<B>>,
    pub job: Arc<Job>,
}

impl<B: Send> OnGpu<B> {
    /// Makes buffers, and compiles their kernels.
    pub fn new(
        py: Python<'_>,
        runtime: &Runtime,
        make: impl FnOnce(&GpuDevice, &Nvrtc) -> symrail_ep::Result<B> + Send,
    ) -> PyResult<OnGpu<B>> {
        let job = Arc::clone(runtime.job());
        job.running()?;
        let gpu = job.streams()?;
        let nvrtc = gpu.nvrtc().map_err(failed_on_gpu)?;
        let made = py.detach(|| make(gpu.device(), &nvrtc)).map_err(raised)?;
        Ok(OnGpu { buffers: Mutex::new(Some(made)), job })
    }

    /// Makes a call in the order of a stream.
    pub fn call<T: Send>(
        &self,
        py: Python<'_>,
        stream: usize,
        call: impl FnOnce(&B, &Stream) -> symrail_ep::Result<T> + Send,
    ) -> PyResult<T> {
        self.job.running()?;
        let gpu = self.job.streams()?;
        let made = py.detach(|| {
            let buffers = self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
            buffers.as_ref().map(|buffers| call(buffers, &gpu.stream(stream)))
        });
        made.ok_or_else(|| raise(Kind::State, "these buffers were given back by destroy()"))?.map_err(raised)
    }

    /// Frees the buffers by `free`, if they exist.
    pub fn free(&self, py: Python<'_>, free: impl FnOnce(B) -> symrail_ep::Result<()> + Send) -> PyResult<()> {
        let buffers = self.buffers.lock_py_attached(py).unwrap_or_else(PoisonError::into_inner).take();
        match buffers {
            Some(buffers) => py.detach(move || free(buffers)).map_err(raised),
            None => Ok(()),
        }
    }
}
