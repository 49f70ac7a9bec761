//! Expert parallelism: the calls of `symrail_ep` on bytes of arrays. Programs call `symrail/ep`, which makes arrays of
//! the results.
//!
//! | file | concept |
//! |---|---|
//! | here | common parts of buffers; errors |
//! | `high` | high throughput |
//! | `low` | low latency |
//! | `device`, `device_high` | both by kernels |
//! | `tensors` | tensors of these calls |
//! | `views` | tensors of buffers' memory |
//! | `plan` | layouts, sizes, casts: functions that need no job |

#![allow(clippy::needless_pass_by_value)] // Python hands arrays over by value

mod device;
mod device_high;
mod high;
mod low;
mod on_gpu;
mod plan;
mod tensors;
mod views;

use std::sync::Arc;

use numpy::{Element as OfArray, PyArray1, PyReadonlyArray1};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use symrail::with_timeout;
use symrail_ep::{DataType, Error, Rows, Statistics, WaitLimit};

use crate::deferred_free::{CollectiveFree, DeferredFree};
use crate::errors::{Kind, failed, failed_round, raise, raise_of, raise_of_all};
use crate::interrupt;
use crate::runtime::Runtime;

/// Adds the classes and functions of this folder to a module.
pub fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<high::EpHighThroughput>()?;
    module.add_class::<high::EpHandle>()?;
    module.add_class::<device::EpDeviceLowLatency>()?;
    module.add_class::<device_high::EpDeviceHighThroughput>()?;
    module.add_class::<device_high::EpDeviceRoutes>()?;
    module.add_class::<device_high::EpDeviceLayout>()?;
    module.add_class::<low::EpLowLatency>()?;
    module.add_class::<low::EpDispatching>()?;
    module.add_class::<low::EpCombining>()?;
    module.add_function(wrap_pyfunction!(tensors::ep_low_latency_dispatch_tensors, module)?)?;
    module.add_function(wrap_pyfunction!(tensors::ep_low_latency_combine_tensors, module)?)?;
    module.add_function(wrap_pyfunction!(tensors::ep_layout_tensors, module)?)?;
    module.add_function(wrap_pyfunction!(plan::ep_layout, module)?)?;
    module.add_function(wrap_pyfunction!(plan::ep_high_throughput_bytes, module)?)?;
    module.add_function(wrap_pyfunction!(plan::ep_device_high_throughput_bytes, module)?)?;
    module.add_function(wrap_pyfunction!(plan::ep_low_latency_bytes, module)?)?;
    module.add_function(wrap_pyfunction!(plan::ep_cast_fp8, module)?)
}

/// Bytes of rows, and their factors or weights.
type BytesAndFloats<'py> = (Bound<'py, PyArray1<u8>>, Bound<'py, PyArray1<f32>>);

/// Rows of bytes from Python: all of them, bytes of each, and the name of their elements' type.
type Bytes<'py> = (PyReadonlyArray1<'py, u8>, usize, String);

/// Buffers in host memory, and the longest wait for ranks.
struct Buffers<T: HostBuffers> {
    buffers: DeferredFree<Host<T>>,
    limit: WaitLimit,
}

/// Buffers that are freed collectively.
trait HostBuffers: Send + 'static {
    fn free(self) -> symrail_ep::Result<()>;
}

struct Host<T>(T);

impl<T: HostBuffers> CollectiveFree for Host<T> {
    const KIND: &'static str = "buffers of symrail.ep";

    fn free_on_all(self) -> PyResult<()> {
        self.0.free().map_err(raised)
    }
}

/// How calls on freed buffers are refused.
const FREED: &str = "these buffers were given back: by destroy(), or by a call that failed while it made larger ones";

/// The longest wait for ranks: of the caller, or of the job.
fn wait_limit(rt: &symrail::Runtime, timeout: Option<f64>) -> PyResult<WaitLimit> {
    Ok(interrupt::parse_timeout(timeout)?.map_or_else(|| WaitLimit::of(rt), |time| WaitLimit { time }))
}

impl<T: HostBuffers> Buffers<T> {
    /// Makes buffers. Collective.
    fn make(
        py: Python<'_>,
        runtime: &Runtime,
        timeout: Option<f64>,
        make: impl FnOnce(&symrail::Runtime, WaitLimit) -> symrail_ep::Result<T> + Send,
    ) -> PyResult<Buffers<T>> {
        let job = Arc::clone(runtime.job());
        job.running()?;
        let rt = job.runtime();
        let limit = wait_limit(rt, timeout)?;
        runtime.free_deferred(py, Some(limit.time.as_secs_f64()), Host::<T>::KIND)?;
        let made = py.detach(|| with_timeout(limit.time, || make(rt, limit))).map_err(raised)?;
        Ok(Buffers { buffers: DeferredFree::new(job, Host(made)), limit })
    }

    /// Makes a call, without Python's lock, one at a time.
    fn call<R: Send>(&self, py: Python<'_>, call: impl FnOnce(&mut T) -> symrail_ep::Result<R> + Send) -> PyResult<R> {
        self.buffers.job.running()?;
        let result = py.detach(|| self.buffers.with(|buffers| call(&mut buffers.0)));
        result?.ok_or_else(|| raise(Kind::State, FREED))?.map_err(raised)
    }

    /// Makes a call in which all ranks meet, those too that learn that they were late only when their own time is over:
    /// it waits twice as long as others.
    fn meet<R: Send>(&self, py: Python<'_>, call: impl FnOnce(&mut T) -> symrail_ep::Result<R> + Send) -> PyResult<R> {
        self.call(py, |buffers| with_timeout(2 * self.limit.time, || call(buffers)))
    }

    /// Frees the buffers, if they exist, once no call uses them. Collective.
    fn free(&self, py: Python<'_>) -> PyResult<()> {
        let Some(buffers) = self.buffers.take(py)? else { return Ok(()) };
        py.detach(|| with_timeout(self.limit.time, || buffers.0.free())).map_err(raised)
    }
}

/// The exception for an error.
pub fn raised(error: Error) -> PyErr {
    let text = error.to_string();
    match error {
        Error::Runtime(error) => failed(error),
        Error::Round(error) => failed_round(error),
        Error::NoRoom { rank, .. } => raise_of(Kind::Argument, &text, rank),
        Error::TypesDiffer { other, .. } => raise_of(Kind::Differ, &text, other),
        Error::Left { ranks, .. } => raise_of_all(Kind::Timeout, &text, ranks),
        Error::NoMemory { .. } => raise(Kind::HeapExhausted, &text),
        Error::Order { .. } => raise(Kind::State, &text),
        Error::Device { .. } => raise(Kind::Operation, &text),
        _ => raise(Kind::Argument, &text),
    }
}

/// The statistics of a call, as a dict.
fn to_dict<'py>(py: Python<'py>, statistics: &Statistics) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("call", statistics.call)?;
    dict.set_item("to_ranks", statistics.to_ranks.clone())?;
    dict.set_item("from_ranks", statistics.from_ranks.clone())?;
    dict.set_item("per_expert", statistics.per_expert.clone())?;
    for (way, traffic) in [("own", statistics.own), ("mapped", statistics.mapped), ("wire", statistics.wire)] {
        dict.set_item(format!("{way}_rows"), traffic.rows)?;
        dict.set_item(format!("{way}_bytes"), traffic.bytes)?;
    }
    let phases: Vec<(&str, f64)> = statistics.phases.iter().map(|(name, took)| (*name, took.as_secs_f64())).collect();
    dict.set_item("phases", phases)?;
    Ok(dict)
}

/// The elements of an array.
fn elements<'a, T: OfArray>(array: &'a PyReadonlyArray1<'_, T>) -> PyResult<&'a [T]> {
    array.as_slice().map_err(|error| raise(Kind::Argument, &error.to_string()))
}

/// The rows of an array.
fn rows<'a>(bytes: &'a Bytes<'_>) -> PyResult<Rows<'a>> {
    let rows = Rows::new(elements(&bytes.0)?, bytes.1).map_err(raised)?;
    Ok(bytes.2.parse().map_or(rows, |element| rows.of(element)))
}

/// The type of elements by its name.
fn element(name: &str) -> PyResult<DataType> {
    let why = |_| raise(Kind::Argument, &format!("sums are of float32 or bfloat16, not of {name}"));
    name.parse().map_err(why)
}
