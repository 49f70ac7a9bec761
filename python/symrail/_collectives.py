"""Collectives of teams by NVSHMEM's names. All are collective over the team, and raise what `Team`'s methods do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import symrail

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ._symrail import Team


def team_world() -> Team:
    """The team of all PEs. Local."""
    return symrail.current().world


def barrier(team: Team, *, timeout: float | None = None, stream: Any = None) -> None:
    """Completes what this PE has started, and waits for all PEs of the team. `timeout` is in seconds. Collective.

    With `stream`, the stream waits, and what was started on streams is completed.
    """
    team.barrier(timeout=timeout, stream=stream)


def sync(team: Team, *, timeout: float | None = None, stream: Any = None) -> None:
    """Waits for all PEs of the team. `timeout` is in seconds. With `stream`, the stream waits. Collective."""
    team.sync(timeout=timeout, stream=stream)


def broadcast(team: Team, dst: NDArray[Any], src: NDArray[Any], root: int = 0) -> None:
    """Copies `src` of the team's PE `root` to `dst` on all; both of one dtype and length. Collective."""
    team.broadcast(dst, src, root)


def fcollect(team: Team, dst: NDArray[Any], src: NDArray[Any]) -> None:
    """Copies `src` of each PE, as long on all, to `dst` on all, one behind the other. Collective."""
    team.fcollect(dst, src)


def collect(team: Team, dst: NDArray[Any], src: NDArray[Any]) -> None:
    """As `fcollect`, with sources of different lengths; `dst` holds them all. Collective."""
    team.collect(dst, src)


def reduce(team: Team, dst: NDArray[Any], src: NDArray[Any], op: str = "sum") -> None:
    """Combines all PEs' `src` into `dst` on all: "sum", "prod", "min", "max", "and", "or", "xor". Collective.

    `dst` and `src` have one length and dtype: integers and floats; complex numbers have sum and prod. `src` is symmetric,
    or of at most 8 KiB.
    """
    team.reduce(dst, src, op)


def reducescatter(team: Team, dst: NDArray[Any], src: NDArray[Any], op: str = "sum") -> None:
    """Combines the blocks of all PEs' `src`, one as long as `dst` for each PE, and leaves each its own. Collective."""
    team.reduce_scatter(dst, src, op)


def alltoall(team: Team, dst: NDArray[Any], src: NDArray[Any]) -> None:
    """Copies block `i` of `src` to PE `i`, where it becomes block `my_pe` of `dst`. Collective."""
    team.alltoall(dst, src)
