"""Exceptions: a class for each kind of failure, all of them `SymrailError`.

Each has the attributes `pe` (the PE that it is about), `pes` (all PEs that it names, for example missing ones), `rail`,
`operation` and `bytes`; unknown ones are None, or empty.
"""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from typing import Any

__all__ = [
    "ArgumentError",
    "BootstrapError",
    "DifferError",
    "FabricError",
    "ForkedError",
    "FreedError",
    "HeapExhaustedError",
    "LibraryError",
    "NoSuchPeError",
    "OperationError",
    "PeerLostError",
    "RequirementError",
    "SettingError",
    "StateError",
    "SymrailError",
    "TimeoutError",
    "UnsupportedError",
]


class SymrailError(Exception):
    """Any error of Symrail."""

    pe: int | None
    pes: tuple[int, ...]
    rail: str | None
    operation: str | None
    bytes: int | None

    def __init__(self, message: str, details: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        details = details or {}
        self.pe = details.get("pe")
        self.pes = tuple(sorted(details.get("pes", ())))
        self.rail = details.get("rail")
        self.operation = details.get("operation")
        self.bytes = details.get("bytes")


class SettingError(SymrailError, ValueError):
    """An environment variable is missing, or has a value that is not accepted."""


class LibraryError(SymrailError, ImportError):
    """A library that is loaded at run time is missing or too old."""

    def __init__(self, message: str, details: Mapping[str, Any] | None = None) -> None:
        SymrailError.__init__(self, message, details)


class FabricError(SymrailError):
    """No rail fits the settings, or one cannot be set up."""


class OperationError(SymrailError):
    """A put, get or atomic failed on its way or at its target."""


class TimeoutError(SymrailError, builtins.TimeoutError):
    """The time-out has passed. `pes` are the PEs that did not arrive or answer, if that is known."""


class PeerLostError(SymrailError, ConnectionError):
    """A PE has died, left, or does not answer: `pe`."""


class NoSuchPeError(SymrailError, IndexError):
    """The job has no PE with that number."""


class ArgumentError(SymrailError, ValueError, TypeError):
    """An array or value that the operation does not accept: dtype, shape, layout, or not symmetric."""


class HeapExhaustedError(SymrailError, MemoryError):
    """The symmetric heap is exhausted, or could not grow. Nothing has changed; the program may continue."""


class FreedError(SymrailError, ValueError):
    """The array was given to `free`."""


class ForkedError(SymrailError, RuntimeError):
    """This process was forked from the one that joined, and takes no part in the job."""


class RequirementError(SymrailError, RuntimeError):
    """A PE does not meet the requirements of `init`: `pe`; `pes` are all such PEs."""


class DifferError(SymrailError):
    """PEs differ in a call, an argument or a value that must be the same on all: `pe` is one that differs."""


class BootstrapError(SymrailError):
    """PEs cannot find each other."""


class StateError(SymrailError, RuntimeError):
    """A call before `init`, after `finalize`, or a second `init`."""


class UnsupportedError(SymrailError, NotImplementedError):
    """Something that this build, provider or setting cannot do."""
