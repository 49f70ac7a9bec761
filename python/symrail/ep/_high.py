"""High throughput: dispatch and combine of any number of tokens."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .. import _symrail
from ..errors import ArgumentError
from .._host_arrays import Rows, as_array, dtype_name, numbers


class Handle(NamedTuple):
    """The routes of a dispatch: a combine goes back on them, and other tokens may follow them."""

    rank_prefix_matrix: Any
    """For each source (first index) and each rank, its tokens for that rank and those of the sources before it."""
    recv_src_idx: Any
    """The number of each received token at its source; -1 in rows of `num_worst_tokens` that received none."""
    recv_gbl_rank_prefix_sum: Any
    """For each source the tokens that came from it and from the sources before it, where the host knows the counts."""
    is_token_in_rank: Any
    routes: _symrail.EpHandle
    k: int = 0
    """The slots of a token, on a GPU."""


# The ranks of a host, as DeepEP counts hosts.
_OF_HOST = 8


def for_hosts(in_rank: Any, dtype: Any) -> Any:
    """The tokens for each host of eight ranks, or None for one host, by whether each token goes to each rank."""
    tokens, ranks = in_rank.shape
    if ranks <= _OF_HOST or ranks % _OF_HOST:
        return None
    return in_rank.reshape(tokens, ranks // _OF_HOST, _OF_HOST).any(axis=2).sum(axis=0, dtype=dtype)


def _split(x: Any) -> tuple[Rows, Rows | None]:
    """Tokens and their scales, if they have any."""
    if not isinstance(x, tuple):
        return Rows(x, "x"), None
    if len(x) != 2:
        raise ArgumentError(f"x is a tuple of {len(x)}; wanted are tokens, or tokens and scales")
    tokens, scales = Rows(x[0], "x[0]"), Rows(x[1], "x[1]")
    if scales.dtype != "float32":
        raise ArgumentError(f"x[1] is of {scales.dtype}; wanted is float32")
    return tokens, scales


def _made(tokens: Rows, scales: Rows | None, come: Any, rows: int) -> Any:
    hidden = tuple(tokens.array.shape[1:])
    received = tokens.made(come[0], rows, *hidden)
    if scales is None:
        return received
    return received, scales.made(come[1], rows, *scales.array.shape[1:])


def dispatch(
    buffers: _symrail.EpHighThroughput,
    rank: int,
    ranks: int,
    x: Any,
    handle: Handle | None,
    is_token_in_rank: Any,
    num_tokens_per_rank: Any,
    num_tokens_per_expert: Any,
    topk_idx: Any,
    topk_weights: Any,
    expert_alignment: int,
    num_worst_tokens: int,
) -> tuple[Any, Any, Any, list[int] | None, Handle | None]:
    """See `Buffer.dispatch`."""
    tokens, scales = _split(x)
    of_scales = None if scales is None else scales.data
    if handle is not None:
        if topk_idx is not None or topk_weights is not None:
            raise ArgumentError("topk_idx and topk_weights do not go with a handle")
        come = buffers.dispatch_again(tokens.data, of_scales, handle.routes)
        return _made(tokens, scales, come, handle.routes.rows), None, None, None, None
    if num_tokens_per_rank is None or is_token_in_rank is None or num_tokens_per_expert is None:
        raise ArgumentError(
            "without a handle give num_tokens_per_rank, is_token_in_rank and num_tokens_per_expert (get_dispatch_layout)"
        )
    if (topk_idx is None) != (topk_weights is None):
        raise ArgumentError("topk_idx and topk_weights go together")
    in_rank = numbers(is_token_in_rank, "is_token_in_rank", "bool", (tokens.count, ranks))
    per_rank = numbers(num_tokens_per_rank, "num_tokens_per_rank", "int64", (ranks,))
    if not np.array_equal(per_rank, in_rank.reshape(tokens.count, ranks).sum(axis=0)):
        raise ArgumentError("num_tokens_per_rank is not what is_token_in_rank says")
    per_expert = numbers(num_tokens_per_expert, "num_tokens_per_expert", "int32", (None,))
    topk, k = None, 0
    if topk_idx is not None:
        k = int(topk_idx.shape[-1])
        indices = numbers(topk_idx, "topk_idx", "int64", (tokens.count, k))
        topk = (indices, numbers(topk_weights, "topk_weights", "float32", (tokens.count, k)), k)
    come, routes = buffers.dispatch(tokens.data, of_scales, topk, in_rank, per_expert, ranks)
    rows, like = routes.rows, tokens.array
    matrix = routes.matrix.reshape(ranks, ranks).cumsum(axis=0).astype("int32")
    source = np.full(max(rows, num_worst_tokens), -1, "int32")
    source[:rows] = routes.source_tokens
    ends = np.ascontiguousarray(matrix[:, rank])
    made = Handle(as_array(matrix, like), as_array(source, like), as_array(ends, like), is_token_in_rank, routes)
    received = _made(tokens, scales, come, rows)
    of_topk: tuple[Any, Any] = (None, None)
    if topk is not None:
        kind = dtype_name(topk_idx)
        of_topk = (come[2].reshape(rows, k).astype(kind), come[3].reshape(rows, k))
        of_topk = (as_array(of_topk[0], like), as_array(of_topk[1], like))
    counts = [-(-count // expert_alignment) * expert_alignment for count in come[4]]
    if num_worst_tokens > 0:
        if rows > num_worst_tokens:
            raise ArgumentError(f"num_worst_tokens={num_worst_tokens}, and {rows} tokens have come")
        if isinstance(received, tuple):
            received = tuple(_longer(part, num_worst_tokens) for part in received)
        else:
            received = _longer(received, num_worst_tokens)
        if topk is not None:
            of_topk = (_longer(of_topk[0], num_worst_tokens, 0xFF), _longer(of_topk[1], num_worst_tokens))
        counts = []
    return received, *of_topk, counts, made


def _longer(array: Any, wanted: int, byte: int = 0) -> Any:
    """The same array with more rows, filled with such bytes (0xFF: each number is -1)."""
    part = Rows(array, "received")
    data = np.full(wanted * part.bytes, byte, np.uint8)
    data[: part.count * part.bytes] = part.data[0]
    return part.made(data, wanted, *array.shape[1:])


def combine(
    buffers: _symrail.EpHighThroughput, x: Any, handle: Handle, topk_weights: Any, bias: Any
) -> tuple[Any, Any]:
    """See `Buffer.combine`. Rows of `num_worst_tokens` that received no token are left out."""
    rows, made = handle.routes.rows, len(handle.recv_src_idx)
    if len(x) == made > rows:
        x = x[:rows]
        if topk_weights is not None and len(topk_weights) == made:
            topk_weights = topk_weights[:rows]
    parts = Rows(x, "x")
    biases = bias if isinstance(bias, tuple) else (bias,)
    if len(biases) > 2:
        raise ArgumentError(f"{len(biases)} biases; there may be two")
    found = [Rows(one, "bias") for one in biases if one is not None]
    if any(one.dtype != parts.dtype for one in found):
        raise ArgumentError(f"bias is of {found[0].dtype}, x of {parts.dtype}; they have to be the same")
    weights = None
    if topk_weights is not None:
        k = int(topk_weights.shape[-1])
        weights = (numbers(topk_weights, "topk_weights", "float32", (parts.count, k)), k)
    of_biases = [one.data for one in found] + [None, None]
    pair = (of_biases[0], of_biases[1])
    data, of_slots = buffers.combine(parts.data, parts.dtype, weights, pair, handle.routes)
    tokens = int(handle.is_token_in_rank.shape[0])
    sums = parts.made(data, tokens, *parts.array.shape[1:])
    if weights is None:
        return sums, None
    return sums, as_array(of_slots.reshape(tokens, weights[1]), parts.array)
