"""The ranks that make products together, and their memory."""

from __future__ import annotations

import symrail

from .. import _symrail
from .._freed import Freed
from ..errors import ArgumentError


class Group(Freed):
    """The PEs of a team that make products together: its ranks. Collective over all PEs, each with a team that it is in
    (by default, that of all PEs).

    `heap_bytes` of each PE's symmetric heap are for products: all rows of a call, and twice the sums of a reduction.
    Plans of earlier calls are kept there while there is space, those of calls that a CUDA graph has captured until
    `free`: HeapExhaustedError if there is no space beside these. The largest share of rows is split into `pieces`
    pieces, which move while others are multiplied; with 0 all rows move before or after one product; by default sizes
    determine the number. All PEs pass the same.

    A call waits for ranks that live for at most `timeout` seconds altogether, by default without a limit, also while it
    makes or frees memory: TimeoutError, whose `pes` are those ranks.
    """

    def __init__(
        self,
        team: symrail.Team | None = None,
        *,
        heap_bytes: int = 64 << 20,
        pieces: int | None = None,
        timeout: float | None = None,
    ) -> None:
        if pieces is not None and not 0 <= pieces < 1 << 63:
            raise ArgumentError(f"pieces={pieces}; wanted is a number from 0 to 2**63 - 1, or None")

        team = symrail.team_world() if team is None else team
        self.rank: int = team.my_pe()
        """This PE's number in the team."""
        self.ranks: int = team.n_pes()
        """The number of the team's PEs."""
        self.device: int | None = symrail.current().device
        """The GPU that can access the heap, whose tensors may be multiplied; None if there is none, or the heap is
        not its."""
        self._products = _symrail.Products(symrail.current(), team, heap_bytes, pieces, timeout)

    def share(self, count: int, rank: int | None = None) -> slice:
        """The share of a rank (by default, this one) in `count` rows, inputs or outputs, unless it is given
        otherwise: split as by `torch.tensor_split`. Local."""
        rank = self.rank if rank is None else rank
        each, more = divmod(count, self.ranks)
        start = rank * each + min(rank, more)
        return slice(start, start + each + (rank < more))

    def rows_of(self, count: int, own: int | None) -> int:
        """The number of this rank's rows among `count`: `own`, or its share. Local."""
        share = self.share(count)
        return share.stop - share.start if own is None else own

    def check(self) -> None:
        """Raises the errors of rounds on a GPU that are over; calls raise those known by then. Local."""
        self._products.check()

    def free(self) -> None:
        """Frees the memory; captured graphs are not replayed after it. Collective over all PEs."""
        self._products.free()
