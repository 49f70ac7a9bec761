"""Low latency: dispatch and combine of few tokens, whose sending and receiving are separate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .. import _symrail
from ..errors import ArgumentError
from .._host_arrays import Rows, as_array, as_dtype, as_fp8, must_take, numbers, store
from .._tensors import is_tensor
from ._on_gpu import plain

Hook = Callable[[], None]
_GROUP = 128
"""Elements that share a scale of FP8."""


def rows_to_combine(x: Any, zero_copy: bool, next_combine: Any) -> Any:
    """The rows of a combine: with `zero_copy` those of the array that was returned for it."""
    if not zero_copy:
        return x
    if next_combine is None:
        raise ArgumentError("zero_copy=True goes with get_next_low_latency_combine_buffer")
    return next_combine


class LowLatency:
    """Buffers of the shape of the first dispatch, or of `prepare`."""

    def __init__(self, runtime: _symrail.Runtime, budget: int, mask_late: bool, timeout: float | None) -> None:
        self.runtime, self.budget, self.timeout = runtime, budget, timeout
        self.ranks, self.mask_late = runtime.n_pes(), mask_late
        self.shape: tuple[int, int, int, int] | None = None
        self.held: _symrail.EpLowLatency | None = None
        self.next_combine: Any = None
        self.dispatched: Rows | None = None
        self.experts = 0

    def prepare(self, most_tokens: int, token: int, scales: int, experts: int, k: int) -> _symrail.EpLowLatency:
        """Buffers that are large enough. Makes new ones if the present ones are not, which is collective."""
        if self.held is not None and self.shape is not None:
            tokens, bytes_each, of_scales, slots = self.shape
            fits = token <= bytes_each and scales <= of_scales and k <= slots
            if fits and (most_tokens, experts) == (tokens, self.experts):
                return self.held
        needed = _symrail.EpLowLatency.bytes(self.ranks, most_tokens, token, scales, experts, k)
        if needed > self.budget:
            raise ArgumentError(
                f"num_rdma_bytes={self.budget}: low latency with {most_tokens} tokens of {token} bytes from each rank, "
                f"{experts} experts and top-{k} takes {needed} (get_low_latency_rdma_size_hint gives it for elements of 2 bytes)"
            )
        self.free()
        made = _symrail.EpLowLatency(self.runtime, most_tokens, token, scales, experts, k, self.timeout)
        made.mask_late(self.mask_late)
        self.held, self.shape, self.experts = made, (most_tokens, token, scales, k), experts
        return made

    def buffers(self) -> _symrail.EpLowLatency:
        """The present buffers."""
        if self.held is None:
            raise ArgumentError("there was no low_latency_dispatch, nor clean_low_latency_buffer")
        return self.held

    def connect(self, ranks: list[int]) -> None:
        """See `Buffer.connect_ranks`."""
        self.buffers().connect(ranks)

    def free(self) -> None:
        """Frees the memory. Collective."""
        if self.held is not None:
            self.held.free()
            self.held = None

    @plain
    def dispatch(
        self, x: Any, topk_idx: Any, most_tokens: int, experts: int, stats: Any, use_fp8: bool, power_of_two: bool
    ) -> tuple[Any, Any, tuple[Any, ...], Hook]:
        """Sends. Returns arrays that the hook fills, which receives."""
        rows = Rows(x, "x")
        if len(x.shape) != 2:
            raise ArgumentError(f"x has the shape {tuple(x.shape)}; wanted is tokens x hidden")
        hidden, k = int(x.shape[1]), int(topk_idx.shape[-1])
        indices = numbers(topk_idx, "topk_idx", "int64", (rows.count, k))
        groups = -(-hidden // _GROUP)
        if stats is not None:
            must_take(stats, "cumulative_local_expert_recv_stats", (experts // self.ranks,))
        self.dispatched = rows
        buffers = self.prepare(most_tokens, rows.bytes, 4 * groups, experts, k)
        if use_fp8:
            cast, factors = _symrail.ep_cast_fp8(*rows.data, power_of_two)
            sent = buffers.send_dispatch(
                (cast, hidden, "float8_e4m3fn"), (factors.view(np.uint8), 4 * groups, "float32"), indices, k
            )
        else:
            sent = buffers.send_dispatch(rows.data, None, indices, k)
        share, most = experts // self.ranks, self.ranks * most_tokens
        shape = (share, most, hidden)
        if use_fp8:
            received: Any = as_fp8(np.zeros(share * most * hidden, np.uint8), rows.array, shape)
        else:
            received = rows.made(np.zeros(share * most * rows.bytes, np.uint8), *shape)
        # The scales of a group lie one after the other for all rows of an expert, as DeepEP's.
        scales = as_array(np.zeros((share, groups, most), np.float32).transpose(0, 2, 1), rows.array)
        counts = as_array(np.zeros(share, np.int32), rows.array)
        tokens = as_array(np.zeros((share, most), np.int32), rows.array)
        ranges = as_array(np.zeros((share, self.ranks), np.int64), rows.array)

        def receive() -> None:
            come = buffers.receive_dispatch(sent)
            store(received, as_dtype(come[0], rows.array, received.dtype, shape))
            if use_fp8:
                store(scales, as_array(come[1].view(np.float32).reshape(share, most, groups), rows.array))
            store(counts, as_array(come[2].astype("int32"), rows.array))
            store(tokens, as_array(come[3].reshape(share, most), rows.array))
            store(ranges, as_array(come[4].reshape(share, self.ranks), rows.array))
            if stats is not None:
                store(stats, stats + counts)

        handle = (tokens, ranges, most_tokens, hidden, experts)
        return (received, scales) if use_fp8 else received, counts, handle, receive

    @plain
    def combine(
        self, x: Any, topk_idx: Any, topk_weights: Any, handle: tuple[Any, ...], zero_copy: bool, out: Any, encode: bool
    ) -> tuple[Any, Hook]:
        """Sends. Returns the array that the hook fills, which receives."""
        _, ranges, most_tokens, hidden, experts = handle
        x = rows_to_combine(x, zero_copy, self.next_combine)
        shape = (experts // self.ranks, self.ranks * most_tokens, hidden)
        if tuple(x.shape) != shape:
            raise ArgumentError(f"x has the shape {tuple(x.shape)}; wanted is {shape}")
        rows = Rows(x.reshape(shape[0] * shape[1], hidden), "x")
        count, k = (int(length) for length in topk_idx.shape)
        indices = numbers(topk_idx, "topk_idx", "int64", (count, k))
        weights = numbers(topk_weights, "topk_weights", "float32", (count, k))
        if out is not None:
            must_take(out, "out", (count, hidden), x.dtype)
            if is_tensor(out) != is_tensor(x):
                raise ArgumentError(f"out is a {type(out).__name__}, and x a {type(x).__name__}")
        buffers = self.buffers()
        of_ranks = numbers(ranges, "handle", "int64", (shape[0], self.ranks))
        sent = buffers.send_combine(rows.data, rows.dtype, of_ranks, encode)
        combined = rows.made(np.zeros(count * rows.bytes, np.uint8), count, hidden) if out is None else out

        def receive() -> None:
            sums = buffers.receive_combine(sent, indices, weights, k)
            store(combined, rows.made(sums, count, hidden))

        return combined, receive

    def next_combine_buffer(self, handle: tuple[Any, ...]) -> Any:
        """An array for the next combine with `zero_copy`."""
        _, _, most_tokens, hidden, experts = handle
        if self.dispatched is None:
            raise ArgumentError("there was no low_latency_dispatch")
        share, most = experts // self.ranks, self.ranks * most_tokens
        data = np.zeros(share * most * self.dispatched.bytes, np.uint8)
        self.next_combine = self.dispatched.made(data, share, most, hidden)
        return self.next_combine
