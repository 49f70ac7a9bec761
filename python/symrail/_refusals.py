"""Collective calls that one PE is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def refusals(tell: Callable[[str], object]) -> Iterator[None]:
    """The other PEs learn by `tell` of an exception in the block, and that this one does not make the call."""
    try:
        yield
    except Exception as error:
        tell(str(error))
        raise
