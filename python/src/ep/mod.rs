//! Expert parallelism: the calls of `symrail_ep` on bytes of arrays. Programs call `symrail/ep`, which makes arrays of
//! the results.
//!
//! | file | concept |
//! |---|---|
//! | here | common parts of buffers; errors |
//! | `high` | high throughput |
//! | `low` | low latency |
//! | `device`, `device_high` | both by kernels |
//! | `plan` | layouts, sizes, casts: functions that need no job |

#![allow(clippy::needless_pass_by_value)] // Python hands arrays over by value

mod device;
mod device_high;
mod high;
mod low;
mod on_gpu;
mod plan;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use numpy::{Element as OfArray, PyArray1, PyReadonlyArray1};
use pyo3::prelude::*;
use pyo3::sync::MutexExt;
use pyo3::types::PyDict;
use symrail_ep::{Element, Error, Rows, Statistics, WaitLimit};

use crate::errors::{Kind, failed, raise, raise_of, raise_of_all};
use crate::interrupt;
use crate::job::Job;
use crate::runtime::Runtime;

/// Adds the classes and functions of this folder to a module.
pub fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<high::EpHighThroughput>()?;
    module.add_class::<high::EpHandle>()?;
    module.add_class::<device::EpDeviceLowLatency>()?;
    module.add_class::<device_high::EpDeviceHighThroughput>()?;
    module.add_class::<device_high::EpDeviceRoutes>()?;
    module.add_class::<low::EpLowLatency>()?;
    module.add_class::<low::EpDispatching>()?;
    module.add_class::<low::EpCombining>()?;
    module.add_function(wrap_pyfunction!(plan::ep_layout, module)?)?;
    module.add_function(wrap_pyfunction!(plan::ep_high_throughput_bytes, module)?)?;
    module.add_function(wrap_pyfunction!(plan::ep_low_latency_bytes, module)?)?;
    module.add_function(wrap_pyfunction!(plan::ep_cast_fp8, module)?)
}

/// Bytes of rows, and their factors or weights.
type BytesAndFloats<'py> = (Bound<'py, PyArray1<u8>>, Bound<'py, PyArray1<f32>>);

/// Rows of bytes from Python: all of them, and bytes of each.
type Bytes<'py> = (PyReadonlyArray1<'py, u8>, usize);

/// Buffers, `None` after `free`, and the job whose heap they are in.
struct Buffers<T> {
    buffers: Mutex<Option<T>>,
    job: Arc<Job>,
}

impl<T: Send> Buffers<T> {
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
        let mut limit = WaitLimit::of(rt);
        if let Some(seconds) = timeout {
            let time = Duration::try_from_secs_f64(seconds);
            limit.time = time.map_err(|error| raise(Kind::Argument, &format!("timeout: {error}")))?;
        }
        let made = py.detach(|| make(rt, limit)).map_err(raised)?;
        Ok(Buffers { buffers: Mutex::new(Some(made)), job })
    }

    /// Makes a call, without Python's lock, one at a time.
    fn call<R: Send>(&self, py: Python<'_>, call: impl FnOnce(&mut T) -> symrail_ep::Result<R> + Send) -> PyResult<R> {
        self.job.running()?;
        let result = py.detach(|| {
            let mut buffers = self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
            buffers.as_mut().map(call)
        });
        result.ok_or_else(|| raise(Kind::State, "these buffers were given back by destroy()"))?.map_err(raised)
    }

    /// Takes the buffers out, to be freed, once no call uses them.
    fn take(&self, py: Python<'_>) -> Option<T> {
        self.buffers.lock_py_attached(py).unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// The exception for an error.
fn raised(error: Error) -> PyErr {
    let text = error.to_string();
    match error {
        Error::Runtime(error) => failed(error),
        Error::Differ { other, .. } => raise_of(Kind::Differ, &text, other),
        Error::Late { ranks, .. } | Error::Left { ranks, .. } => raise_of_all(Kind::Timeout, &text, ranks),
        Error::Interrupted { ranks, .. } => {
            interrupt::take().unwrap_or_else(|| raise_of_all(Kind::Timeout, &text, ranks))
        }
        Error::NoMemory { .. } => raise(Kind::HeapExhausted, &text),
        Error::Broken { .. } | Error::Order { .. } => raise(Kind::State, &text),
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
    Rows::new(elements(&bytes.0)?, bytes.1).map_err(raised)
}

/// The type of elements by its name.
fn element(name: &str) -> PyResult<Element> {
    match name {
        "float32" => Ok(Element::F32),
        "bfloat16" => Ok(Element::Bf16),
        _ => Err(raise(Kind::Argument, &format!("sums are of float32 or bfloat16, not of {name}"))),
    }
}
