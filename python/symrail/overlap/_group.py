"""Who makes products together, and the memory that they take."""

from __future__ import annotations

from types import TracebackType

import symrail

from .. import _symrail


class Group:
    """The PEs of a team that make products together: its ranks. Collective over all PEs, each with a team that it is in
    (without `team`, that of all PEs).

    `heap_bytes` of each PE's symmetric heap are for products: all rows of a call, and twice the sums of a
    reduction. Plans of earlier calls are kept there while there is room.
    """

    def __init__(self, team: symrail.Team | None = None, *, heap_bytes: int = 64 << 20) -> None:
        team = symrail.team_world() if team is None else team
        self.rank: int = team.my_pe()
        """This PE's number in the team."""
        self.ranks: int = team.n_pes()
        """How many PEs the team has."""
        self._products = _symrail.Products(symrail.current(), team, heap_bytes)

    def share(self, count: int, rank: int | None = None) -> slice:
        """Which of `count` rows, inputs or outputs a rank has (without `rank`, this one), if nothing else is said: as
        `torch.tensor_split` cuts. Local."""
        rank = self.rank if rank is None else rank
        each, more = divmod(count, self.ranks)
        start = rank * each + min(rank, more)
        return slice(start, start + each + (rank < more))

    def free(self) -> None:
        """Gives the memory back. Collective over all PEs."""
        self._products.free()

    def __enter__(self) -> Group:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Who has failed cannot wait for the others, who may have not.
        if kind is None:
            self.free()
