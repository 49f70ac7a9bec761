//! Low latency.

use numpy::{PyArray1, PyReadonlyArray1};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use symrail_ep::low_latency::{Combining, Dispatching, Shape};
use symrail_ep::{LowLatency, TopK};

use super::{Buffers, Bytes, HostBuffers, element, elements, raised, rows, to_dict};
use crate::runtime::Runtime;

/// Buffers for few tokens.
#[pyclass(frozen, module = "symrail._symrail")]
pub struct EpLowLatency(Buffers<LowLatency>);

/// A dispatch that was sent and not received.
#[pyclass(frozen, module = "symrail._symrail")]
pub struct EpDispatching(Dispatching);

/// A combine that was sent and not received.
#[pyclass(frozen, module = "symrail._symrail")]
pub struct EpCombining(Combining);

/// The received data: rows and scales of each expert, their number, the tokens' numbers, and each range of a rank's
/// rows as its first row in the upper 32 bits and their number in the lower ones.
type Come<'py> = (
    Bound<'py, PyArray1<u8>>,
    Bound<'py, PyArray1<u8>>,
    Bound<'py, PyArray1<u32>>,
    Bound<'py, PyArray1<i32>>,
    Bound<'py, PyArray1<i64>>,
);

impl HostBuffers for LowLatency {
    fn free(self) -> symrail_ep::Result<()> {
        LowLatency::free(self)
    }
}

#[pymethods]
impl EpLowLatency {
    /// Makes buffers. Collective.
    #[new]
    #[allow(clippy::too_many_arguments)] // the numbers of a shape
    fn new(
        py: Python<'_>,
        runtime: &Runtime,
        most_tokens: usize,
        token: usize,
        scales: usize,
        experts: usize,
        k: usize,
        timeout: Option<f64>,
    ) -> PyResult<Self> {
        let shape = Shape { most_tokens, token, scales, experts, k };
        let make = move |rt: &_, limit| LowLatency::new(rt, shape, limit);
        Ok(EpLowLatency(Buffers::make(py, runtime, timeout, make)?))
    }

    /// Bytes of each rank's heap that buffers of this shape take.
    #[staticmethod]
    fn bytes(ranks: usize, most_tokens: usize, token: usize, scales: usize, experts: usize, k: usize) -> usize {
        Shape { most_tokens, token, scales, experts, k }.bytes(ranks)
    }

    /// Statistics of the last dispatch and the last combine.
    fn statistics<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let all = self.0.call(py, |buffers| Ok(buffers.statistics().map(Clone::clone)))?;
        all.iter().map(|statistics| to_dict(py, statistics)).collect()
    }

    /// Frees the memory. Collective.
    fn free(&self, py: Python<'_>) -> PyResult<()> {
        self.0.free(py)
    }

    /// Sets whether late ranks are masked.
    fn mask_late(&self, py: Python<'_>, mask: bool) -> PyResult<()> {
        self.0.call(py, |buffers| {
            buffers.mask_late(mask);
            Ok(())
        })
    }

    /// Masks a rank, or includes it again.
    fn mask(&self, py: Python<'_>, rank: u32, mask: bool) -> PyResult<()> {
        self.0.call(py, |buffers| buffers.mask(rank, mask))
    }

    /// The masked ranks.
    fn masked(&self, py: Python<'_>) -> PyResult<Vec<bool>> {
        self.0.call(py, |buffers| Ok(buffers.masked().to_vec()))
    }

    /// Includes masked ranks again. Collective over all ranks.
    fn connect(&self, py: Python<'_>, ranks: Vec<u32>) -> PyResult<()> {
        self.0.meet(py, |buffers| buffers.connect(&ranks))
    }

    /// Sends each token to the ranks that own its experts.
    fn send_dispatch<'py>(
        &self,
        py: Python<'py>,
        tokens: Bytes<'py>,
        scales: Option<Bytes<'py>>,
        indices: PyReadonlyArray1<'py, i64>,
        k: usize,
    ) -> PyResult<EpDispatching> {
        let (tokens, scales) = (rows(&tokens)?, scales.as_ref().map(rows).transpose()?);
        let topk = TopK::new(elements(&indices)?, k).map_err(raised)?;
        Ok(EpDispatching(self.0.call(py, |buffers| buffers.send_dispatch(tokens, scales, topk))?))
    }

    /// Waits for the tokens of all ranks.
    fn receive_dispatch<'py>(&self, py: Python<'py>, sent: &EpDispatching) -> PyResult<Come<'py>> {
        let found = self.0.call(py, |buffers| buffers.receive_dispatch(&sent.0))?;
        let range = |(first, count): (u32, u32)| (i64::from(first) << 32) | i64::from(count);
        Ok((
            PyArray1::from_vec(py, found.rows),
            PyArray1::from_vec(py, found.scales),
            PyArray1::from_vec(py, found.counts),
            PyArray1::from_vec(py, found.source_tokens),
            PyArray1::from_vec(py, found.ranges.into_iter().map(range).collect()),
        ))
    }

    /// Sends the experts' rows back, encoded or not.
    fn send_combine<'py>(
        &self,
        py: Python<'py>,
        parts: Bytes<'py>,
        of: &str,
        ranges: PyReadonlyArray1<'py, i64>,
        encode: bool,
    ) -> PyResult<EpCombining> {
        let (parts, element) = (rows(&parts)?, element(of)?);
        let range = |&range: &i64| ((range >> 32) as u32, range as u32);
        let ranges: Vec<_> = elements(&ranges)?.iter().map(range).collect();
        let sent = self.0.call(py, |buffers| {
            buffers.encode_combines(encode);
            buffers.send_combine(parts, element, &ranges)
        })?;
        Ok(EpCombining(sent))
    }

    /// Waits for the rows of this rank's tokens, and adds them up, multiplied by their weights.
    fn receive_combine<'py>(
        &self,
        py: Python<'py>,
        sent: &EpCombining,
        indices: PyReadonlyArray1<'py, i64>,
        weights: PyReadonlyArray1<'py, f32>,
        k: usize,
    ) -> PyResult<Bound<'py, PyArray1<u8>>> {
        let topk = TopK::new(elements(&indices)?, k).map_err(raised)?;
        let weights = elements(&weights)?;
        let sums = self.0.call(py, |buffers| buffers.receive_combine(&sent.0, topk, weights))?;
        Ok(PyArray1::from_vec(py, sums))
    }
}
