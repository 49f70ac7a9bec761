"""Copies between two ranks in the order of their streams."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import symrail

from .. import _symrail
from ..errors import ArgumentError


class PointToPoint:
    """Sequences of copies between ranks of a team, each behind the other one's word that it is ready, on a heap that GPUs
    reach. Collective over all PEs, each with a team that it is in (without `team`, that of all PEs).

    By a put: a rank that calls `receive` has room in `dst`, to which `send` of the other one copies. By a get: a rank
    that calls `offer` has data in `src`, which `fetch` of the other one copies. `dst` of a put and `src` of a get are
    symmetric arrays, which only the rank that copies names; the other array is any that this PE's GPU reaches, or a
    symmetric one where the proxy copies. On both ranks `stream` goes on behind the copy. Copies between two ranks with
    the same `tag` (of so many `tags`) follow each other, and can be captured in graphs.
    """

    def __init__(self, team: symrail.Team | None = None, *, tags: int = 1) -> None:
        if tags < 1:
            raise ArgumentError(f"tags={tags}; wanted is a number from 1 on")
        team = symrail.team_world() if team is None else team
        self.rank: int = team.my_pe()
        """This PE's number in the team."""
        self.ranks: int = team.n_pes()
        """How many PEs the team has."""
        self._copies = _symrail.PointToPoint(symrail.current(), team, tags)

    def send(self, dst: Any, src: Any, rank: int, *, tag: int = 0, stream: Any) -> None:
        """Copies `src` to `dst` of a rank, once that receives."""
        self._copies.send(dst, src, rank, tag, stream)

    def receive(self, rank: int, *, tag: int = 0, stream: Any) -> None:
        """Lets a rank send, and waits until it has."""
        self._copies.receive(rank, tag, stream)

    def offer(self, rank: int, *, tag: int = 0, stream: Any) -> None:
        """Lets a rank fetch, and waits until it has."""
        self._copies.offer(rank, tag, stream)

    def fetch(self, dst: Any, src: Any, rank: int, *, tag: int = 0, stream: Any) -> None:
        """Copies `src` of a rank to `dst`, once that offers."""
        self._copies.fetch(dst, src, rank, tag, stream)

    def check(self) -> None:
        """Raises what has gone wrong in copies that are over; calls raise what is known by then. Local."""
        self._copies.check()

    def free(self) -> None:
        """Gives the memory back. Collective over all PEs."""
        self._copies.free()

    def __enter__(self) -> PointToPoint:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Who has failed cannot wait for the others, who may have not.
        if kind is None:
            self.free()
