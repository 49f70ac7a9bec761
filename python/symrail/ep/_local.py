"""Tensors of a Buffer's own memory in a GPU."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from .. import _symrail
from ..errors import ArgumentError, UnsupportedError


def part(memory: _symrail.Memory | None, dtype: Any, size: Sequence[int] | None, offset: int) -> Any:
    """A tensor of a dtype of torch and a shape, by default of all that is left, from the byte `offset` of memory on."""
    import torch

    if memory is None:
        raise UnsupportedError(
            "get_local_buffer_tensor: between these ranks no rows return by combine that would leave memory free between "
            "calls (a rank alone, or hosts of several ranks): allocate a tensor"
        )
    if memory.gpu is None:
        raise UnsupportedError("get_local_buffer_tensor: the heap is in host memory: allocate a tensor")
    if not isinstance(dtype, torch.dtype):
        raise ArgumentError(f"dtype={dtype!r}; wanted is a dtype of torch")
    each = torch.empty((), dtype=dtype, device="cpu").element_size()
    if not 0 <= offset <= memory.nbytes or offset % each:
        raise ArgumentError(
            f"offset={offset}: wanted is a multiple of {each} bytes, the size of {dtype}, within {memory.nbytes} bytes"
        )
    left = memory.nbytes - offset
    shape = (left // each,) if size is None else tuple(size)
    if any(length < 0 for length in shape) or math.prod(shape) * each > left:
        raise ArgumentError(
            f"size={shape} of {dtype} behind {offset} bytes: {math.prod(shape) * each} bytes; this memory has {left} left"
        )
    end = offset + math.prod(shape) * each
    return _symrail.DeviceArray(memory, (memory.nbytes,), "uint8").tensor()[offset:end].view(dtype).reshape(shape)
