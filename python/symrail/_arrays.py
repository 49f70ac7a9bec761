"""Symmetric arrays for NumPy, and what may be the source of a copy."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from .errors import ArgumentError

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

    from ._symrail import Runtime


def extent(shape: Any) -> tuple[int, ...]:
    """A shape as a tuple of lengths."""
    lengths = (shape,) if isinstance(shape, (int, np.integer)) else tuple(shape)
    if any(int(length) != length or length < 0 for length in lengths):
        raise ArgumentError(f"shape {shape!r}: lengths are whole numbers from 0")
    return tuple(int(length) for length in lengths)


def element_type(dtype: DTypeLike) -> np.dtype[Any]:
    """A dtype whose elements mean the same to all PEs. bfloat16 and FP8 by name need the package ml_dtypes."""
    try:
        found = np.dtype(dtype)
    except TypeError:
        try:
            import ml_dtypes

            found = np.dtype(getattr(ml_dtypes, str(dtype)))
        except (ImportError, AttributeError):
            raise ArgumentError(
                f"dtype {dtype!r} is not known; bfloat16 and FP8 need the package ml_dtypes"
            ) from None
    if found.hasobject:
        raise ArgumentError(f"dtype {found} holds Python objects, which are of use to this process alone")
    return found


def allocate(rt: Runtime, shape: Any, dtype: DTypeLike) -> NDArray[Any]:
    """A zeroed symmetric array. Collective."""
    lengths, kind = extent(shape), element_type(dtype)
    nbytes = math.prod(lengths) * kind.itemsize
    memory = rt.allocate(nbytes, f"{lengths} {kind.name}"[:128])
    return np.asarray(memory).view(kind).reshape(lengths)


def of_peer(rt: Runtime, array: NDArray[Any], pe: int) -> NDArray[Any] | None:
    """A peer's copy of a symmetric array as an array of the same shape and strides, if it is mapped."""
    memory = rt.peer_memory(array, pe)
    if memory is None:
        return None
    below = sum((n - 1) * stride for n, stride in zip(array.shape, array.strides) if stride < 0 and n > 0)
    if array.size == 0:
        return np.empty(array.shape, array.dtype)
    return np.ndarray(array.shape, array.dtype, np.asarray(memory).data, -below, array.strides)


def like(destination: Any, source: Any) -> NDArray[Any]:
    """A source for a copy to `destination`, an array, with its dtype and shape: numbers and shapes are broadcast."""
    if not isinstance(destination, np.ndarray):
        hint = "; a NumPy scalar is a copy: write a[i:i+1] for a[i]" if isinstance(destination, np.generic) else ""
        raise ArgumentError(f"the symmetric side is a {type(destination).__name__}, not a NumPy array{hint}")
    dtype = destination.dtype
    if isinstance(source, (bool, int, float, complex)):
        if isinstance(source, float) and dtype.kind in "iub" or isinstance(source, complex) and dtype.kind in "iubf":
            raise ArgumentError(f"{source!r} is no {dtype}")
        try:
            found = np.asarray(source, dtype)
        except (OverflowError, TypeError, ValueError) as error:
            raise ArgumentError(f"{source!r} is no {dtype}: {error}") from None
    else:
        found = np.asarray(source)
        if not isinstance(source, np.ndarray) and np.can_cast(found.dtype, dtype, "same_kind"):
            found = found.astype(dtype, copy=False)
    if found.dtype != dtype:
        raise ArgumentError(f"dtypes differ: {found.dtype} and {dtype}; convert by astype")
    try:
        return np.broadcast_to(found, destination.shape)
    except ValueError:
        raise ArgumentError(f"shapes differ: {found.shape} does not broadcast to {destination.shape}") from None
