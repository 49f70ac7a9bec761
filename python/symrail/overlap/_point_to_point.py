"""Copies between two ranks in the order of their streams."""

from __future__ import annotations

from typing import Any

import symrail

from .. import _symrail
from .._freed import Freed
from ..errors import ArgumentError


class PointToPoint(Freed):
    """Sequences of copies between ranks of a team; each copy waits for the other rank's word that it is ready. The heap
    is one that GPUs can access. Collective over all PEs, each with a team that it is in (by default, that of all
    PEs).

    By a put: a rank that calls `receive` offers `dst`, and `send` of the other rank copies to it. By a get: a rank that
    calls `offer` offers data in `src`, and `fetch` of the other rank copies it. `dst` of a put and `src` of a get are
    symmetric arrays, which only the copying rank names; the other array is any that this PE's GPU can access, or a
    symmetric one if the proxy copies. On both ranks `stream` continues behind the copy. Copies between two ranks with
    the same `tag` (out of `tags`) follow each other, and can be captured in graphs.

    `timeout` is the number of seconds to wait for ranks while memory is made or freed, by default without a limit for
    those that live: TimeoutError, whose `pes` are those ranks.
    """

    def __init__(
        self, team: symrail.Team | None = None, *, tags: int = 1, timeout: float | None = None
    ) -> None:
        if tags < 1:
            raise ArgumentError(f"tags={tags}; wanted is a number from 1 on")
        team = symrail.team_world() if team is None else team
        self.rank: int = team.my_pe()
        """This PE's number in the team."""
        self.ranks: int = team.n_pes()
        """The number of the team's PEs."""
        self._copies = _symrail.PointToPoint(symrail.current(), team, tags, timeout)

    def send(self, dst: Any, src: Any, rank: int, *, tag: int = 0, stream: Any) -> None:
        """Copies `src` to `dst` of a rank, once that rank receives."""
        self._copies.send(dst, src, rank, tag, stream)

    def receive(self, rank: int, *, tag: int = 0, stream: Any) -> None:
        """Lets a rank send, and waits until it has."""
        self._copies.receive(rank, tag, stream)

    def offer(self, rank: int, *, tag: int = 0, stream: Any) -> None:
        """Lets a rank fetch, and waits until it has."""
        self._copies.offer(rank, tag, stream)

    def fetch(self, dst: Any, src: Any, rank: int, *, tag: int = 0, stream: Any) -> None:
        """Copies `src` of a rank to `dst`, once that rank offers."""
        self._copies.fetch(dst, src, rank, tag, stream)

    def check(self) -> None:
        """Raises the errors of copies that are over; calls raise those known by then. Local."""
        self._copies.check()

    def free(self) -> None:
        """Frees the memory. Collective over all PEs."""
        self._copies.free()
