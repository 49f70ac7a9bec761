"""Calls on the communication stream, as DeepEP makes them with `async_finish`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from .._gpu import is_on_gpu
from ..errors import ArgumentError
from ._events import EventHandle, EventOverlap, at_current_stream


def _tensors(values: Any) -> Iterator[Any]:
    """The tensors among values, tuples of them, and values that tell their `tensors()`."""
    for value in values:
        if isinstance(value, tuple):
            yield from _tensors(value)
        elif hasattr(value, "tensors"):
            yield from _tensors(value.tensors())
        elif hasattr(value, "record_stream") and is_on_gpu(value):
            yield value


class _Call:
    """A call that is launched on torch's current stream."""

    stream: Any = None

    def __init__(self, gpu: int | None) -> None:
        self.gpu = gpu

    def __enter__(self) -> _Call:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        pass

    def made(self, *results: Any) -> None:
        """The results of the call."""

    def event(self, check: Callable[[], None] | None) -> EventOverlap:
        """The event behind the call, whose `synchronize` raises earlier errors by `check`."""
        return at_current_stream(self.gpu, check)


class _CallElsewhere(_Call):
    """A call that is launched on another stream, behind an event or the current stream's earlier work."""

    def __init__(self, stream: Any, previous: EventOverlap | None, given: tuple[Any, ...]) -> None:
        import torch

        self.stream, self.caller, self.given = stream, torch.cuda.current_stream(), given
        self.results: tuple[Any, ...] = ()
        self.current = torch.cuda.stream(stream)
        self.previous = previous

    def __enter__(self) -> _Call:
        self.current.__enter__()
        try:
            if self.previous is not None and self.previous.event is not None:
                self.previous.current_stream_wait()
            else:
                self.stream.wait_stream(self.caller)
        except BaseException:
            self.current.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.current.__exit__(None, None, None)
        # A call that fails may have launched a part of its work.
        for tensor in _tensors(self.given):
            tensor.record_stream(self.stream)
        if kind is not None:
            return
        for tensor in _tensors(self.results):
            tensor.record_stream(self.caller)

    def made(self, *results: Any) -> None:
        self.results = results

    def event(self, check: Callable[[], None] | None) -> EventOverlap:
        return EventOverlap(EventHandle(check, self.stream))


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

    def of_call(
        self, previous: EventOverlap | None, is_async: bool, allocates_there: bool, given: tuple[Any, ...]
    ) -> _Call:
        """Launches a call on the current stream, or with `is_async` on the communication stream.

        The latter waits for `previous`, or the current stream's earlier work. Tensors that both streams use are kept by
        torch until both have come so far. With `allocates_there` results are memory of the communication stream.
        Raises ArgumentError if that is requested without `previous` and `is_async`, as DeepEP does.
        """
        if allocates_there and (previous is None or not is_async):
            raise ArgumentError("allocate_on_comm_stream goes with previous_event and async_finish")
        if is_async:
            return _CallElsewhere(self.get(), previous, given)
        if previous is not None:
            previous.current_stream_wait()
        return _Call(self.gpu)
