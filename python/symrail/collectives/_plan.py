"""Execution plans of users."""

from __future__ import annotations

import os

from ..errors import ArgumentError


class ExecutionPlan:
    """MSCCL++'s JSON of an execution plan, from a file or as a text.

    `Communicator.add_plan` reads and checks it: that it ends, that no accesses race, and that each rank gets the
    collective's result. Without `result` it only checks that the plan ends.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None, *, text: str | None = None, result: bool = True):
        if (path is None) == (text is None):
            raise ArgumentError("an execution plan is of a path or of a text")
        self.path = None if path is None else os.fspath(path)
        """Its file."""
        self.text = text
        """Its JSON, if it has no file."""
        self.result = result
        self.name: str | None = None
        """Its name, which selects it in calls, once a communicator has it."""
