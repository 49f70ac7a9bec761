//! High throughput.

use numpy::{PyArray1, PyReadonlyArray1};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use symrail_ep::high_throughput::{Handle, Parts, Received, Tokens};
use symrail_ep::{HighThroughput, Layout, TopK};

use super::{Buffers, Bytes, BytesAndFloats, HostBuffers, element, elements, raised, rows, to_dict};
use crate::runtime::Runtime;

/// Buffers for any number of tokens.
#[pyclass(frozen, module = "symrail._symrail")]
pub struct EpHighThroughput(Buffers<HighThroughput>);

/// The routes of a dispatch.
#[pyclass(frozen, module = "symrail._symrail")]
pub struct EpHandle(Handle);

/// The received data: rows, scales, indices, weights, slots of each expert.
type Come<'py> = (
    Bound<'py, PyArray1<u8>>,
    Bound<'py, PyArray1<u8>>,
    Bound<'py, PyArray1<i32>>,
    Bound<'py, PyArray1<f32>>,
    Vec<u32>,
);

fn come(py: Python<'_>, received: Received) -> Come<'_> {
    let Received { rows, scales, indices, weights, per_expert, .. } = received;
    (
        PyArray1::from_vec(py, rows),
        PyArray1::from_vec(py, scales),
        PyArray1::from_vec(py, indices),
        PyArray1::from_vec(py, weights),
        per_expert,
    )
}

#[pymethods]
impl EpHandle {
    /// The number of received rows.
    #[getter]
    fn rows(&self) -> usize {
        self.0.rows()
    }

    /// For each rank, its rows for each rank.
    #[getter]
    fn matrix<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<u32>> {
        PyArray1::from_slice(py, &self.0.matrix)
    }

    /// The number of each row at its source.
    #[getter]
    fn source_tokens<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<u32>> {
        PyArray1::from_slice(py, &self.0.source_tokens)
    }
}

impl HostBuffers for HighThroughput {
    fn free(self) -> symrail_ep::Result<()> {
        HighThroughput::free(self)
    }
}

#[pymethods]
impl EpHighThroughput {
    /// Makes buffers of this size in each rank's heap. Collective.
    #[new]
    fn new(py: Python<'_>, runtime: &Runtime, bytes: usize, timeout: Option<f64>) -> PyResult<Self> {
        let make = move |rt: &_, limit| HighThroughput::new(rt, bytes, limit);
        Ok(EpHighThroughput(Buffers::make(py, runtime, timeout, make)?))
    }

    /// Statistics of the last call.
    fn statistics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        to_dict(py, &self.0.call(py, |buffers| Ok(buffers.statistics().clone()))?)
    }

    /// Frees the memory. Collective.
    fn free(&self, py: Python<'_>) -> PyResult<()> {
        self.0.free(py)
    }

    /// Sends each token to the ranks that own its experts. Collective.
    #[allow(clippy::too_many_arguments)] // arrays, each with what its bytes mean
    fn dispatch<'py>(
        &self,
        py: Python<'py>,
        tokens: Bytes<'py>,
        scales: Option<Bytes<'py>>,
        topk: Option<(PyReadonlyArray1<'py, i64>, PyReadonlyArray1<'py, f32>, usize)>,
        in_rank: PyReadonlyArray1<'py, bool>,
        per_expert: PyReadonlyArray1<'py, i32>,
        ranks: usize,
    ) -> PyResult<(Come<'py>, EpHandle)> {
        let per_expert = elements(&per_expert)?.iter().map(|&count| count.max(0) as u32).collect();
        let layout = Layout::from_parts(elements(&in_rank)?.to_vec(), per_expert, ranks).map_err(raised)?;
        let topk = match &topk {
            Some((indices, weights, k)) => {
                Some((TopK::new(elements(indices)?, *k).map_err(raised)?, elements(weights)?))
            }
            None => None,
        };
        let tokens = Tokens { rows: rows(&tokens)?, scales: scales.as_ref().map(rows).transpose()?, topk };
        let (received, handle) = self.0.call(py, |buffers| buffers.dispatch(&tokens, &layout))?;
        Ok((come(py, received), EpHandle(handle)))
    }

    /// As `dispatch`, for other rows on the routes of an earlier one. Collective.
    fn dispatch_again<'py>(
        &self,
        py: Python<'py>,
        tokens: Bytes<'py>,
        scales: Option<Bytes<'py>>,
        handle: &EpHandle,
    ) -> PyResult<Come<'py>> {
        let tokens = Tokens { rows: rows(&tokens)?, scales: scales.as_ref().map(rows).transpose()?, topk: None };
        Ok(come(py, self.0.call(py, |buffers| buffers.dispatch_again(&tokens, &handle.0))?))
    }

    /// Sends rows back and adds them up. Collective.
    #[allow(clippy::too_many_arguments)] // arrays, each with what its bytes mean
    fn combine<'py>(
        &self,
        py: Python<'py>,
        parts: Bytes<'py>,
        of: &str,
        weights: Option<(PyReadonlyArray1<'py, f32>, usize)>,
        biases: (Option<Bytes<'py>>, Option<Bytes<'py>>),
        handle: &EpHandle,
    ) -> PyResult<BytesAndFloats<'py>> {
        let weights = match &weights {
            Some((weights, k)) => Some((elements(weights)?, *k)),
            None => None,
        };
        let biases = [biases.0.as_ref().map(rows).transpose()?, biases.1.as_ref().map(rows).transpose()?];
        let parts = Parts { rows: rows(&parts)?, element: element(of)?, weights, biases };
        let combined = self.0.call(py, |buffers| buffers.combine(&parts, &handle.0))?;
        Ok((PyArray1::from_vec(py, combined.rows), PyArray1::from_vec(py, combined.weights)))
    }
}
