//! Layouts, sizes, casts.

use numpy::{PyArray1, PyReadonlyArray1};
use pyo3::prelude::*;
use symrail_ep::cuda::{DeviceShape, HighThroughputShape};
use symrail_ep::low_latency::shape::{Shape, USUAL_TOP_K};
use symrail_ep::plan::layout::MOST_EXPERTS;
use symrail_ep::plan::sizes;
use symrail_ep::{Layout, TopK, fp8};

use super::{BytesAndFloats, element, elements, raised, rows};

/// A layout: tokens for each rank, slots for each expert, and for each token whether each rank gets it.
type Parts<'py> = (Bound<'py, PyArray1<i32>>, Bound<'py, PyArray1<i32>>, Bound<'py, PyArray1<bool>>);

fn signed(numbers: &[u32]) -> Vec<i32> {
    numbers.iter().map(|&number| number as i32).collect()
}

/// The layout of tokens with `k` top-k indices each.
#[pyfunction]
pub fn ep_layout<'py>(
    py: Python<'py>,
    indices: PyReadonlyArray1<'py, i64>,
    k: usize,
    experts: usize,
    ranks: usize,
) -> PyResult<Parts<'py>> {
    let layout =
        TopK::new(elements(&indices)?, k).and_then(|topk| Layout::of(&topk, experts, ranks)).map_err(raised)?;
    Ok((
        PyArray1::from_vec(py, signed(layout.per_rank())),
        PyArray1::from_vec(py, signed(layout.per_expert())),
        PyArray1::from_vec(py, layout.in_rank().to_vec()),
    ))
}

/// Bytes of each rank's heap for high throughput with these numbers of tokens and bytes in a block.
#[pyfunction]
pub fn ep_high_throughput_bytes(ranks: usize, tokens: usize, token_bytes: usize) -> usize {
    sizes::high_throughput(ranks, tokens, sizes::largest_row(token_bytes))
}

/// Bytes of each rank's heap for high throughput on GPUs, where hosts have `each` ranks whose GPUs reach each other; 0
/// for what GPUs do not take.
#[pyfunction]
pub fn ep_device_high_throughput_bytes(ranks: usize, each: usize, most_tokens: usize, row: usize, k: usize) -> usize {
    let (row, scales) = (row.next_multiple_of(16), row.div_ceil(2 * fp8::GROUP));
    let (room, experts) = (ranks.saturating_mul(most_tokens), MOST_EXPERTS / ranks.max(1) * ranks);
    let shape = HighThroughputShape { most_tokens, room, row, scales, experts, k };
    shape.bytes_of_hosts(ranks, each).unwrap_or(0)
}

/// Bytes of each rank's heap for low latency, on the host or on a GPU, whichever is larger.
#[pyfunction]
pub fn ep_low_latency_bytes(most_tokens: usize, hidden: usize, ranks: usize, experts: usize) -> PyResult<usize> {
    let of_host = Shape::of_bf16(most_tokens, hidden, experts);
    of_host.check(ranks).map_err(raised)?;
    let of_gpu = DeviceShape { most_tokens, hidden, experts, k: USUAL_TOP_K };
    Ok(of_host.bytes(ranks).max(of_gpu.bytes(ranks)))
}

/// Casts rows to FP8: the bytes, and the factors.
#[pyfunction]
pub fn ep_cast_fp8<'py>(
    py: Python<'py>,
    data: PyReadonlyArray1<'py, u8>,
    row_bytes: usize,
    of: String,
    power_of_two: bool,
) -> PyResult<BytesAndFloats<'py>> {
    let element = element(&of)?;
    let data = (data, row_bytes, of);
    let all = rows(&data)?;
    let (mut bytes, mut factors) = (Vec::new(), Vec::new());
    let mut cast = |row| fp8::cast(all.row(row), element, power_of_two, &mut bytes, &mut factors);
    py.detach(|| (0..all.count()).try_for_each(&mut cast)).map_err(raised)?;
    Ok((PyArray1::from_vec(py, bytes), PyArray1::from_vec(py, factors)))
}
