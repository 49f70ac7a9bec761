"""Sends and receives that are done all at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass
class P2POp:
    """One of `batch_isend_irecv`: `op` is a communicator's `isend` or `irecv`, or "send" or "recv"."""

    op: Callable[..., Any] | str
    tensor: Any
    peer: int

    @property
    def receives(self) -> bool:
        """Whether it is a receive."""
        return getattr(self.op, "__name__", str(self.op)).removeprefix("i") == "recv"


class Collected:
    """The sends and receives of a group so far, and their stream."""

    def __init__(self) -> None:
        self.transfers: list[tuple[bool, int, Any]] = []
        self.stream: Any = None
