"""Low latency on tensors of a GPU: kernels in the order of torch's current stream. The host never waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import _symrail
from ..errors import ArgumentError, StateError, UnsupportedError
from ._low import rows_to_combine
from ._on_gpu import ROW_ALIGN, Held, address, must_not_capture

Hook = Callable[[], None]
_GROUP = 128
"""Elements that share a scale of FP8."""


class _Round:
    """The calls of a round so far: the kernels of a call that is out of turn would use another round's memory."""

    CALLS = ("low_latency_dispatch", "its receiving", "low_latency_combine", "its receiving")

    def __init__(self, sources: Any) -> None:
        self.of, self.made = int(sources.data_ptr()), 1

    def must_be_next(self, call: int, sources: Any = None) -> None:
        """Raises StateError unless this is the next call of the round, with the handle of its dispatch."""
        if sources is not None and int(sources.data_ptr()) != self.of:
            raise StateError("low_latency_combine: the handle is not that of the last low_latency_dispatch")
        if self.made > call:
            raise StateError(f"a second {self.CALLS[call]} after one low_latency_dispatch: dispatch again before it")
        if self.made < call:
            raise StateError(f"{self.CALLS[call]} before the dispatch was received: call its hook before")


class DeviceLowLatency(Held[_symrail.EpDeviceLowLatency]):
    """Buffers of the last dispatch's shape."""

    def __init__(self, runtime: _symrail.Runtime, mask_late: bool, timeout: float | None) -> None:
        super().__init__(runtime)
        self.timeout = timeout
        self.mask_late = mask_late
        # None if it is not known: replays of graphs make calls that are not seen here.
        self.round: _Round | None = None
        self.shape: tuple[int, int, int, int, bool] | None = None
        self.next_combine: Any = None

    def prepare(self, most_tokens: int, hidden: int, experts: int, k: int, fp8: bool) -> _symrail.EpDeviceLowLatency:
        """Buffers of this shape. Makes new ones if the present ones have another shape, which is collective."""
        shape = (most_tokens, hidden, experts, k, fp8)
        if self.held is None or self.shape != shape:
            must_not_capture("no buffers can be made: call it once with the same shapes before")
            self.free()
            self.round = None
            self.held = _symrail.EpDeviceLowLatency(self.runtime, *shape, self.mask_late, self.timeout)
            self.shape = shape
        return self.held

    def _begin(self, call: int, sources: Any = None) -> None:
        """Before a call is launched: refuses one that is out of turn."""
        import torch

        if torch.cuda.is_current_stream_capturing():
            self.round = None
        elif call == 0:
            if self.round is not None and self.round.made < len(_Round.CALLS):
                raise StateError("the last low_latency_dispatch has no combine that was received: one at a time is made")
        elif self.round is not None:
            self.round.must_be_next(call, sources)

    def _end(self, call: int) -> None:
        """After a call was launched."""
        if self.round is not None:
            self.round.made = call + 1

    def dispatch(
        self, x: Any, topk_idx: Any, most_tokens: int, experts: int, stats: Any, use_fp8: bool, power_of_two: bool
    ) -> tuple[Any, Any, tuple[Any, ...], Hook]:
        """Sends. Returns arrays that the hook fills, which receives."""
        import torch

        if power_of_two:
            raise UnsupportedError("round_scale=True: on a GPU scales are not rounded to powers of two")
        if len(x.shape) != 2 or len(topk_idx.shape) != 2:
            shapes = f"{tuple(x.shape)} and {tuple(topk_idx.shape)}"
            raise ArgumentError(f"x and topk_idx have the shapes {shapes}; wanted are two dimensions")
        (tokens, hidden), k = (int(length) for length in x.shape), int(topk_idx.shape[1])
        if tokens > most_tokens:
            raise ArgumentError(f"x has {tokens} tokens; num_max_dispatch_tokens_per_rank is {most_tokens}")
        rows = address(x, "x", self.gpu, "bfloat16", (tokens, hidden), ROW_ALIGN)
        slots = address(topk_idx, "topk_idx", self.gpu, "int64", (tokens, k))
        share, room, groups = experts // self.ranks, self.ranks * most_tokens, -(-hidden // _GROUP)
        if stats is not None:
            address(stats, "cumulative_local_expert_recv_stats", self.gpu, "int32", (share,))
        buffers = self.prepare(most_tokens, hidden, experts, k, use_fp8)
        buffers.check()

        def empty(dtype: Any, *shape: int) -> Any:
            return torch.empty(shape, dtype=dtype, device=x.device)

        received = empty(torch.float8_e4m3fn if use_fp8 else torch.bfloat16, share, room, hidden)
        scales = empty(torch.float32, share, room, groups if use_fp8 else 0)
        counts, sources = empty(torch.int32, share), empty(torch.int64, share, room)
        self._begin(0)
        buffers.send_dispatch(torch.cuda.current_stream().cuda_stream, rows, slots, tokens)
        self.round = None if torch.cuda.is_current_stream_capturing() else _Round(sources)

        def receive() -> None:
            self._begin(1, sources)
            # The function keeps the tensors until then.
            to = (received.data_ptr(), scales.data_ptr(), counts.data_ptr(), sources.data_ptr())
            buffers.receive_dispatch(torch.cuda.current_stream().cuda_stream, to)
            self._end(1)
            if stats is not None:
                stats.add_(counts)

        handle = (sources, counts, most_tokens, hidden, experts)
        return (received, scales) if use_fp8 else received, counts, handle, receive

    def combine(
        self, x: Any, topk_idx: Any, topk_weights: Any, handle: tuple[Any, ...], zero_copy: bool, out: Any
    ) -> tuple[Any, Hook]:
        """Sends. Returns the array that the hook fills, which receives."""
        import torch

        sources, _, most_tokens, hidden, experts = handle
        x = rows_to_combine(x, zero_copy, self.next_combine)
        if len(topk_idx.shape) != 2:
            raise ArgumentError(f"topk_idx has the shape {tuple(topk_idx.shape)}; wanted are two dimensions")
        tokens, k = (int(length) for length in topk_idx.shape)
        buffers = self.buffers()
        if self.shape is None or self.shape[:4] != (most_tokens, hidden, experts, k) or tokens > most_tokens:
            raise ArgumentError(f"{tokens} tokens with {k} slots do not go with a dispatch of the shape {self.shape}")
        shape = (experts // self.ranks, self.ranks * most_tokens, hidden)
        rows = address(x, "x", self.gpu, "bfloat16", shape, ROW_ALIGN)
        address(topk_idx, "topk_idx", self.gpu, "int64", (tokens, k))
        address(topk_weights, "topk_weights", self.gpu, "float32", (tokens, k))
        combined = torch.empty((tokens, hidden), dtype=torch.bfloat16, device=x.device) if out is None else out
        address(combined, "out", self.gpu, "bfloat16", (tokens, hidden), ROW_ALIGN)
        self._begin(2, sources)
        buffers.send_combine(torch.cuda.current_stream().cuda_stream, rows, topk_weights.data_ptr(), tokens)
        self._end(2)

        def receive() -> None:
            self._begin(3, sources)
            # The function keeps the tensors until then.
            stream = torch.cuda.current_stream().cuda_stream
            buffers.receive_combine(stream, topk_idx.data_ptr(), tokens, combined.data_ptr())
            self._end(3)

        return combined, receive

    def next_combine_buffer(self, handle: tuple[Any, ...]) -> Any:
        """A tensor for the next combine with `zero_copy`."""
        import torch

        sources, _, most_tokens, hidden, experts = handle
        shape = (experts // self.ranks, self.ranks * most_tokens, hidden)
        self.next_combine = torch.empty(shape, dtype=torch.bfloat16, device=sources.device)
        return self.next_combine
