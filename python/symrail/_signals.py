"""Signals by NVSHMEM's names."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any

import symrail

from .errors import ArgumentError

if TYPE_CHECKING:
    from numpy.typing import NDArray


class SignalOp(Enum):
    """How a signal word is updated."""

    SIGNAL_SET = "set"
    SIGNAL_ADD = "add"


class ComparisonType(Enum):
    """How a word is compared with a value."""

    CMP_EQ = "=="
    CMP_NE = "!="
    CMP_GT = ">"
    CMP_GE = ">="
    CMP_LT = "<"
    CMP_LE = "<="


def signal_wait(
    signal_var: NDArray[Any],
    signal_val: int,
    signal_op: ComparisonType | str = ComparisonType.CMP_EQ,
    *,
    offset: int = 0,
    timeout: float | None = None,
    stream: Any = None,
) -> int | None:
    """Waits until a signal word of this PE compares to `signal_val` as asked, and returns it. Local.

    As `wait_until`, with NVSHMEM's name and order of arguments; `timeout` is in seconds. With `stream` this returns
    None at once, and the stream waits: for "==" and ">=" without limit, otherwise for SYMRAIL_TIMEOUT_S seconds. Behind
    a wait whose time is over, no operation on streams copies or signals anything, until `quiet` has raised it.
    """
    if stream is not None:
        if timeout is not None:
            raise ArgumentError("a wait of a stream has no timeout of its own")
        symrail.current().wait_on_stream(signal_var, signal_op, signal_val, offset, stream)
        return None
    return symrail.current().wait_until(signal_var, signal_op, signal_val, offset=offset, timeout=timeout)
