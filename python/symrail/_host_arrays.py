"""Arrays of NumPy and tensors of torch as bytes, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import ArgumentError, UnsupportedError


def is_tensor(array: Any) -> bool:
    """Whether it is a tensor of torch, which may not be installed."""
    return type(array).__module__.split(".")[0] == "torch"


def _host(array: Any, role: str) -> Any:
    """Refuses arrays outside host memory, and objects that are no arrays."""
    if is_tensor(array):
        if array.device.type != "cpu":
            raise UnsupportedError(f"{role} is on {array.device}; it has to be in host memory: {role}.cpu()")
        return array.detach()
    if not isinstance(array, np.ndarray):
        raise ArgumentError(f"{role} is a {type(array).__name__}, not an array of NumPy or a tensor of torch")
    return array


def dtype_name(array: Any) -> str:
    """The name of an array's dtype."""
    return str(array.dtype).rpartition(".")[2]


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
    def data(self) -> tuple[NDArray[np.uint8], int]:
        """All bytes, and the number of bytes in a row."""
        if is_tensor(self.array):
            import torch

            return self.array.contiguous().reshape(-1).view(torch.uint8).numpy(), self.bytes
        return np.ascontiguousarray(self.array).reshape(-1).view(np.uint8), self.bytes

    def made(self, data: NDArray[np.uint8], *shape: int) -> Any:
        """Bytes as an array of the same kind and dtype, of this shape."""
        return as_dtype(data, self.array, self.array.dtype, shape)


def as_dtype(data: NDArray[Any], like: Any, dtype: Any, shape: tuple[int, ...]) -> Any:
    """Bytes as an array of NumPy or torch, as `like` is."""
    if is_tensor(like):
        import torch

        return torch.from_numpy(data).view(dtype).reshape(shape)
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

        return torch.from_numpy(data)
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


def store(into: Any, values: Any) -> None:
    """Writes values into an array of the caller."""
    into[...] = values
