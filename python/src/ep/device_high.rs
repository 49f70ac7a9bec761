//! High throughput by kernels, in the order of a stream. Arrays are addresses, which `symrail/ep` has checked.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pyo3::prelude::*;
use symrail_ep::cuda::{
    Destinations, DeviceHighThroughput, DeviceParts, DeviceRoutes, DeviceTokens, DeviceTokensReceived,
    HighThroughputShape,
    count::{DeviceCounts, DeviceTopK},
};

use super::on_gpu::{DeviceBuffers, OnGpu};
use super::views::Views;
use super::{element, raised};
use crate::errors::{Kind, raise};
use crate::job::Job;
use crate::memory::Memory;
use crate::runtime::Runtime;

/// Buffers for many tokens on the GPU that the heap is in or pinned for.
#[pyclass(frozen, module = "symrail._symrail")]
pub struct EpDeviceHighThroughput {
    buffers: OnGpu<DeviceHighThroughput>,
    views: Views,
}

/// The routes of a dispatch.
#[pyclass(frozen, module = "symrail._symrail")]
pub struct EpDeviceRoutes(Mutex<DeviceRoutes>);

impl EpDeviceRoutes {
    fn with<T>(&self, with: impl FnOnce(&mut DeviceRoutes) -> T) -> T {
        with(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Addresses of rows, scales, and (if included) indices and weights; bytes and scales of a row; the types of both; the
/// rows that the caller's memory will hold, if it does not depend on those that arrive.
type Tokens = (u64, u64, Option<(u64, u64)>, usize, usize, (String, Option<String>), Option<usize>);

fn tokens((rows, scales, topk, bytes, of_scales, types, room): Tokens) -> DeviceTokens {
    let elements = [types.0.parse().ok(), types.1.and_then(|name| name.parse().ok())];
    DeviceTokens { rows, bytes, scales: (scales, of_scales), topk, elements, room }
}

impl EpDeviceHighThroughput {
    /// A part of the buffers: its address and bytes, if there is one.
    fn view(
        slf: &Bound<'_, Self>,
        part: impl FnOnce(&DeviceHighThroughput) -> symrail_ep::Result<Option<(u64, u64)>> + Send,
    ) -> PyResult<Option<Memory>> {
        let Self { buffers, views } = slf.get();
        let found = buffers.call(slf.py(), 0, |buffers, _| part(buffers))?;
        Ok(found.map(|found| views.view(buffers.job(), slf.clone().into_any().unbind(), found)))
    }
}

impl DeviceBuffers for DeviceHighThroughput {
    fn free(self) -> symrail_ep::Result<()> {
        DeviceHighThroughput::free(self)
    }
}

#[pymethods]
impl EpDeviceHighThroughput {
    /// Makes buffers, and compiles the kernels. Collective.
    #[new]
    #[allow(clippy::too_many_arguments)] // the numbers of a shape
    fn new(
        py: Python<'_>,
        runtime: &Runtime,
        most_tokens: usize,
        room: usize,
        row: usize,
        scales: usize,
        experts: usize,
        k: usize,
        blocks: u32,
        timeout: Option<f64>,
    ) -> PyResult<Self> {
        let shape = HighThroughputShape { most_tokens, room, row, scales, experts, k };
        let make = move |device: &_, nvrtc: &_, limit| DeviceHighThroughput::new(device, nvrtc, shape, blocks, limit);
        Ok(EpDeviceHighThroughput { buffers: OnGpu::new(py, runtime, timeout, make)?, views: Views::default() })
    }

    /// Frees the memory, when the GPU has ended all calls. Collective; no rank has `views`.
    fn free(&self, py: Python<'_>) -> PyResult<()> {
        self.buffers.free(py)
    }

    /// The number of tensors that view the memory.
    fn views(&self) -> usize {
        self.views.count()
    }

    /// Sets the number of multiprocessors of later calls.
    fn set_blocks(&self, py: Python<'_>, blocks: u32) -> PyResult<()> {
        self.buffers.call(py, 0, |buffers, _| buffers.set_blocks(blocks))
    }

    /// The routes of tokens: by `k` indices each, or, with k = 0, by addresses of which ranks get each token and of the
    /// number of each expert's slots.
    fn layout(
        &self,
        py: Python<'_>,
        stream: usize,
        slots: (u64, usize),
        of_ranks: (u64, u64),
        count: usize,
    ) -> PyResult<EpDeviceRoutes> {
        let ((topk, k), (in_rank, per_expert)) = (slots, of_ranks);
        let given = if k > 0 { Destinations::Experts { topk, k } } else { Destinations::Ranks { in_rank, per_expert } };
        let routes = self.buffers.call(py, stream, |buffers, stream| {
            let mut routes = buffers.routes(stream)?;
            // SAFETY: the caller's tensor, which torch keeps until the stream has come so far.
            unsafe { buffers.layout_of(stream, &mut routes, given, count) }?;
            Ok(routes)
        })?;
        Ok(EpDeviceRoutes(Mutex::new(routes)))
    }

    /// The memory of the next combine's rows; None if no host has several ranks.
    fn to_combine(slf: &Bound<'_, Self>) -> PyResult<Option<Memory>> {
        Self::view(slf, |buffers| {
            let shape = buffers.shape();
            Ok(buffers.rows_to_combine()?.map(|at| (at, (shape.room * shape.row) as u64)))
        })
    }

    /// The memory of rows that return, which no call uses between two combines; None if there is none.
    fn returned(slf: &Bound<'_, Self>) -> PyResult<Option<Memory>> {
        Self::view(slf, |buffers| Ok(Some(buffers.returned_rows()).filter(|(_, bytes)| *bytes > 0)))
    }

    /// Sends tokens. Collective.
    fn dispatch(
        &self,
        py: Python<'_>,
        stream: usize,
        routes: &EpDeviceRoutes,
        given: Tokens,
        again: bool,
    ) -> PyResult<()> {
        self.buffers.call(py, stream, |buffers, stream| {
            // SAFETY: the caller's tensors, which torch keeps until the stream has come so far.
            routes.with(|routes| unsafe { buffers.dispatch(stream, routes, &tokens(given), again) })
        })
    }

    /// Raises the errors of calls that are over.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        self.buffers.call(py, 0, |buffers, _| buffers.check())
    }

    /// Waits until all ranks have announced the dispatch: tokens from each rank, slots of each expert, and for each rank its tokens for
    /// each rank.
    fn counts(&self, py: Python<'_>, stream: usize, seconds: Option<f64>) -> PyResult<(Vec<u32>, Vec<u32>, Vec<u32>)> {
        // The GPU ends first, which has the same limit and knows the late ranks.
        let usual = self.buffers.job().runtime().settings().timeout_s as f64;
        let limit = Duration::try_from_secs_f64(2.0 * seconds.unwrap_or(usual));
        let limit = limit.map_err(|error| raise(Kind::Argument, &format!("timeout: {error}")))?;
        self.buffers.call(py, stream, |buffers, stream| {
            let counts = buffers.counts(stream, limit)?;
            Ok((counts.from_ranks, counts.per_expert, counts.matrix))
        })
    }

    /// Receives the tokens: addresses for rows, scales, indices, weights and numbers at the sources.
    fn receive(
        &self,
        py: Python<'_>,
        stream: usize,
        routes: &EpDeviceRoutes,
        given: Tokens,
        to: (u64, u64, u64, u64, u64),
    ) -> PyResult<()> {
        let (rows, scales, indices, weights, sources) = to;
        let to = DeviceTokensReceived { rows, scales, topk: (indices, weights), sources };
        self.buffers.call(py, stream, |buffers, stream| {
            // SAFETY: as above.
            routes.with(|routes| unsafe { buffers.receive(stream, routes, &tokens(given), &to) })
        })
    }

    /// Sends rows back and adds them up: addresses of `count` rows, weights and their sums (if there are any), biases (0:
    /// none), and of the results; indices, and their number for each token, if rows are added in the order of slots.
    #[allow(clippy::too_many_arguments)] // addresses, and what they mean
    fn combine(
        &self,
        py: Python<'_>,
        stream: usize,
        routes: &EpDeviceRoutes,
        places: (u64, u64, u64, u64),
        count: usize,
        weights: Option<(u64, u64)>,
        bytes: usize,
        of: &str,
        slots: Option<(u64, usize)>,
    ) -> PyResult<()> {
        let (rows, bias, second, out) = places;
        let (count, element, biases) = (Some(count), element(of)?, [bias, second]);
        let parts = DeviceParts { rows, count, bytes, element, weights, biases, out, slots };
        self.buffers.call(py, stream, |buffers, stream| {
            // SAFETY: as above.
            routes.with(|routes| unsafe { buffers.combine(stream, routes, &parts) })
        })
    }
}

/// The kernel that counts tokens of ranks and slots of experts.
#[pyclass(frozen, module = "symrail._symrail")]
pub struct EpDeviceLayout(Arc<Job>);

#[pymethods]
impl EpDeviceLayout {
    /// Compiles the kernel. Local.
    #[new]
    fn new(py: Python<'_>, runtime: &Runtime) -> PyResult<Self> {
        let job = Arc::clone(runtime.job());
        job.running()?;
        let gpu = job.streams()?;
        py.detach(|| gpu.layout()).map_err(raised)?;
        Ok(EpDeviceLayout(job))
    }

    /// Counts: the address of indices, the number of tokens and of slots of each; experts and ranks; addresses of the
    /// tokens for each rank, the slots of each expert, and whether each rank gets each token.
    fn count(&self, stream: usize, topk: (u64, usize, usize), of: (usize, usize), to: [u64; 3]) -> PyResult<()> {
        self.0.running()?;
        let [per_rank, per_expert, in_rank] = to;
        let to = DeviceCounts { per_rank, per_expert, in_rank };
        let ((at, tokens, k), (experts, ranks)) = (topk, of);
        let (gpu, topk) = (self.0.streams()?, DeviceTopK { at, tokens, k });
        let stream = gpu.stream(stream);
        // SAFETY: the caller's tensors, which torch keeps until the stream has come so far.
        let counted = gpu.layout().and_then(|kernel| unsafe { kernel.count(&stream, topk, experts, ranks, &to) });
        counted.map_err(raised)
    }
}
