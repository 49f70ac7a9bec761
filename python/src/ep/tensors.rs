//! The tensors of calls on a GPU: checks and addresses of those that are given, and new ones for results.

use pyo3::prelude::*;

use symrail_ep::DataType::{self, *};
use symrail_ep::cuda::{DeviceRows, LowLatencyTokens};

use super::device::{Parts, Received, Sums};
use crate::errors::{Kind, raise};
use crate::torch_tensors::{Dims, Part, address, data, empty, empty_together, lengths, unseen};

/// Elements that share a scale of FP8, and the scales in a word if they are packed.
const GROUP: usize = 128;
const PACKED: usize = 4;
/// Kernels copy rows in pieces of so many bytes.
const ROW_ALIGN: usize = 16;

/// The buffers' shape: tokens of a rank, at most; elements of a token; experts; top-k slots.
pub type Shape = (usize, usize, usize, usize);
/// The GPU (None: the host), the number of ranks, and the buffers' shape.
pub type Of = (Option<i32>, usize, Shape);
type Array<'py> = Bound<'py, PyAny>;

/// The results of a dispatch: rows, scales, counts, sources and ranges.
pub type Results<'py> = (Array<'py>, Option<Array<'py>>, Array<'py>, Array<'py>, Array<'py>);

/// A dispatch's `x`, `topk_idx`, `num_max_dispatch_tokens_per_rank`, `num_experts`,
/// `cumulative_local_expert_recv_stats` and `dispatch_wait_recv_cost_stats`; whether rows are sent as FP8, whether scales
/// are powers of two, and whether they are packed.
#[derive(FromPyObject)]
pub struct DispatchCall<'py>(
    Array<'py>,
    Array<'py>,
    usize,
    usize,
    Option<Array<'py>>,
    Option<Array<'py>>,
    bool,
    bool,
    bool,
);

/// A combine's `x`, `topk_idx`, `topk_weights`, `handle`, `out` and `combine_wait_recv_cost_stats`.
#[derive(FromPyObject)]
pub struct CombineCall<'py>(
    Array<'py>,
    Array<'py>,
    Array<'py>,
    (Array<'py>, Array<'py>, usize, usize, usize),
    Option<Array<'py>>,
    Option<Array<'py>>,
);

/// The results of a layout, then what the native call takes.
type Counted<'py> = ([Array<'py>; 3], (u64, usize, usize), [u64; 3]);

fn optional(array: Option<&Array<'_>>, role: &str, gpu: Option<i32>, dtype: DataType, length: usize) -> PyResult<u64> {
    array.map_or(Ok(0), |array| address(array, role, gpu, dtype, &[length], 1))
}

/// The results of a dispatch, and what `receive_dispatch` takes: see [`dispatch_tensors`].
#[pyfunction]
pub fn ep_low_latency_dispatch_tensors<'py>(
    py: Python<'py>,
    gpu: Option<i32>,
    ranks: usize,
    prepared: Shape,
    call: DispatchCall<'py>,
) -> PyResult<Option<(Results<'py>, Received)>> {
    Ok(dispatch_tensors(py, (gpu, ranks, prepared), call)?.map(|(results, _, to)| (results, to)))
}

/// The tensors of a dispatch for `ranks` ranks on buffers of the shape `prepared`; `None` if it needs another shape.
/// Raises ArgumentError for tensors that kernels cannot take.
pub fn dispatch_tensors<'py>(
    py: Python<'py>,
    (gpu, ranks, prepared): Of,
    call: DispatchCall<'py>,
) -> PyResult<Option<(Results<'py>, LowLatencyTokens, Received)>> {
    let DispatchCall(x, topk_idx, most_tokens, experts, stats, waits, use_fp8, power_of_two, packs) = call;
    let ([tokens, hidden], [_, k]) = (lengths(&x, "x")?, lengths(&topk_idx, "topk_idx")?);
    let refuse = |why: String| Err(raise(Kind::Argument, &why));
    if tokens > most_tokens {
        return refuse(format!("x has {tokens} tokens; num_max_dispatch_tokens_per_rank is {most_tokens}"));
    }
    if packs && !hidden.is_multiple_of(GROUP * PACKED) {
        let wanted = GROUP * PACKED;
        return refuse(format!("use_ue8m0=True: x has {hidden} elements; wanted is a multiple of {wanted}"));
    }
    let share = experts / ranks.max(1);
    let (rows, slots, all_counts, waits) = unseen(py, || {
        Ok((
            address(&x, "x", gpu, Bfloat16, &[tokens, hidden], ROW_ALIGN)?,
            address(&topk_idx, "topk_idx", gpu, Int64, &[tokens, k], 1)?,
            optional(stats.as_ref(), "cumulative_local_expert_recv_stats", gpu, Int32, share)?,
            optional(waits.as_ref(), "dispatch_wait_recv_cost_stats", gpu, Int64, ranks)?,
        ))
    })?;
    if prepared != (most_tokens, hidden, experts, k) {
        return Ok(None);
    }
    let room = ranks * most_tokens;
    let of_rows = if use_fp8 { Float8E4m3 } else { Bfloat16 };
    let all_rows = Dims::contiguous([share, room, hidden]);
    let groups = hidden.div_ceil(GROUP);
    let (words, of_words) = if packs { (groups / PACKED, Int32) } else { (groups, Float32) };
    // The scales of a group lie one after the other for all rows of an expert.
    let sizes = [share, room, words].map(|n| n as i64);
    let all_scales = Dims { sizes, strides: [(words * room) as i64, 1, room as i64] };
    let (received, scales) = if use_fp8 {
        let parts = [Part::new(of_rows, &all_rows), Part::new(of_words, &all_scales)];
        let [received, scales] = empty_together(py, gpu, parts, 0)?;
        (received, Some(scales))
    } else {
        (empty(py, gpu, of_rows, &all_rows)?, None)
    };
    let (by_expert, by_row, by_rank) =
        (Dims::contiguous([share]), Dims::contiguous([share, room]), Dims::contiguous([share, ranks]));
    let parts = [Part::new(Int32, &by_expert), Part::new(Int32, &by_row), Part::new(Int64, &by_rank)];
    // The number of the dispatch lies behind the ranges.
    let [counts, sources, ranges] = empty_together(py, gpu, parts, 8)?;
    let number = number(ranges.1, share, ranks);
    let of_scales = scales.as_ref().map_or(0, |scales| scales.1);
    let to = (received.1, of_scales, counts.1, sources.1, ranges.1, number, all_counts, waits, packs);
    let made = (received.0, scales.map(|scales| scales.0), counts.0, sources.0, ranges.0);
    let kind = match (use_fp8, power_of_two) {
        (false, _) => DeviceRows::Bf16,
        (true, false) => DeviceRows::Fp8,
        (true, true) => DeviceRows::Fp8PowerOfTwo,
    };
    Ok(Some((made, LowLatencyTokens { rows: kind, x: rows, topk: slots, tokens }, to)))
}

/// The sums of a combine, the address of its handle's ranges, and what the native calls take. Raises ArgumentError for
/// tensors that kernels cannot take, or that do not go with buffers of the shape `prepared`.
#[pyfunction]
pub fn ep_low_latency_combine_tensors<'py>(
    py: Python<'py>,
    gpu: Option<i32>,
    ranks: usize,
    prepared: Shape,
    call: CombineCall<'py>,
) -> PyResult<(Array<'py>, u64, Parts, Sums)> {
    let CombineCall(x, topk_idx, topk_weights, handle, out, waits) = call;
    let (_, ranges, most_tokens, hidden, experts) = handle;
    let [tokens, k] = lengths(&topk_idx, "topk_idx")?;
    if prepared != (most_tokens, hidden, experts, k) || tokens > most_tokens {
        let why = format!("{tokens} tokens with {k} slots do not go with a dispatch of the shape {prepared:?}");
        return Err(raise(Kind::Argument, &why));
    }
    let share = experts / ranks.max(1);
    let (rows, slots, weights, waits, made) = unseen(py, || {
        Ok((
            address(&x, "x", gpu, Bfloat16, &[share, ranks * most_tokens, hidden], ROW_ALIGN)?,
            address(&topk_idx, "topk_idx", gpu, Int64, &[tokens, k], 1)?,
            address(&topk_weights, "topk_weights", gpu, Float32, &[tokens, k], 1)?,
            optional(waits.as_ref(), "combine_wait_recv_cost_stats", gpu, Int64, ranks)?,
            out.map(|out| {
                let at = address(&out, "out", gpu, Bfloat16, &[tokens, hidden], ROW_ALIGN)?;
                PyResult::Ok((out, at))
            }),
        ))
    })?;
    let (combined, sums) = match made {
        Some(given) => given?,
        None => empty(py, gpu, Bfloat16, &Dims::contiguous([tokens, hidden]))?,
    };
    let at = data(&ranges)?;
    Ok((combined, at, (rows, weights, number(at, share, ranks), tokens), (slots, sums, waits, tokens)))
}

/// The tensors of a layout: tokens for each rank, slots of each expert, and whether each token goes to each rank; then
/// what the native call takes. Raises ArgumentError for indices that the kernel cannot take.
#[pyfunction]
pub fn ep_layout_tensors<'py>(
    py: Python<'py>,
    gpu: Option<i32>,
    ranks: usize,
    topk_idx: &Array<'py>,
    experts: usize,
) -> PyResult<Counted<'py>> {
    let [tokens, k] = lengths(topk_idx, "topk_idx")?;
    let at = unseen(py, || address(topk_idx, "topk_idx", gpu, Int64, &[tokens, k], 1))?;
    let (of_ranks, of_experts, of_tokens) =
        (Dims::contiguous([ranks]), Dims::contiguous([experts]), Dims::contiguous([tokens, ranks]));
    let parts = [Part::new(Int32, &of_ranks), Part::new(Int32, &of_experts), Part::new(Bool, &of_tokens)];
    let made = empty_together(py, gpu, parts, 0)?;
    let to = made.each_ref().map(|(_, at)| *at);
    Ok((made.map(|(tensor, _)| tensor), (at, tokens, k), to))
}

/// The address of a dispatch's number, behind its ranges.
fn number(ranges: u64, share: usize, ranks: usize) -> u64 {
    ranges + 8 * (share * ranks) as u64
}
