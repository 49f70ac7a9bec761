"""Collective calls that one PE is refused."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def refusals(tell: Callable[[str], object]) -> Iterator[None]:
    """The other PEs learn by `tell` of an exception in the block, and that this one does not make the call. What `tell`
    returns is a note of the exception."""
    try:
        yield
    except Exception as error:
        note = tell(str(error))
        if isinstance(note, str) and sys.version_info >= (3, 11):
            error.add_note(note)
        raise
