"""Execution plans of users."""

from __future__ import annotations

import os
from pathlib import Path

from ..errors import ArgumentError


class ExecutionPlan:
    """MSCCL++'s JSON of an execution plan, from a file or as a text.

    `Communicator.add_plan` checks it: that it ends, that nothing races, and that each rank gets what the collective
    promises. Without `result` only that it ends, for plans of no collective that has a name.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None, *, text: str | None = None, result: bool = True):
        if (path is None) == (text is None):
            raise ArgumentError("an execution plan is of a path or of a text")
        self.text: str = Path(path).read_text() if path is not None else str(text)
        self.result = result
        self.name: str | None = None
        """Its name, by which calls ask for it, once a communicator has it."""
