"""Atomic operations on one element of a symmetric array of any PE.

`target` is a symmetric array of int32, uint32, int64, uint64, float32 or float64 (floats: fetch, set, swap and add);
`offset` is the element, in the order of NumPy's `flat`. They are atomic with one another and with signals. Operations
without a result are delivered after `quiet`. All are local, and raise ArgumentError, NoSuchPeError, OperationError,
PeerLostError and TimeoutError.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import symrail

if TYPE_CHECKING:
    from numpy.typing import NDArray


def atomic_fetch(target: NDArray[Any], remote_pe: int, *, offset: int = 0) -> Any:
    """Returns the element. Local."""
    return symrail.current().atomic("fetch", target, None, remote_pe, offset, True)


def atomic_set(target: NDArray[Any], value: Any, remote_pe: int, *, offset: int = 0) -> None:
    """Stores a value. Local."""
    symrail.current().atomic("set", target, value, remote_pe, offset, False)


def atomic_swap(target: NDArray[Any], value: Any, remote_pe: int, *, offset: int = 0) -> Any:
    """Stores a value and returns the old one. Local."""
    return symrail.current().atomic("set", target, value, remote_pe, offset, True)


def atomic_compare_swap(target: NDArray[Any], cond: Any, value: Any, remote_pe: int, *, offset: int = 0) -> Any:
    """Stores a value if the element is `cond`; returns the old value. Integers only. Local."""
    return symrail.current().atomic("compare_swap", target, value, remote_pe, offset, True, cond)


def atomic_add(target: NDArray[Any], value: Any, remote_pe: int, *, offset: int = 0) -> None:
    """Adds a value; integers wrap. Local."""
    symrail.current().atomic("add", target, value, remote_pe, offset, False)


def atomic_fetch_add(target: NDArray[Any], value: Any, remote_pe: int, *, offset: int = 0) -> Any:
    """Adds a value, integers wrap, and returns the old value. Local."""
    return symrail.current().atomic("add", target, value, remote_pe, offset, True)


def atomic_inc(target: NDArray[Any], remote_pe: int, *, offset: int = 0) -> None:
    """Adds 1. Local."""
    symrail.current().atomic("add", target, 1, remote_pe, offset, False)


def atomic_fetch_inc(target: NDArray[Any], remote_pe: int, *, offset: int = 0) -> Any:
    """Adds 1 and returns the old value. Local."""
    return symrail.current().atomic("add", target, 1, remote_pe, offset, True)


def atomic_and(target: NDArray[Any], value: Any, remote_pe: int, *, offset: int = 0) -> None:
    """Bitwise and; integers only. Local."""
    symrail.current().atomic("and", target, value, remote_pe, offset, False)


def atomic_fetch_and(target: NDArray[Any], value: Any, remote_pe: int, *, offset: int = 0) -> Any:
    """Bitwise and; returns the old value. Integers only. Local."""
    return symrail.current().atomic("and", target, value, remote_pe, offset, True)


def atomic_or(target: NDArray[Any], value: Any, remote_pe: int, *, offset: int = 0) -> None:
    """Bitwise or; integers only. Local."""
    symrail.current().atomic("or", target, value, remote_pe, offset, False)


def atomic_fetch_or(target: NDArray[Any], value: Any, remote_pe: int, *, offset: int = 0) -> Any:
    """Bitwise or; returns the old value. Integers only. Local."""
    return symrail.current().atomic("or", target, value, remote_pe, offset, True)


def atomic_xor(target: NDArray[Any], value: Any, remote_pe: int, *, offset: int = 0) -> None:
    """Bitwise exclusive or; integers only. Local."""
    symrail.current().atomic("xor", target, value, remote_pe, offset, False)


def atomic_fetch_xor(target: NDArray[Any], value: Any, remote_pe: int, *, offset: int = 0) -> Any:
    """Bitwise exclusive or; returns the old value. Integers only. Local."""
    return symrail.current().atomic("xor", target, value, remote_pe, offset, True)
