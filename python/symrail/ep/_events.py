"""Events of calls. On host memory a call is complete when it returns, so there is nothing to wait for."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any


class EventHandle:
    """A point in the order of calls: on a GPU that of torch's current stream. `check` raises earlier errors.

    `later` is a stream of a GPU, as torch numbers it: then the event is made when it is first needed, at that stream's
    end. Most events of calls in the order of the current stream are never used, and each costs as much as a launch.
    """

    _event: Any = None

    def __init__(
        self, check: Callable[[], None] | None = None, stream: Any = None, later: tuple[int, int, int] | None = None
    ) -> None:
        self._check = check
        self._later = later
        if later is not None:
            return
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_initialized():
            self._event = torch.cuda.Event()
            self._event.record(stream)

    def _made(self) -> Any:
        """The event, if there is a GPU."""
        if self._later is not None:
            import torch

            number, index, kind = self._later
            stream = torch.cuda.Stream(stream_id=number, device_index=index, device_type=kind)
            self._event, self._later = torch.cuda.Event(), None
            self._event.record(stream)
        return self._event

    def current_stream_wait(self) -> None:
        """Makes torch's current stream wait until earlier calls are complete. On the host they are."""
        event = self._made()
        if event is not None:
            import torch

            torch.cuda.current_stream().wait_event(event)

    def synchronize(self) -> None:
        """Waits on the host until earlier calls are complete, and raises their errors."""
        event = self._made()
        if event is not None:
            event.synchronize()
        if self._check is not None:
            self._check()


class EventOverlap:
    """The result of a call for work that begins when the call is complete."""

    def __init__(self, event: EventHandle | None = None, extra_tensors: tuple[Any, ...] | None = None) -> None:
        self.event = event
        self.extra_tensors = extra_tensors

    def current_stream_wait(self) -> None:
        """Makes torch's current stream wait until the call is complete. On the host it is."""
        if self.event is not None:
            self.event.current_stream_wait()

    def synchronize(self) -> None:
        """Waits on the host until the call is complete, and raises its errors."""
        if self.event is not None:
            self.event.synchronize()

    def __enter__(self) -> EventOverlap:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.current_stream_wait()


def at_current_stream(gpu: int | None, check: Callable[[], None] | None) -> EventOverlap:
    """An event at the end of torch's current stream of a GPU, which is made when it is first needed; its `synchronize`
    raises earlier errors by `check`."""
    later = None if gpu is None else sys.modules["torch"]._C._cuda_getCurrentStream(gpu)
    return EventOverlap(EventHandle(check, None, later))
