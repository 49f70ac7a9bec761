"""Collectives of teams by NVSHMEM's names; what they do is told by `Team`'s methods. All are collective over the team."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import symrail

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ._symrail import Team


def team_world() -> Team:
    """The team of all PEs. Local."""
    return symrail.current().world


def barrier(team: Team, *, timeout: float | None = None) -> None:
    """Completes what this PE has started, and waits for all PEs of the team. `timeout` is in seconds."""
    team.barrier(timeout=timeout)


def sync(team: Team, *, timeout: float | None = None) -> None:
    """Waits for all PEs of the team. `timeout` is in seconds."""
    team.sync(timeout=timeout)


def broadcast(team: Team, dst: NDArray[Any], src: NDArray[Any], root: int = 0) -> None:
    """Copies `src` of the team's PE `root` to `dst` on all."""
    team.broadcast(dst, src, root)


def fcollect(team: Team, dst: NDArray[Any], src: NDArray[Any]) -> None:
    """Copies `src` of each PE, as long on all, to `dst` on all, one behind the other."""
    team.fcollect(dst, src)


def collect(team: Team, dst: NDArray[Any], src: NDArray[Any]) -> None:
    """As `fcollect`, with sources of different lengths."""
    team.collect(dst, src)


def reduce(team: Team, dst: NDArray[Any], src: NDArray[Any], op: str = "sum") -> None:
    """Combines all PEs' `src` into `dst` on all: "sum", "prod", "min", "max", "and", "or", "xor"."""
    team.reduce(dst, src, op)


def reducescatter(team: Team, dst: NDArray[Any], src: NDArray[Any], op: str = "sum") -> None:
    """Combines the blocks of all PEs' `src`, one for each PE, and leaves each its own in `dst`."""
    team.reduce_scatter(dst, src, op)


def alltoall(team: Team, dst: NDArray[Any], src: NDArray[Any]) -> None:
    """Copies block `i` of `src` to PE `i`, where it becomes block `my_pe` of `dst`."""
    team.alltoall(dst, src)
