"""Objects with memory on all PEs."""

from __future__ import annotations

from types import TracebackType
from typing import TypeVar

F = TypeVar("F", bound="Freed")


class Freed:
    """An object that a `with` block frees at its end."""

    def free(self) -> None:
        """Frees the memory. Collective over all PEs."""
        raise NotImplementedError

    def __enter__(self: F) -> F:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # After a failure this rank cannot wait for the others, which may have succeeded.
        if kind is None:
            self.free()
