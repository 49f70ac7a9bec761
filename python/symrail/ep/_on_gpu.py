"""What both ways have in common on a GPU: its tensors, and buffers that are made anew for another shape."""

from __future__ import annotations

from typing import Any, Generic, Protocol, TypeVar

from .. import _symrail
from ..errors import ArgumentError, StateError, UnsupportedError

ROW_ALIGN = 16
"""Kernels copy rows in pieces of so many bytes."""


def is_on_gpu(array: Any) -> bool:
    """Whether an array is a tensor in a GPU's memory."""
    return getattr(getattr(array, "device", None), "type", None) == "cuda"


def address(tensor: Any, role: str, gpu: int, dtype: str, shape: tuple[int, ...], align: int = 1) -> int:
    """The address of a tensor that is as kernels need it."""
    if not is_on_gpu(tensor) or tensor.device.index != gpu:
        where = getattr(tensor, "device", type(tensor).__name__)
        raise ArgumentError(f"{role} is on {where}; wanted is this PE's GPU, cuda:{gpu}")
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
    """Raises where torch's current stream captures a graph, before anything is sent that the graph cannot hold."""
    import torch

    if torch.cuda.is_current_stream_capturing():
        raise StateError(f"while a graph is captured {why}")


def gpu_of(runtime: _symrail.Runtime) -> int:
    """The GPU that reaches the job's heap."""
    gpu = runtime.device
    if gpu is None:
        raise UnsupportedError(
            'tensors of a GPU need a heap that it reaches: symrail.init(heap="device") before, or SYMRAIL_HEAP_KIND'
        )
    return gpu


class Buffers(Protocol):
    """Memory and kernels of one shape."""

    def free(self) -> None:
        """Gives the memory back. Collective."""

    def check(self) -> None:
        """Raises what went wrong in calls that are over."""


B = TypeVar("B", bound=Buffers)


class Held(Generic[B]):
    """Buffers of the shape that is wanted last."""

    def __init__(self, runtime: _symrail.Runtime) -> None:
        self.runtime, self.ranks = runtime, runtime.n_pes()
        self.gpu = gpu_of(runtime)
        self.held: B | None = None

    def buffers(self) -> B:
        """The present ones."""
        if self.held is None:
            raise ArgumentError("there was no dispatch")
        return self.held

    def check(self) -> None:
        """Raises what went wrong in calls that are over on the GPU."""
        if self.held is not None:
            self.held.check()

    def free(self) -> None:
        """Gives the memory back. Collective."""
        if self.held is not None:
            import torch

            torch.cuda.synchronize(self.gpu)
            self.held.free()
            self.held = None
