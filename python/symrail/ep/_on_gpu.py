"""Common parts of both ways on a GPU: tensors, and buffers that are remade for another shape."""

from __future__ import annotations

from typing import Any, Generic, Protocol, TypeVar

from .. import _symrail
from .._gpu import must_be_on, reached
from .._tensors import is_tensor, must_be_plain
from ..errors import ArgumentError, StateError

ROW_ALIGN = 16
"""Kernels copy rows in pieces of so many bytes."""


def address(tensor: Any, role: str, gpu: int, dtype: str, shape: tuple[int, ...], align: int = 1) -> int:
    """The address of a tensor that kernels can use."""
    must_be_on(gpu, tensor, role)
    if is_tensor(tensor):
        must_be_plain(tensor, role)
    found, name = tuple(tensor.shape), str(tensor.dtype).rpartition(".")[2]
    if found != shape or name != dtype:
        raise ArgumentError(f"{role} is {found} of {name}; wanted is {shape} of {dtype}")
    if not tensor.is_contiguous():
        raise ArgumentError(f"{role} is not contiguous: {role}.contiguous()")
    at = int(tensor.data_ptr())
    if at % align:
        raise ArgumentError(f"{role} is at {at:#x}; wanted is a multiple of {align}: {role}.clone()")
    return at


def must_not_capture(why: str) -> None:
    """Raises if torch's current stream captures a graph, before anything is sent that the graph cannot hold."""
    import torch

    if torch.cuda.is_current_stream_capturing():
        raise StateError(f"while a graph is captured {why}")


class Buffers(Protocol):
    """Memory and kernels of one shape."""

    def free(self) -> None:
        """Frees the memory when the GPU has ended all calls; while a graph is captured, later. Collective."""

    def check(self) -> None:
        """Raises the errors of calls that are over."""


B = TypeVar("B", bound=Buffers)


class Held(Generic[B]):
    """Buffers of the last requested shape."""

    def __init__(self, runtime: _symrail.Runtime) -> None:
        self.runtime, self.ranks = runtime, runtime.n_pes()
        self.gpu = reached(runtime.device)
        self.held: B | None = None

    def buffers(self) -> B:
        """The present buffers."""
        if self.held is None:
            raise ArgumentError("there was no dispatch")
        return self.held

    def check(self) -> None:
        """Raises the errors of calls that are over on the GPU."""
        if self.held is not None:
            self.held.check()

    def free(self) -> None:
        """Frees the memory. Collective."""
        if self.held is not None:
            self.held.free()
            self.held = None
