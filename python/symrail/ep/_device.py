"""Low latency on tensors of a GPU: kernels, one call after the other. The host waits only at the first change of streams."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from .. import _symrail
from .._symrail import ep_low_latency_dispatch_tensors as dispatch_tensors
from ..errors import StateError
from ._low import rows_to_combine
from ._on_gpu import Held, current_stream, must_not_capture

Hook = Callable[[], None]
_HELD = 2
"""The last dispatches whose tokens memory holds."""
_tuple = tuple.__new__


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

    def __init__(self, runtime: _symrail.Runtime, mask_late: bool, timeout: float | None, reserved: int = 0) -> None:
        """With `reserved` bytes memory is made now, which is collective, and the first shape that fits waits for no rank."""
        super().__init__(runtime, timeout)
        self.mask_late = mask_late
        if reserved:
            self.held = _symrail.EpDeviceLowLatency.reserved(runtime, reserved, timeout)
        self.shape = (0, 0, 0, 0)
        # The numbers of the dispatches that were sent and received here, by the addresses of their handles; replays of
        # graphs are not seen here. The tensors of calls whose hooks were not called yet, by which hooks know their call.
        self.sent = 0
        self.numbers: dict[int, int] = {}
        self.open: dict[str, object] = {}
        # The number of the dispatch whose tokens the open combine returns.
        self.returning = 0
        self.next_combine: Any = None

    def prepare(self, most_tokens: int, hidden: int, experts: int, k: int) -> _symrail.EpDeviceLowLatency:
        """Buffers of this shape. Makes new ones if the present ones have another shape, which is collective."""
        shape = (most_tokens, hidden, experts, k)
        if self.held is None or self.shape != shape:
            must_not_capture("no buffers can be made: call it once with the same shapes before")
            if self.held is None or not self.held.shape(*shape):
                Held.free(self)
                self.held = _symrail.EpDeviceLowLatency(self.runtime, *shape, self.mask_late, self.timeout)
            self.numbers, self.open, self.next_combine = {}, {}, None
            self.shape = shape
        return self.held

    def must_have_no_views(self) -> None:
        """As for others; where late ranks are masked, views keep the memory, and `free` waits for no rank."""
        if not self.mask_late:
            super().must_have_no_views()

    def free(self) -> None:
        """Frees the memory. Collective; where late ranks are masked, it waits for none: all ranks free it later."""
        if self.mask_late:
            self.held = None
        super().free()

    def connect(self, ranks: list[int]) -> None:
        """See `Buffer.connect_ranks`."""
        must_not_capture("no ranks can be connected")
        self.buffers().connect(ranks)
        self.sent, self.numbers, self.open = 0, {}, {}

    def _must_be_closed(self, call: str) -> None:
        """Refuses a call while a call of the same kind waits for its hook."""
        if call in self.open:
            raise StateError(f"{call}: the hook of the last one was not called; one at a time is sent")

    def _must_not_overwrite(self) -> None:
        """Refuses a dispatch into memory that the hook of an open combine reads."""
        if "low_latency_combine" in self.open and self.sent + 1 - self.returning >= _HELD:
            raise StateError(
                "low_latency_dispatch: the hook of a low_latency_combine was not called, whose tokens this dispatch "
                "would overwrite: call it before"
            )

    def _must_be_held(self, ranges: int) -> None:
        """Refuses a dispatch whose tokens are not there (any more)."""
        number = self.numbers.get(ranges)
        if number is None:
            raise StateError("low_latency_combine: the handle is of no low_latency_dispatch that was received here")
        if self.sent - number >= _HELD:
            raise StateError(
                "low_latency_combine: the handle is not that of the last low_latency_dispatch, nor of the one before; "
                "the memory of earlier ones was reused"
            )

    def dispatch(
        self, of_call: tuple[Any, ...], receives: bool = True
    ) -> tuple[Any, Any, tuple[Any, ...], Hook | None]:
        """Sends, and with `receives` also receives; otherwise the hook does, which fills the arrays. `of_call` is what
        the native call takes."""
        if self.open:
            self._must_be_closed("low_latency_dispatch")
            self._must_not_overwrite()
        stream, buffers, of = current_stream(self.gpu), self.held, (self.gpu, self.ranks, self.shape)
        made = None if buffers is None else buffers.dispatch(stream, receives, of, of_call)
        if made is None:
            x, topk_idx, most_tokens, experts = of_call[:4]
            # Other tensors than kernels take are refused before buffers are made, which is collective.
            dispatch_tensors(self.gpu, self.ranks, (0, 0, 0, 0), of_call)
            buffers = self.prepare(most_tokens, x.shape[1], experts, topk_idx.shape[1])
            made = buffers.dispatch(stream, receives, (self.gpu, self.ranks, self.shape), of_call)
            assert made is not None
        (received, scales, counts, sources, ranges), to = made
        sent = self.sent = self.sent + 1
        numbers, at = self.numbers, to[4]
        # They are in the order of dispatches.
        while numbers and sent - numbers[first := next(iter(numbers))] >= _HELD:
            del numbers[first]
        if at in numbers:
            del numbers[at]
        handle = _tuple(DispatchHandle, (sources, ranges, of_call[2], self.shape[1], of_call[3]))
        result = received if scales is None else (received, scales)
        if not receives:
            return result, counts, handle, self._hook_of_dispatch((of_call, result, counts, handle), buffers, to)
        numbers[at] = sent
        return result, counts, handle, None

    def _hook_of_dispatch(self, kept: object, buffers: Any, to: Any) -> Hook:
        self.open["low_latency_dispatch"] = kept

        def receive() -> None:
            if self.open.get("low_latency_dispatch") is not kept:
                raise StateError("a second call of a hook of low_latency_dispatch: each dispatch has its own hook")
            buffers.receive_dispatch(current_stream(self.gpu), to)
            del self.open["low_latency_dispatch"]
            self.numbers[to[4]] = self.sent

        return receive

    def rows_to_combine(self, x: Any) -> Any:
        """The rows of a combine with `zero_copy`."""
        self.buffers()
        return rows_to_combine(x, True, self.next_combine)

    def combine(
        self, of_call: tuple[Any, ...], receives: bool = True, encodes: bool = False
    ) -> tuple[Any, Hook | None]:
        """Sends, and with `receives` also receives; otherwise the hook does, which fills the array. `of_call` is what
        the native call takes."""
        buffers = self.held or self.buffers()
        # With an open call nothing is held: the tensors are refused first.
        held = [] if "low_latency_combine" in self.open else [*self.numbers]
        of = (self.gpu, self.ranks, self.shape)
        combined, ranges, to = buffers.combine(current_stream(self.gpu), receives, encodes, held, of, of_call)
        if combined is None:
            if "low_latency_dispatch" in self.open and ranges not in self.numbers:
                raise StateError("low_latency_combine before the dispatch was received: call its hook before")
            self._must_be_closed("low_latency_combine")
            self._must_be_held(ranges)
        if receives:
            return combined, None
        self.returning = self.numbers[ranges]
        return combined, self._hook_of_combine((of_call, combined), buffers, encodes, to)

    def _hook_of_combine(self, kept: object, buffers: Any, encodes: bool, to: Any) -> Hook:
        self.open["low_latency_combine"] = kept

        def receive() -> None:
            if self.open.get("low_latency_combine") is not kept:
                raise StateError("a second call of a hook of low_latency_combine: each combine has its own hook")
            buffers.receive_combine(current_stream(self.gpu), encodes, to)
            del self.open["low_latency_combine"]

        return receive

    def returned(self) -> _symrail.Memory:
        """The memory of rows that return."""
        must_not_capture("the host does not wait for the GPU, as get_local_buffer_tensor does")
        self._must_be_closed("low_latency_combine")
        return self.left().returned()

    def next_combine_buffer(self, handle: tuple[Any, ...]) -> Any:
        """A tensor for the next combine with `zero_copy`; one for all handles of a shape."""
        import torch

        sources, _, most_tokens, hidden, experts = handle
        shape = (experts // self.ranks, self.ranks * most_tokens, hidden)
        if self.next_combine is None or self.next_combine.shape != shape:
            self.next_combine = torch.empty(shape, dtype=torch.bfloat16, device=sources.device)
        return self.next_combine
