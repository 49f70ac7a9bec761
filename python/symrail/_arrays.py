"""Symmetric arrays, for NumPy or in GPU memory, and the possible sources of a copy."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

import symrail

from ._symrail import DeviceArray
from ._tensors import is_tensor, must_be_plain, resolved
from .errors import ArgumentError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ._symrail import Runtime


def extent(shape: Any) -> tuple[int, ...]:
    """A shape as a tuple of lengths."""
    try:
        lengths = (shape,) if isinstance(shape, (int, np.integer)) else tuple(shape)
        whole = tuple(int(length) for length in lengths)
    except (TypeError, ValueError, OverflowError):
        whole = lengths = (-1,)
    if whole != lengths or min(whole, default=0) < 0:
        raise ArgumentError(f"shape {shape!r}: lengths are whole numbers from 0")
    return whole


# Types that NumPy knows only with the package ml_dtypes.
_BEYOND_NUMPY = {
    "bfloat16",
    "float8_e3m4",
    "float8_e4m3",
    "float8_e4m3b11fnuz",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
}


def type_name(dtype: Any) -> str:
    """The name of a dtype of NumPy's, ml_dtypes' or PyTorch's, or of its name."""
    name = str(dtype).removeprefix("torch.")
    return name if name in _BEYOND_NUMPY else element_type(dtype).name


def known_dtype(name: str) -> Any:
    """The dtype with this name; the name itself if NumPy does not know it."""
    try:
        return element_type(name)
    except ArgumentError:
        return name


def element_type(dtype: Any) -> np.dtype[Any]:
    """A dtype whose elements have the same meaning on all PEs. bfloat16 and FP8 by name need the package ml_dtypes."""
    if str(dtype).startswith("torch."):
        dtype = str(dtype).removeprefix("torch.")
    found: np.dtype[Any]
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


def allocate(rt: Runtime, shape: Any, dtype: Any, timeout: float | None) -> Any:
    """A zeroed symmetric array. Collective."""
    lengths = extent(shape)
    if rt.in_gpus:
        name = type_name(dtype)
        nbytes = math.prod(lengths) * DeviceArray.bytes_of(name)
        memory = rt.allocate(nbytes, f"{lengths} {name}"[:128], timeout=timeout)
        return DeviceArray(memory, lengths, name)
    kind = element_type(dtype)
    nbytes = math.prod(lengths) * kind.itemsize
    memory = rt.allocate(nbytes, f"{lengths} {kind.name}"[:128], timeout=timeout)
    return np.asarray(memory).view(kind).reshape(lengths)


def of_peer(rt: Runtime, array: Any, pe: int) -> Any:
    """A peer's copy of a symmetric array as an array of the same shape and strides, if it is mapped."""
    if isinstance(array, DeviceArray):
        return rt.peer_array(array, pe)
    memory = rt.peer_memory(array, pe)
    if memory is None:
        return None
    below = sum((n - 1) * stride for n, stride in zip(array.shape, array.strides) if stride < 0 and n > 0)
    if array.size == 0:
        return np.empty(array.shape, array.dtype)
    return np.ndarray(array.shape, array.dtype, np.asarray(memory).data, -below, array.strides)


def to_numpy(array: DeviceArray) -> NDArray[Any]:
    """A copy of an array of this PE's GPU."""
    rt = symrail.current()
    copy = np.empty(array.shape, element_type(array.dtype))
    rt.get(copy, array, rt.my_pe())
    return copy


def assign(array: DeviceArray, values: Any) -> None:
    """Copies values to an array of this PE's GPU."""
    rt = symrail.current()
    rt.put(array, values, rt.my_pe())
    rt.quiet()


def tensor(array: DeviceArray) -> Any:
    """A PyTorch tensor of the same memory."""
    import torch

    name = type_name(array.dtype)
    if not name.startswith("float8"):
        return torch.from_dlpack(array)
    # Some versions of PyTorch do not know DLPack's codes of FP8.
    return torch.from_dlpack(array.view("uint8")).view(getattr(torch, name))


def _elements(source: Any) -> NDArray[Any]:
    """The elements of an array, a tensor in host memory, or of what NumPy makes an array of."""
    if isinstance(source, np.ma.MaskedArray):
        raise ArgumentError("src is a masked array, whose mask would be lost: pass filled()")
    if not is_tensor(source):
        return np.asarray(source)
    if source.device.type != "cpu":
        must_be_plain(source, "src")
        raise ArgumentError(f"src is {source.dtype} on {source.device}, which no operation copies from: pass cpu()")
    found: NDArray[Any]
    source = resolved(source, "src")
    name = type_name(source.dtype)
    if name in _BEYOND_NUMPY:
        import torch

        bits = source.contiguous().view(torch.uint8 if source.element_size() == 1 else torch.int16)
        found = bits.numpy().view(element_type(name))
    else:
        found = source.numpy()
    return found


def _converted(found: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Numbers or bytes, without a dtype of the caller's choice, as elements of `dtype`. Floats may be rounded."""
    if not np.can_cast(found.dtype, dtype, "same_kind"):
        return found
    made = found.astype(dtype, copy=False)
    if dtype.kind in "iuSU" and not np.array_equal(made, found):
        raise ArgumentError(f"src has elements that are no {dtype}")
    return made


def like(destination: Any, source: Any) -> NDArray[Any]:
    """A source for a copy to `destination`, an array, with its dtype and shape: numbers and shapes are broadcast."""
    if isinstance(destination, DeviceArray):
        shape, dtype = destination.shape, element_type(destination.dtype)
    elif isinstance(destination, np.ndarray):
        shape, dtype = destination.shape, destination.dtype
    else:
        hint = "; a NumPy scalar is a copy: write a[i:i+1] for a[i]" if isinstance(destination, np.generic) else ""
        raise ArgumentError(f"the symmetric side is a {type(destination).__name__}, not an array{hint}")
    if isinstance(source, (bool, int, float, complex)):
        if isinstance(source, float) and dtype.kind in "iub" or isinstance(source, complex) and dtype.kind in "iubf":
            raise ArgumentError(f"{source!r} is no {dtype}")
        try:
            found = np.asarray(source, dtype)
        except (OverflowError, TypeError, ValueError) as error:
            raise ArgumentError(f"{source!r} is no {dtype}: {error}") from None
    else:
        found = _elements(source)
        if not isinstance(source, np.ndarray) and not is_tensor(source):
            found = _converted(found, dtype)
    if found.dtype != dtype:
        raise ArgumentError(f"dtypes differ: {found.dtype} and {dtype}; convert by astype")
    if found.ndim == 0 and math.prod(shape) == 1:
        return found.reshape(shape)  # a single number, the usual case, in a fraction of the time
    try:
        return np.broadcast_to(found, shape)
    except ValueError:
        raise ArgumentError(f"shapes differ: {found.shape} does not broadcast to {shape}") from None
