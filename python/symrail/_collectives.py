"""Collectives of teams by NVSHMEM's names. All are collective over the team, and raise as `Team`'s methods do.

With `stream` they run in the order of that stream and return at once; see `Team`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import symrail

if TYPE_CHECKING:
    from ._symrail import Team


def team_world() -> Team:
    """The team of all PEs. Local."""
    return symrail.current().world


def barrier(team: Team, *, timeout: float | None = None, stream: Any = None) -> None:
    """Completes the operations that this PE has started, and waits for all PEs of the team. `timeout` is in seconds.
    Collective.

    With `stream`, the stream waits, and operations on streams are completed.
    """
    team.barrier(timeout=timeout, stream=stream)


def sync(team: Team, *, timeout: float | None = None, stream: Any = None) -> None:
    """Waits for all PEs of the team. `timeout` is in seconds. With `stream`, the stream waits. Collective."""
    team.sync(timeout=timeout, stream=stream)


def broadcast(team: Team, dst: Any, src: Any, root: int = 0, *, stream: Any = None) -> None:
    """Copies `src` of the team's PE `root` to `dst` on all; both of one dtype and length. Collective."""
    team.broadcast(dst, src, root, stream=stream)


def fcollect(team: Team, dst: Any, src: Any, *, stream: Any = None) -> None:
    """Copies `src` of each PE, of the same length on all, to `dst` on all, in the order of PEs. Collective."""
    team.fcollect(dst, src, stream=stream)


def collect(team: Team, dst: Any, src: Any, *, stream: Any = None) -> None:
    """As `fcollect`, with sources of different lengths; `dst` holds them all. Collective.

    On a stream, `quiet` raises OperationError if `dst` is too small.
    """
    team.collect(dst, src, stream=stream)


def reduce(team: Team, dst: Any, src: Any, op: str = "sum", *, stream: Any = None) -> None:
    """Combines all PEs' `src` into `dst` on all: "sum", "prod", "min", "max", "and", "or", "xor", "avg". Collective.

    `dst` and `src` have one length and dtype. Integers have all operations; floats all but "and", "or" and "xor";
    complex numbers "sum", "prod" and "avg"; bool all but "avg", where a sum is true if one of the values is. "min" and
    "max" are NaN if one of the elements is a NaN. float16 and bfloat16 are rounded after each step. On streams there
    are neither float16, bfloat16 and bool nor "avg".
    `src` is symmetric, or without a stream at most 8 KiB of any memory, and may be `dst`.
    """
    team.reduce(dst, src, op, stream=stream)


def reducescatter(team: Team, dst: Any, src: Any, op: str = "sum", *, stream: Any = None) -> None:
    """Combines the blocks of all PEs' `src`, one of `dst`'s length for each PE; each PE gets its own block.
    Collective."""
    team.reduce_scatter(dst, src, op, stream=stream)


def alltoall(team: Team, dst: Any, src: Any, *, stream: Any = None) -> None:
    """Copies block `i` of `src` to PE `i`, where it becomes block `my_pe` of `dst`. Collective."""
    team.alltoall(dst, src, stream=stream)
