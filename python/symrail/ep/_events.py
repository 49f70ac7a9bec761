"""Events of calls. On host memory a call is complete when it returns, so there is nothing to wait for."""

from __future__ import annotations

from types import TracebackType
from typing import Any


class EventHandle:
    """A point in the order of calls."""

    def current_stream_wait(self) -> None:
        """Waits until what was called before is complete. It is."""


class EventOverlap:
    """What a call returns for work that is to begin when it is complete."""

    def __init__(self, event: EventHandle | None = None, extra_tensors: tuple[Any, ...] | None = None) -> None:
        self.event = event
        self.extra_tensors = extra_tensors

    def current_stream_wait(self) -> None:
        """Waits until the call is complete. It is."""

    def __enter__(self) -> EventOverlap:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.current_stream_wait()
