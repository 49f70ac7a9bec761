//! Low latency by kernels, in the order of a stream. Arrays are addresses, which `symrail/ep` has checked.

use std::sync::{Mutex, OnceLock, PoisonError};

use pyo3::prelude::*;
use symrail::kernels::cuda::Stream;
use symrail_core::lock;
use symrail_ep::Error;
use symrail_ep::cuda::{
    DeviceLowLatency, DeviceReceived, DeviceReturns, DeviceShape, LowLatencyMemory, LowLatencyTokens,
};

use super::on_gpu::{DeviceBuffers, OnGpu};
use super::tensors::{CombineCall, DispatchCall, Of, Results, dispatch_tensors, ep_low_latency_combine_tensors};
use super::views::Views;
use crate::errors::failed_on_gpu;
use crate::memory::Memory;
use crate::runtime::Runtime;

const NO_DISPATCH: &str = "there was no low_latency_dispatch";

/// Buffers for few tokens on the GPU that the heap is in or pinned for. `None` after `free`.
#[pyclass(frozen, module = "symrail._symrail")]
pub struct EpDeviceLowLatency(OnGpu<LowLatency>, Views);

/// Buffers, or memory for them until their shape is known.
struct LowLatency {
    memory: Mutex<Option<LowLatencyMemory>>,
    buffers: OnceLock<DeviceLowLatency>,
}

impl LowLatency {
    fn of(buffers: DeviceLowLatency) -> LowLatency {
        LowLatency { memory: Mutex::default(), buffers: OnceLock::from(buffers) }
    }

    fn buffers(&self) -> symrail_ep::Result<&DeviceLowLatency> {
        self.buffers.get().ok_or(Error::Order { what: NO_DISPATCH })
    }

    /// Includes masked ranks again, on ranks without a call, too.
    fn connect(&self, ranks: &[u32]) -> symrail_ep::Result<()> {
        match (self.buffers.get(), lock(&self.memory).as_mut()) {
            (Some(buffers), _) => buffers.connect(ranks),
            (None, Some(memory)) => memory.connect(ranks),
            (None, None) => Err(Error::Order { what: NO_DISPATCH }),
        }
    }
}

/// Addresses of rows, scales, counts, sources, ranges (behind which is the dispatch's number), sums of counts (0: none)
/// and waits (0: none); whether scales are packed.
pub type Received = (u64, u64, u64, u64, u64, u64, u64, u64, bool);

fn received((rows, scales, counts, sources, ranges, number, all_counts, waits, packs): Received) -> DeviceReceived {
    DeviceReceived { rows, scales, counts, sources, ranges, number, all_counts, waits, packs }
}

fn form(encodes: bool) -> DeviceReturns {
    if encodes { DeviceReturns::Encoded } else { DeviceReturns::Plain }
}

type Array<'py> = Bound<'py, PyAny>;

/// A combine's rows: addresses of rows, weights and the dispatch's number; the number of this rank's tokens.
pub type Parts = (u64, u64, u64, usize);

/// What a combine makes: addresses of indices, sums and waits (0: none); the number of this rank's tokens.
pub type Sums = (u64, u64, u64, usize);

impl DeviceBuffers for LowLatency {
    fn free(self) -> symrail_ep::Result<()> {
        let memory = self.memory.into_inner().unwrap_or_else(PoisonError::into_inner);
        memory.map_or(Ok(()), LowLatencyMemory::free)?;
        self.buffers.into_inner().map_or(Ok(()), DeviceLowLatency::free)
    }
}

impl EpDeviceLowLatency {
    fn call<T: Send>(
        &self,
        py: Python<'_>,
        stream: usize,
        call: impl FnOnce(&DeviceLowLatency, &Stream) -> symrail_ep::Result<T> + Send,
    ) -> PyResult<T> {
        self.0.call(py, stream, |made, stream| call(made.buffers()?, stream))
    }

    fn launch_dispatch(
        &self,
        py: Python<'_>,
        stream: usize,
        of: LowLatencyTokens,
        to: Option<Received>,
    ) -> PyResult<()> {
        self.call(py, stream, |buffers, stream| {
            buffers.check()?;
            // SAFETY: the caller's tensors, which torch keeps until the stream has come so far.
            unsafe {
                match to {
                    Some(to) => buffers.dispatch(stream, &of, &received(to)),
                    None => buffers.send_dispatch(stream, &of),
                }
            }
        })
    }

    fn launch_combine(
        &self,
        py: Python<'_>,
        stream: usize,
        (rows, weights, number, count): Parts,
        encodes: bool,
        to: Option<Sums>,
    ) -> PyResult<()> {
        let (parts, form) = ([rows, weights, number], form(encodes));
        self.call(py, stream, |buffers, stream| {
            buffers.check()?;
            // SAFETY: as above.
            unsafe {
                match to {
                    Some((topk, out, waits, _)) => buffers.combine(stream, parts, count, [topk, out, waits], form),
                    None => buffers.send_combine(stream, parts, count, form),
                }
            }
        })
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
        mask_late: bool,
        timeout: Option<f64>,
    ) -> PyResult<Self> {
        let shape = DeviceShape { most_tokens, hidden, experts, k };
        let made = OnGpu::new(py, runtime, timeout, |device, nvrtc, limit| {
            let made = DeviceLowLatency::new(device, nvrtc, shape, limit)?;
            made.mask_late(mask_late)?;
            Ok(LowLatency::of(made))
        });
        Ok(EpDeviceLowLatency(made?, Views::default()))
    }

    /// Makes memory of so many bytes for buffers whose shape is told later. Collective.
    #[staticmethod]
    fn reserved(py: Python<'_>, runtime: &Runtime, bytes: usize, timeout: Option<f64>) -> PyResult<Self> {
        let made = OnGpu::new(py, runtime, timeout, |device, _, _| {
            let memory = LowLatencyMemory::new(device, bytes)?;
            Ok(LowLatency { memory: Mutex::new(Some(memory)), buffers: OnceLock::new() })
        });
        Ok(EpDeviceLowLatency(made?, Views::default()))
    }

    /// Tells the shape of buffers in reserved memory, in which late ranks are masked. Local. Returns whether the memory
    /// was not used before, and they fit.
    fn shape(&self, py: Python<'_>, most_tokens: usize, hidden: usize, experts: usize, k: usize) -> PyResult<bool> {
        let shape = DeviceShape { most_tokens, hidden, experts, k };
        let gpu = self.0.job().streams()?;
        let nvrtc = gpu.nvrtc().map_err(failed_on_gpu)?;
        self.0.call(py, 0, |made, _| {
            let mut memory = lock(&made.memory);
            // An earlier call has failed behind this point.
            if let Some(buffers) = made.buffers.get().filter(|buffers| *buffers.shape() == shape) {
                return buffers.mask_late(true).map(|()| true);
            }
            let Some(fits) = memory.take_if(|memory| memory.fits(&shape)) else { return Ok(false) };
            let buffers = DeviceLowLatency::within(fits, &nvrtc, shape, self.0.limit()).map_err(|refused| {
                let (unused, error) = *refused;
                *memory = Some(unused);
                error
            })?;
            made.buffers.get_or_init(|| buffers).mask_late(true).map(|()| true)
        })
    }

    /// Frees the memory, when the GPU has ended all calls. Collective; no rank has `views`.
    fn free(&self, py: Python<'_>) -> PyResult<()> {
        self.0.free(py)
    }

    /// The number of tensors that view the memory.
    fn views(&self) -> usize {
        self.1.count()
    }

    /// The memory of rows that return, which no call uses between two combines.
    fn returned(slf: &Bound<'_, Self>) -> PyResult<Memory> {
        let Self(buffers, views) = slf.get();
        let part = buffers.call(slf.py(), 0, |made, _| made.buffers()?.returned_rows())?;
        Ok(views.view(buffers.job(), slf.clone().into_any().unbind(), part))
    }

    /// Excludes a rank, or includes it again.
    fn mask(&self, py: Python<'_>, rank: u32, mask: bool) -> PyResult<()> {
        self.call(py, 0, |buffers, _| buffers.mask(rank, mask))
    }

    /// Includes masked ranks again. Collective over all ranks.
    fn connect(&self, py: Python<'_>, ranks: Vec<u32>) -> PyResult<()> {
        self.0.meet(py, |made| made.connect(&ranks))
    }

    /// Raises the errors of calls that are over. Sends tokens of bfloat16, and with `receives` receives those of all
    /// ranks. Returns the results, and what `receive_dispatch` takes; None, before anything is sent, if the tensors need
    /// buffers of another shape than `prepared`.
    fn dispatch<'py>(
        &self,
        py: Python<'py>,
        stream: usize,
        receives: bool,
        of: Of,
        call: DispatchCall<'py>,
    ) -> PyResult<Option<(Results<'py>, Received)>> {
        let Some((results, tokens, to)) = dispatch_tensors(py, of, call)? else { return Ok(None) };
        self.launch_dispatch(py, stream, tokens, receives.then_some(to))?;
        Ok(Some((results, to)))
    }

    /// Receives the tokens of all ranks.
    fn receive_dispatch(&self, py: Python<'_>, stream: usize, to: Received) -> PyResult<()> {
        self.call(py, stream, |buffers, stream| {
            buffers.check()?;
            // SAFETY: as above.
            unsafe { buffers.receive_dispatch(stream, &received(to)) }
        })
    }

    /// Sends back, for each received token, the sum of the experts' rows, times the own tokens' weights. With `receives`
    /// adds up the rows of this rank's tokens; with `encodes` they return in 10 bits for each element. Returns the sums, the address of the handle's ranges, and what
    /// `receive_combine` takes. Nothing is sent, and there are no sums, if that address is none of `held`.
    #[allow(clippy::too_many_arguments)] // as Python hands them over
    fn combine<'py>(
        &self,
        py: Python<'py>,
        stream: usize,
        receives: bool,
        encodes: bool,
        held: Vec<u64>,
        of: Of,
        call: CombineCall<'py>,
    ) -> PyResult<(Option<Array<'py>>, u64, Sums)> {
        let (gpu, ranks, prepared) = of;
        let (sums, ranges, parts, to) = ep_low_latency_combine_tensors(py, gpu, ranks, prepared, call)?;
        if !held.contains(&ranges) {
            return Ok((None, ranges, to));
        }
        self.launch_combine(py, stream, parts, encodes, receives.then_some(to))?;
        Ok((Some(sums), ranges, to))
    }

    /// Adds up the rows of this rank's tokens.
    fn receive_combine(&self, py: Python<'_>, stream: usize, encodes: bool, to: Sums) -> PyResult<()> {
        let (topk, out, waits, count) = to;
        let form = form(encodes);
        self.call(py, stream, |buffers, stream| {
            buffers.check()?;
            // SAFETY: as above.
            unsafe { buffers.receive_combine(stream, count, [topk, out, waits], form) }
        })
    }

    /// The masked ranks, after all calls so far; the GPU masks late ones itself. Raises the calls' other errors.
    fn masked(&self, py: Python<'_>) -> PyResult<Vec<bool>> {
        self.call(py, 0, |buffers, _| {
            // What the GPU has reported of masked ranks is no error of a later call.
            let masked = buffers.masked()?;
            buffers.check().map(|()| masked)
        })
    }

    /// Raises the errors of calls that are over.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        self.0.call(py, 0, |made, _| made.buffers.get().map_or(Ok(()), DeviceLowLatency::check))
    }
}
