"""Sends and receives that are performed all at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..errors import ArgumentError


@dataclass
class P2POp:
    """One of `batch_isend_irecv`: `op` is a communicator's `isend` or `irecv`, or "send" or "recv".

    Raises ArgumentError for any other `op`.
    """

    op: Callable[..., Any] | str
    tensor: Any
    peer: int

    def __post_init__(self) -> None:
        self._name()

    def _name(self) -> str:
        name = getattr(self.op, "__name__", str(self.op))
        if name not in ("send", "isend", "recv", "irecv"):
            raise ArgumentError(f"op is {self.op!r}; there are isend and irecv of a communicator, and their names")
        return name

    @property
    def receives(self) -> bool:
        """Whether it is a receive. Raises ArgumentError if `op` has become something else."""
        return self._name().endswith("recv")


class Collected:
    """The sends and receives of a group so far, and their stream."""

    def __init__(self) -> None:
        self.transfers: list[tuple[bool, int, Any]] = []
        self.stream: Any = None
