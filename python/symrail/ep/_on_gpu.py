"""Common parts of both ways on a GPU: tensors, streams, and buffers that are remade for another shape."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, Protocol, TypeVar

from .. import _symrail
from .._gpu import is_capturing, must_be_on, reached
from .._tensors import is_tensor, must_be_plain
from ..errors import ArgumentError, StateError

ROW_ALIGN = 16
"""Kernels copy rows in pieces of so many bytes."""
DEVICE = "cuda"
"""The kind of devices that kernels run on."""
_NAMES: dict[Any, str] = {}
"""The names of torch's dtypes that kernels take."""


P = ParamSpec("P")
R = TypeVar("R")


def plain(call: Callable[P, R]) -> Callable[P, R]:
    """The call, in which torch's modes do not see how tensors are read and made.

    A mode (`torch.set_default_device` sets one) sees each look at a tensor's shape or address, for some 3 us each; a
    call has dozens.
    """

    @functools.wraps(call)
    def called(*arguments: P.args, **named: P.kwargs) -> R:
        torch = sys.modules.get("torch")
        if torch is None:
            return call(*arguments, **named)
        with torch._C.DisableTorchFunction():
            return call(*arguments, **named)

    return called


def current_stream(gpu: int) -> int:
    """torch's current stream on a GPU."""
    stream: int = sys.modules["torch"]._C._cuda_getCurrentRawStream(gpu)
    return stream


def address(tensor: Any, role: str, gpu: int, dtype: str, shape: tuple[int, ...], align: int = 1) -> int:
    """The address of a tensor that kernels can use."""
    is_as_wanted = (
        type(tensor).__name__ == "Tensor"
        and tensor.shape == shape
        and _NAMES.get(tensor.dtype) == dtype
        and tensor.device.index == gpu
        and tensor.device.type == DEVICE
        and tensor.is_contiguous()
        and not (tensor.is_neg() or tensor.is_conj())
    )
    at = int(tensor.data_ptr()) if is_as_wanted else _checked(tensor, role, gpu, dtype, shape)
    if at % align:
        raise ArgumentError(f"{role} is at {at:#x}; wanted is a multiple of {align}: {role}.clone()")
    return at


def _checked(tensor: Any, role: str, gpu: int, dtype: str, shape: tuple[int, ...]) -> int:
    must_be_on(gpu, tensor, role)
    if is_tensor(tensor):
        must_be_plain(tensor, role)
    found, name = tuple(tensor.shape), str(tensor.dtype).rpartition(".")[2]
    if found != shape or name != dtype:
        raise ArgumentError(f"{role} is {found} of {name}; wanted is {shape} of {dtype}")
    if not tensor.is_contiguous():
        raise ArgumentError(f"{role} is not contiguous: {role}.contiguous()")
    return int(tensor.data_ptr())


def must_not_capture(why: str) -> None:
    """Raises if torch's current stream captures a graph, before anything is sent that the graph cannot hold."""
    import torch

    if torch.cuda.is_current_stream_capturing():
        raise StateError(f"while a graph is captured {why}")


class Buffers(Protocol):
    """Memory and kernels of one shape."""

    def free(self) -> None:
        """Frees the memory when the GPU has ended all calls; while a graph is captured, later. Collective."""

    def views(self) -> int:
        """The number of tensors that view the memory."""

    def check(self) -> None:
        """Raises the errors of calls that are over."""


B = TypeVar("B", bound=Buffers)


def know_dtypes() -> None:
    """Keeps the names of torch's dtypes."""
    import torch

    names = ("bfloat16", "float32", "int32", "int64", "bool", "float8_e4m3fn", "uint8", "float16")
    _NAMES.update({getattr(torch, name): name for name in names if hasattr(torch, name)})


class Held(Generic[B]):
    """Buffers of the last requested shape."""

    def __init__(self, runtime: _symrail.Runtime, timeout: float | None) -> None:
        self.runtime, self.ranks, self.timeout = runtime, runtime.n_pes(), timeout
        self.gpu = reached(runtime.device)
        self.held: B | None = None
        know_dtypes()

    def buffers(self) -> B:
        """The present buffers."""
        if self.held is None:
            raise ArgumentError("there was no dispatch")
        return self.held

    def left(self) -> B:
        """The buffers that earlier calls have left, for `get_local_buffer_tensor`."""
        if self.held is None:
            raise StateError("get_local_buffer_tensor: there are no buffers since a call failed that made others")
        return self.held

    def check(self) -> None:
        """Raises the errors of calls that are over on the GPU."""
        if self.held is not None:
            self.held.check()

    def must_have_no_views(self) -> None:
        """Raises StateError on all ranks if tensors view the memory on one of them. Collective."""
        if self.held is None or is_capturing():
            return
        count = self.held.views()
        if self.runtime.world.all_agree(count == 0, timeout=self.timeout):
            return
        whose = f"{count} views of these buffers exist here" if count else "another rank has views of these buffers"
        raise StateError(
            f"{whose} (get_next_combine_buffer, get_local_buffer_tensor): drop such tensors before destroy(), and before a "
            "dispatch of larger rows or of another shape"
        )

    def free(self) -> None:
        """Frees the memory. Collective. Raises StateError if there are views."""
        if self.held is not None:
            self.must_have_no_views()
            self.held.free()
            self.held = None
