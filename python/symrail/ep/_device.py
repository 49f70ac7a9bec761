"""Low latency on tensors of a GPU: kernels in the order of a stream. The host never waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from .. import _symrail
from ..errors import ArgumentError, StateError
from ._low import rows_to_combine
from ._on_gpu import ROW_ALIGN, Held, address, current_stream, must_not_capture

Hook = Callable[[], None]
_GROUP = 128
"""Elements that share a scale of FP8."""
_PACKED = 4
"""Scales in a word, if they are packed."""
_HELD = 2
"""The last dispatches whose tokens memory holds."""


class DispatchHandle(NamedTuple):
    """What a combine needs of its dispatch: DeepEP's five values."""

    recv_src_info: Any
    """For each expert and row the number of the token at its source ([experts of the rank, room], int32)."""
    recv_layout_range: Any
    """For each expert and rank the first row of that rank in the upper half, and their number ([.., ranks], int64)."""
    num_max_dispatch_tokens_per_rank: int
    hidden: int
    num_experts: int


class DeviceLowLatency(Held[_symrail.EpDeviceLowLatency]):
    """Buffers of the last dispatch's shape."""

    def __init__(self, runtime: _symrail.Runtime, mask_late: bool, timeout: float | None) -> None:
        super().__init__(runtime)
        self.timeout = timeout
        self.mask_late = mask_late
        self.shape: tuple[int, int, int, int] | None = None
        # The numbers of the dispatches that were sent and received here, by the addresses of their handles; replays of
        # graphs are not seen here. Hooks that were not called yet.
        self.sent = 0
        self.numbers: dict[int, int] = {}
        self.open: set[str] = set()
        self.next_combine: Any = None

    def prepare(self, most_tokens: int, hidden: int, experts: int, k: int) -> _symrail.EpDeviceLowLatency:
        """Buffers of this shape. Makes new ones if the present ones have another shape, which is collective."""
        shape = (most_tokens, hidden, experts, k)
        if self.held is None or self.shape != shape:
            must_not_capture("no buffers can be made: call it once with the same shapes before")
            self.free()
            self.numbers, self.open, self.next_combine = {}, set(), None
            self.held = _symrail.EpDeviceLowLatency(self.runtime, *shape, self.mask_late, self.timeout)
            self.shape = shape
        return self.held

    def _must_be_closed(self, call: str) -> None:
        """Refuses a call while a call of the same kind waits for its hook."""
        if call in self.open:
            raise StateError(f"{call}: the hook of the last one was not called; one at a time is sent")

    def _must_be_held(self, handle: tuple[Any, ...]) -> int:
        """The address of the dispatch's number. Refuses a dispatch whose tokens are not there (any more)."""
        ranges = handle[1]
        at = int(ranges.data_ptr())
        number = self.numbers.get(at)
        if number is None:
            raise StateError("low_latency_combine: the handle is of no low_latency_dispatch that was received here")
        if self.sent - number >= _HELD:
            raise StateError(
                "low_latency_combine: the handle is not that of the last low_latency_dispatch, nor of the one before; "
                "the memory of earlier ones was reused"
            )
        return at + 8 * int(ranges.shape[0]) * int(ranges.shape[1])

    def dispatch(
        self,
        x: Any,
        topk_idx: Any,
        most_tokens: int,
        experts: int,
        stats: Any,
        use_fp8: bool,
        power_of_two: bool,
        packs: bool = False,
        waits: Any = None,
        receives: bool = True,
    ) -> tuple[Any, Any, tuple[Any, ...], Hook]:
        """Sends, and with `receives` also receives; otherwise the hook does, which fills the arrays."""
        import torch

        if len(x.shape) != 2 or len(topk_idx.shape) != 2:
            shapes = f"{tuple(x.shape)} and {tuple(topk_idx.shape)}"
            raise ArgumentError(f"x and topk_idx have the shapes {shapes}; wanted are two dimensions")
        (tokens, hidden), k = x.shape, topk_idx.shape[1]
        if tokens > most_tokens:
            raise ArgumentError(f"x has {tokens} tokens; num_max_dispatch_tokens_per_rank is {most_tokens}")
        if packs and hidden % (_GROUP * _PACKED):
            raise ArgumentError(f"use_ue8m0=True: x has {hidden} elements; wanted is a multiple of {_GROUP * _PACKED}")
        rows = address(x, "x", self.gpu, "bfloat16", (tokens, hidden), ROW_ALIGN)
        slots = address(topk_idx, "topk_idx", self.gpu, "int64", (tokens, k))
        share, room, groups = experts // self.ranks, self.ranks * most_tokens, -(-hidden // _GROUP)
        all_counts = its_waits = 0
        if stats is not None:
            all_counts = address(stats, "cumulative_local_expert_recv_stats", self.gpu, "int32", (share,))
        if waits is not None:
            its_waits = address(waits, "dispatch_wait_recv_cost_stats", self.gpu, "int64", (self.ranks,))
        buffers = self.prepare(most_tokens, hidden, experts, k)
        self._must_be_closed("low_latency_dispatch")
        empty, device = torch.empty, x.device
        received = empty((share, room, hidden), dtype=torch.float8_e4m3fn if use_fp8 else torch.bfloat16, device=device)
        scales, of_scales = None, 0
        if use_fp8:
            # The scales of a group lie one after the other for all rows of an expert.
            words, dtype = (groups // _PACKED, torch.int32) if packs else (groups, torch.float32)
            scales = empty((share, words, room), dtype=dtype, device=device)
            of_scales = scales.data_ptr()
        counts = empty((share,), dtype=torch.int32, device=device)
        sources = empty((share, room), dtype=torch.int32, device=device)
        # The number of the dispatch lies behind the ranges.
        ranges = empty((share * self.ranks + 1,), dtype=torch.int64, device=device)
        at = ranges.data_ptr()
        number = at + 8 * share * self.ranks
        to = (
            received.data_ptr(),
            of_scales,
            counts.data_ptr(),
            sources.data_ptr(),
            at,
            number,
            all_counts,
            its_waits,
            packs,
        )
        given = (rows, slots, tokens, use_fp8, power_of_two)
        buffers.dispatch(current_stream(self.gpu), given, to if receives else None)
        self.sent += 1
        self.numbers = {of: sent for of, sent in self.numbers.items() if self.sent - sent < _HELD}
        self.numbers.pop(at, None)
        if receives:
            self.numbers[at] = self.sent
        else:
            self.open.add("low_latency_dispatch")
        kept = (x, topk_idx, stats, waits, received, scales, counts, sources, ranges)

        def receive() -> None:
            if "low_latency_dispatch" not in self.open or not kept:
                raise StateError("a second call of a hook of low_latency_dispatch: dispatch again before it")
            buffers.receive_dispatch(current_stream(self.gpu), to)
            self.open.discard("low_latency_dispatch")
            self.numbers[at] = self.sent

        layout = ranges[:-1].view(share, self.ranks)
        handle = DispatchHandle(sources, layout, most_tokens, hidden, experts)
        result = received if scales is None else (received, scales.transpose(1, 2))
        return result, counts, handle, receive

    def combine(
        self,
        x: Any,
        topk_idx: Any,
        topk_weights: Any,
        handle: tuple[Any, ...],
        zero_copy: bool,
        out: Any,
        waits: Any = None,
        receives: bool = True,
    ) -> tuple[Any, Hook]:
        """Sends, and with `receives` also receives; otherwise the hook does, which fills the array."""
        import torch

        _, _, most_tokens, hidden, experts = handle
        x = rows_to_combine(x, zero_copy, self.next_combine)
        if len(topk_idx.shape) != 2:
            raise ArgumentError(f"topk_idx has the shape {tuple(topk_idx.shape)}; wanted are two dimensions")
        tokens, k = topk_idx.shape
        buffers = self.buffers()
        if self.shape != (most_tokens, hidden, experts, k) or tokens > most_tokens:
            raise ArgumentError(f"{tokens} tokens with {k} slots do not go with a dispatch of the shape {self.shape}")
        shape = (experts // self.ranks, self.ranks * most_tokens, hidden)
        rows = address(x, "x", self.gpu, "bfloat16", shape, ROW_ALIGN)
        slots = address(topk_idx, "topk_idx", self.gpu, "int64", (tokens, k))
        weights = address(topk_weights, "topk_weights", self.gpu, "float32", (tokens, k))
        its_waits = 0
        if waits is not None:
            its_waits = address(waits, "combine_wait_recv_cost_stats", self.gpu, "int64", (self.ranks,))
        combined = torch.empty((tokens, hidden), dtype=torch.bfloat16, device=x.device) if out is None else out
        sums = address(combined, "out", self.gpu, "bfloat16", (tokens, hidden), ROW_ALIGN)
        if "low_latency_dispatch" in self.open and handle[1].data_ptr() not in self.numbers:
            raise StateError("low_latency_combine before the dispatch was received: call its hook before")
        self._must_be_closed("low_latency_combine")
        number = self._must_be_held(handle)
        to = (slots, sums, its_waits, tokens)
        buffers.combine(current_stream(self.gpu), (rows, weights, number, tokens), to if receives else None)
        if not receives:
            self.open.add("low_latency_combine")
        kept = (x, topk_idx, topk_weights, combined, waits)

        def receive() -> None:
            if "low_latency_combine" not in self.open or not kept:
                raise StateError("a second call of a hook of low_latency_combine: combine again before it")
            buffers.receive_combine(current_stream(self.gpu), to)
            self.open.discard("low_latency_combine")

        return combined, receive

    def next_combine_buffer(self, handle: tuple[Any, ...]) -> Any:
        """A tensor for the next combine with `zero_copy`; one for all handles of a shape."""
        import torch

        sources, _, most_tokens, hidden, experts = handle
        shape = (experts // self.ranks, self.ranks * most_tokens, hidden)
        if self.next_combine is None or self.next_combine.shape != shape:
            self.next_combine = torch.empty(shape, dtype=torch.bfloat16, device=sources.device)
        return self.next_combine
