"""The operations of `Runtime` on the job that this process is in.

They are written out because a wrapper for arbitrary arguments takes longer than a put of 8 bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, TypeVar

import symrail

from ._symrail import Runtime

_F = TypeVar("_F", bound=Callable[..., Any])


def _described(function: _F) -> _F:
    """Gives a function the description of the method."""
    function.__doc__ = getattr(Runtime, function.__name__).__doc__
    return function


@_described
def my_pe() -> int:
    return (symrail._current or symrail.current()).my_pe()


@_described
def n_pes() -> int:
    return (symrail._current or symrail.current()).n_pes()


@_described
def is_mapped(pe: int) -> bool:
    return (symrail._current or symrail.current()).is_mapped(pe)


@_described
def free(array: Any) -> None:
    (symrail._current or symrail.current()).free(array)


@_described
def reclaim(*, timeout: float | None = None) -> None:
    (symrail._current or symrail.current()).reclaim(timeout=timeout)


@_described
def put(dst: Any, src: Any, remote_pe: int, *, stream: Any = None) -> None:
    (symrail._current or symrail.current()).put(dst, src, remote_pe, stream=stream)


@_described
def get(dst: Any, src: Any, remote_pe: int, *, stream: Any = None) -> None:
    (symrail._current or symrail.current()).get(dst, src, remote_pe, stream=stream)


@_described
def put_nbi(dst: Any, src: Any, remote_pe: int) -> None:
    (symrail._current or symrail.current()).put_nbi(dst, src, remote_pe)


@_described
def get_nbi(dst: Any, src: Any, remote_pe: int) -> None:
    (symrail._current or symrail.current()).get_nbi(dst, src, remote_pe)


@_described
def put_signal(
    dst: Any,
    src: Any,
    signal_var: Any,
    signal_val: int,
    signal_op: str | Enum,
    remote_pe: int,
    *,
    offset: int = 0,
    stream: Any = None,
) -> None:
    runtime = symrail._current or symrail.current()
    runtime.put_signal(dst, src, signal_var, signal_val, signal_op, remote_pe, offset=offset, stream=stream)


@_described
def signal_op(
    signal_var: Any,
    signal_val: int,
    signal_op: str | Enum,
    remote_pe: int,
    *,
    offset: int = 0,
    stream: Any = None,
) -> None:
    runtime = symrail._current or symrail.current()
    runtime.signal_op(signal_var, signal_val, signal_op, remote_pe, offset=offset, stream=stream)


@_described
def wait_until(
    array: Any, comparison: str | Enum, value: int, *, offset: int = 0, timeout: float | None = None
) -> int:
    runtime = symrail._current or symrail.current()
    return runtime.wait_until(array, comparison, value, offset=offset, timeout=timeout)


@_described
def test(array: Any, comparison: str | Enum, value: int, *, offset: int = 0) -> bool:
    return (symrail._current or symrail.current()).test(array, comparison, value, offset=offset)


@_described
def fence(*, stream: Any = None) -> None:
    (symrail._current or symrail.current()).fence(stream=stream)


@_described
def quiet(*, stream: Any = None) -> None:
    (symrail._current or symrail.current()).quiet(stream=stream)


@_described
def connect_all() -> None:
    (symrail._current or symrail.current()).connect_all()


@_described
def barrier_all(*, timeout: float | None = None, stream: Any = None) -> None:
    (symrail._current or symrail.current()).barrier_all(timeout=timeout, stream=stream)


@_described
def sync_all(*, timeout: float | None = None, stream: Any = None) -> None:
    (symrail._current or symrail.current()).sync_all(timeout=timeout, stream=stream)
