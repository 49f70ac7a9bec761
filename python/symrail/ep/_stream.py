"""Calls on the communication stream, as DeepEP makes them with `async_finish`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ..errors import ArgumentError
from ._events import EventHandle, EventOverlap


def _tensors(values: Any) -> Iterator[Any]:
    """The tensors among values and tuples of them."""
    for value in values:
        if isinstance(value, tuple):
            yield from _tensors(value)
        elif hasattr(value, "record_stream"):
            yield value


class _Call:
    """A call that is launched."""

    def __init__(self, stream: Any, gpu: int | None) -> None:
        self.stream, self.gpu = stream, gpu
        self.results: tuple[Any, ...] = ()

    def made(self, *results: Any) -> None:
        """The results of the call."""
        self.results = results

    def event(self, check: Callable[[], None] | None) -> EventOverlap:
        """The event behind the call, whose `synchronize` raises earlier errors by `check`."""
        later = None
        if self.stream is None and self.gpu is not None:
            import torch

            later = torch._C._cuda_getCurrentStream(self.gpu)
        return EventOverlap(EventHandle(check, self.stream, later))


class CommunicationStream:
    """A stream that is made when it is first needed."""

    def __init__(self, gpu: int | None = None) -> None:
        self.stream: Any = None
        self.gpu = gpu

    def get(self) -> Any:
        """The stream, on torch's current GPU."""
        import torch

        if self.stream is None:
            self.stream = torch.cuda.Stream(priority=-1)
        return self.stream

    @contextmanager
    def of_call(
        self, previous: EventOverlap | None, is_async: bool, allocates_there: bool, given: tuple[Any, ...]
    ) -> Iterator[_Call]:
        """Launches a call on the current stream, or with `is_async` on the communication stream.

        The latter waits for `previous`, or the current stream's earlier work. Tensors that both streams use are kept by
        torch until both have come so far. With `allocates_there` results are memory of the communication stream.
        Raises ArgumentError if that is requested without `previous` and `is_async`, as DeepEP does.
        """
        if allocates_there and (previous is None or not is_async):
            raise ArgumentError("allocate_on_comm_stream goes with previous_event and async_finish")
        if not is_async:
            if previous is not None:
                previous.current_stream_wait()
            yield _Call(None, self.gpu)
            return
        import torch

        stream, caller = self.get(), torch.cuda.current_stream()
        with torch.cuda.stream(stream):
            if previous is not None and previous.event is not None:
                previous.current_stream_wait()
            else:
                stream.wait_stream(caller)
            call = _Call(stream, self.gpu)
            yield call
        for tensor in _tensors(given):
            tensor.record_stream(stream)
        for tensor in _tensors(call.results):
            tensor.record_stream(caller)
