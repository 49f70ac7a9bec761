"""Arrays of NumPy and tensors of torch as bytes, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._tensors import is_tensor, must_be_plain, resolved
from .errors import ArgumentError, UnsupportedError


def _host(array: Any, role: str) -> Any:
    """Refuses arrays outside host memory, and objects that are no arrays."""
    if is_tensor(array):
        if array.device.type not in ("cpu", "meta"):
            raise UnsupportedError(f"{role} is on {array.device}; it has to be in host memory: {role}.cpu()")
        return resolved(array, role)
    if not isinstance(array, np.ndarray):
        raise ArgumentError(f"{role} is a {type(array).__name__}, not an array of NumPy or a tensor of torch")
    if isinstance(array, np.ma.MaskedArray):
        raise ArgumentError(f"{role} is a masked array, whose mask would be lost: pass filled()")
    if array.dtype.hasobject:
        raise ArgumentError(f"{role} holds Python objects, which are of use to this process alone")
    return array


def dtype_name_of(dtype: Any) -> str:
    """The name of a dtype of NumPy's or torch's."""
    return str(dtype).rpartition(".")[2]


def dtype_name(array: Any) -> str:
    """The name of an array's dtype."""
    return dtype_name_of(array.dtype)


class Rows:
    """A two-dimensional array as rows of bytes."""

    def __init__(self, array: Any, role: str) -> None:
        array = _host(array, role)
        if len(array.shape) < 2 or 0 in array.shape[1:]:
            raise ArgumentError(f"{role} has the shape {tuple(array.shape)}; wanted are rows of at least one element")
        self.array, self.role = array, role
        self.count, self.dtype = int(array.shape[0]), dtype_name(array)
        element = array.element_size() if is_tensor(array) else array.dtype.itemsize
        self.bytes = int(np.prod(array.shape[1:])) * element

    @property
    def data(self) -> tuple[NDArray[np.uint8], int, str]:
        """All bytes, the number of bytes in a row, and the dtype."""
        if is_tensor(self.array):
            import torch

            if self.array.numel() == 0:
                return np.empty(0, np.uint8), self.bytes, self.dtype
            return self.array.contiguous().reshape(-1).view(torch.uint8).numpy(), self.bytes, self.dtype
        return np.ascontiguousarray(self.array).reshape(-1).view(np.uint8), self.bytes, self.dtype

    def made(self, data: NDArray[np.uint8], *shape: int) -> Any:
        """Bytes as an array of the same kind and dtype, of this shape."""
        return as_dtype(data, self.array, self.array.dtype, shape)


def as_dtype(data: NDArray[Any], like: Any, dtype: Any, shape: tuple[int, ...]) -> Any:
    """Bytes as an array of NumPy or torch, as `like` is."""
    if is_tensor(like):
        import torch

        # A tensor of an empty array has no stride that a view as another type accepts.
        return torch.from_numpy(data).view(dtype).reshape(shape) if data.size else torch.empty(shape, dtype=dtype)
    return data.view(dtype).reshape(shape)


def as_fp8(data: NDArray[np.uint8], like: Any, shape: tuple[int, ...]) -> Any:
    """Bytes as FP8 (e4m3). In NumPy without the package ml_dtypes they remain bytes."""
    if is_tensor(like):
        import torch

        return as_dtype(data, like, torch.float8_e4m3fn, shape)
    try:
        import ml_dtypes
    except ImportError:
        return data.reshape(shape)
    return as_dtype(data, like, ml_dtypes.float8_e4m3fn, shape)


def as_array(data: NDArray[Any], like: Any) -> Any:
    """An array of NumPy as one of NumPy or torch, as `like` is."""
    if is_tensor(like):
        import torch

        found = torch.from_numpy(data)
        return found if data.size else torch.empty(data.shape, dtype=found.dtype)
    return data


def numbers(array: Any, role: str, dtype: str, shape: tuple[int | None, ...]) -> NDArray[Any]:
    """The numbers of an array of this shape (None: any length), contiguous."""
    array = _host(array, role)
    found = tuple(array.shape)
    if len(found) != len(shape) or any(wanted not in (None, length) for wanted, length in zip(shape, found)):
        wanted = " x ".join("any" if length is None else str(length) for length in shape)
        raise ArgumentError(f"{role} has the shape {found}; wanted is {wanted}")
    if is_tensor(array):
        array = array.contiguous().numpy()
    if not np.can_cast(array.dtype, dtype, "same_kind") or np.dtype(dtype).kind != array.dtype.kind:
        raise ArgumentError(f"{role} is of {array.dtype}; wanted is {dtype}")
    return np.ascontiguousarray(array).reshape(-1).astype(dtype, copy=False)


def must_take(into: Any, role: str, shape: tuple[int, ...], dtype: Any = None) -> None:
    """Raises ArgumentError unless `store` can write elements of this shape, and dtype, into the caller's array."""
    found = tuple(getattr(into, "shape", ()))
    if not is_tensor(into) and not isinstance(into, np.ndarray):
        raise ArgumentError(f"{role} is a {type(into).__name__}, not an array of NumPy or a tensor of torch")
    wanted = dtype_name(into) if dtype is None else dtype_name_of(dtype)
    if found != shape or dtype_name(into) != wanted:
        raise ArgumentError(f"{role} is {found} of {dtype_name(into)}; wanted is {shape} of {wanted}")
    if is_tensor(into):
        must_be_plain(into, role)
        strides = into.stride()
    else:
        strides = into.strides
        if not into.flags.writeable:
            raise ArgumentError(f"{role} cannot be written to (its flag `writeable` is false)")
    if 0 not in shape and any(stride == 0 and length > 1 for stride, length in zip(strides, shape)):
        raise ArgumentError(f"elements of {role} share memory (a stride of 0), so it cannot be written to")


def store(into: Any, values: Any) -> None:
    """Writes values into an array of the caller."""
    if is_tensor(into):
        into = into.detach()
    into[...] = values
