//! High throughput by kernels, in the order of a stream. Arrays are addresses, which `symrail/ep` has checked.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pyo3::prelude::*;
use symrail_ep::cuda::{
    DeviceHighThroughput, DeviceParts, DeviceRoutes, DeviceTokens, DeviceTokensReceived, HighThroughputShape,
};

use super::element;
use super::on_gpu::OnGpu;
use crate::errors::{Kind, raise};
use crate::memory::{Kept, Memory};
use crate::runtime::Runtime;

/// Buffers for many tokens on the GPU that the heap is in or pinned for. `None` after `free`.
#[pyclass(frozen, module = "symrail._symrail")]
pub struct EpDeviceHighThroughput(OnGpu<DeviceHighThroughput<'static>>);

/// The routes of a dispatch.
#[pyclass(frozen, module = "symrail._symrail")]
pub struct EpDeviceRoutes(Mutex<DeviceRoutes>);

impl EpDeviceRoutes {
    fn with<T>(&self, with: impl FnOnce(&mut DeviceRoutes) -> T) -> T {
        with(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Addresses of rows, scales, and (if included) indices and weights; bytes and scales of a row.
type Tokens = (u64, u64, Option<(u64, u64)>, usize, usize);

fn tokens((rows, scales, topk, bytes, of_scales): Tokens) -> DeviceTokens {
    DeviceTokens { rows, bytes, scales: (scales, of_scales), topk }
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
    ) -> PyResult<Self> {
        let shape = HighThroughputShape { most_tokens, room, row, scales, experts, k };
        let make = |device, nvrtc: &_| DeviceHighThroughput::new(device, nvrtc, shape, blocks);
        OnGpu::new(py, runtime, make).map(EpDeviceHighThroughput)
    }

    /// Frees the memory, when the GPU has ended all calls. Collective.
    fn free(&self, py: Python<'_>) -> PyResult<()> {
        self.0.free(py, DeviceHighThroughput::free)
    }

    /// The routes of tokens.
    fn layout(&self, py: Python<'_>, stream: usize, topk: u64, count: usize) -> PyResult<EpDeviceRoutes> {
        let routes = self.0.call(py, stream, |buffers, stream| {
            let mut routes = buffers.routes(stream)?;
            // SAFETY: the caller's tensor, which torch keeps until the stream has come so far.
            unsafe { buffers.layout(stream, &mut routes, topk, count) }?;
            Ok(routes)
        })?;
        Ok(EpDeviceRoutes(Mutex::new(routes)))
    }

    /// The memory of received tokens, and that of the rows to combine, if this rank shares its host. The first is valid
    /// until the next dispatch begins, both until `free`.
    fn memory(slf: &Bound<'_, Self>) -> PyResult<(Memory, Option<Memory>)> {
        let owner = &slf.get().0;
        let (bytes, received, to_combine) = owner.call(slf.py(), 0, |buffers, _| {
            let shape = buffers.shape();
            Ok((shape.room * shape.row, buffers.rows(), buffers.rows_to_combine()))
        })?;
        let kept = || Kept::of(Arc::clone(&owner.job), slf.clone().into_any().unbind());
        let memory = |at: u64| Memory::new(kept(), at as usize, bytes);
        Ok((memory(received), to_combine.map(memory)))
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
        self.0.call(py, stream, |buffers, stream| {
            // SAFETY: the caller's tensors, which torch keeps until the stream has come so far.
            routes.with(|routes| unsafe { buffers.dispatch(stream, routes, &tokens(given), again) })
        })
    }

    /// Raises the errors of calls that are over.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        self.0.call(py, 0, |buffers, _| buffers.check())
    }

    /// Waits until the dispatch was sent: tokens from each rank, slots of each expert, and for each rank its tokens for
    /// each rank.
    fn counts(
        &self,
        py: Python<'_>,
        stream: usize,
        routes: &EpDeviceRoutes,
        seconds: Option<f64>,
    ) -> PyResult<(Vec<u32>, Vec<u32>, Vec<u32>)> {
        let usual = self.0.job.runtime().settings().timeout_s;
        let limit = seconds.map_or(Ok(Duration::from_secs(2 * usual)), Duration::try_from_secs_f64);
        let limit = limit.map_err(|error| raise(Kind::Argument, &format!("timeout: {error}")))?;
        self.0.call(py, stream, |buffers, stream| {
            routes.with(|routes| {
                let counts = buffers.counts(stream, routes, limit)?;
                Ok((counts.from_ranks, counts.per_expert, routes.matrix()?))
            })
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
        self.0.call(py, stream, |buffers, stream| {
            // SAFETY: as above.
            routes.with(|routes| unsafe { buffers.receive(stream, routes, &tokens(given), &to) })
        })
    }

    /// Sends rows back and adds them up: addresses of rows, weights and their sums (if there are any), biases (0:
    /// none), and of the results.
    #[allow(clippy::too_many_arguments)] // addresses, and what they mean
    fn combine(
        &self,
        py: Python<'_>,
        stream: usize,
        routes: &EpDeviceRoutes,
        places: (u64, u64, u64, u64),
        weights: Option<(u64, u64)>,
        bytes: usize,
        of: &str,
    ) -> PyResult<()> {
        let (rows, bias, second, out) = places;
        let parts = DeviceParts { rows, bytes, element: element(of)?, weights, biases: [bias, second], out };
        self.0.call(py, stream, |buffers, stream| {
            // SAFETY: as above.
            routes.with(|routes| unsafe { buffers.combine(stream, routes, &parts) })
        })
    }
}
