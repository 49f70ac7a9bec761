//! Low latency by kernels, in the order of a stream. Arrays are addresses, which `symrail/ep` has checked.

use pyo3::prelude::*;
use symrail_ep::cuda::{DeviceLowLatency, DeviceReceived, DeviceShape};

use super::on_gpu::{DeviceBuffers, OnGpu};
use crate::runtime::Runtime;

/// Buffers for few tokens on the GPU that the heap is in or pinned for. `None` after `free`.
#[pyclass(frozen, module = "symrail._symrail")]
pub struct EpDeviceLowLatency(OnGpu<DeviceLowLatency>);

/// Memory for received tokens: addresses of rows, scales, counts and sources.
type Received = (u64, u64, u64, u64);

fn received((rows, scales, counts, sources): Received) -> DeviceReceived {
    DeviceReceived { rows, scales, counts, sources }
}

impl DeviceBuffers for DeviceLowLatency {
    fn free(self) -> symrail_ep::Result<()> {
        DeviceLowLatency::free(self)
    }
}

#[pymethods]
impl EpDeviceLowLatency {
    /// Makes buffers, and compiles the kernels. Collective.
    #[new]
    #[allow(clippy::too_many_arguments)] // the numbers of a shape
    fn new(
        py: Python<'_>,
        runtime: &Runtime,
        most_tokens: usize,
        hidden: usize,
        experts: usize,
        k: usize,
        fp8: bool,
        mask_late: bool,
        timeout: Option<f64>,
    ) -> PyResult<Self> {
        let shape = DeviceShape { most_tokens, hidden, experts, k, fp8 };
        let made = OnGpu::new(py, runtime, timeout, |device, nvrtc| {
            let mut made = DeviceLowLatency::new(device, nvrtc, shape)?;
            made.mask_late(mask_late)?;
            Ok(made)
        });
        made.map(EpDeviceLowLatency)
    }

    /// Frees the memory, when the GPU has ended all rounds. Collective.
    fn free(&self, py: Python<'_>) -> PyResult<()> {
        self.0.free(py)
    }

    /// Excludes a rank, or includes it again.
    fn mask(&self, py: Python<'_>, rank: u32, mask: bool) -> PyResult<()> {
        self.0.call(py, 0, |buffers, _| buffers.mask(rank, mask))
    }

    /// Sends tokens of bfloat16.
    fn send_dispatch(&self, py: Python<'_>, stream: usize, x: u64, topk: u64, tokens: usize) -> PyResult<()> {
        // SAFETY: the caller's tensors, which torch keeps until the stream has come so far.
        self.0.call(py, stream, |buffers, stream| unsafe { buffers.send_dispatch(stream, x, topk, tokens) })
    }

    /// Receives the tokens of all ranks.
    fn receive_dispatch(&self, py: Python<'_>, stream: usize, to: Received) -> PyResult<()> {
        // SAFETY: as above.
        self.0.call(py, stream, |buffers, stream| unsafe { buffers.receive_dispatch(stream, &received(to)) })
    }

    /// Sends back, for each received token, the sum of the experts' rows. `weights` are those of the own tokens.
    fn send_combine(&self, py: Python<'_>, stream: usize, rows: u64, weights: u64, tokens: usize) -> PyResult<()> {
        // SAFETY: as above.
        self.0.call(py, stream, |buffers, stream| unsafe { buffers.send_combine(stream, rows, weights, tokens) })
    }

    /// Adds up the rows of this rank's tokens, and ends the round.
    fn receive_combine(&self, py: Python<'_>, stream: usize, topk: u64, tokens: usize, out: u64) -> PyResult<()> {
        // SAFETY: as above.
        self.0.call(py, stream, |buffers, stream| unsafe { buffers.receive_combine(stream, topk, tokens, out) })
    }

    /// The masked ranks; the GPU masks late ones itself.
    fn masked(&self, py: Python<'_>) -> PyResult<Vec<bool>> {
        self.0.call(py, 0, |buffers, _| buffers.masked())
    }

    /// Raises the errors of rounds that are over.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        self.0.call(py, 0, |buffers, _| buffers.check())
    }
}
