"""Symmetric memory of a job as tensors, for the calls of DeepEP's second generation."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .. import _symrail
from ..errors import ArgumentError, DifferError, SymrailError, UnsupportedError


def must_be_supported(runtime: Any, call: str) -> None:
    """Raises UnsupportedError where a GPU's tensors would be copied through a heap in host memory."""
    if runtime.device is not None and not runtime.in_gpus:
        raise UnsupportedError(f'{call}: this heap is in host memory: symrail.init(heap="device")')


def agree(
    runtime: Any, call: str, names: Sequence[str], check: Callable[[], Sequence[int]], timeout: float | None
) -> None:
    """Compares the numbers of a call, one for each of `names`, which `check` returns or refuses. Collective: no rank goes
    on alone. Raises what `check` raises, and on the other ranks DifferError; DifferError, too, if numbers differ."""
    refusal, own = None, [0] * (1 + len(names))
    try:
        own = [1, *check()]
    except SymrailError as error:
        refusal = error
    found = runtime.world.gather_numbers(own, timeout=timeout)
    if refusal is not None:
        raise refusal
    for rank in range(runtime.n_pes()):
        is_passed, *its = found[rank * len(own) : (rank + 1) * len(own)]
        if not is_passed:
            raise DifferError(f"{call}: rank {rank} was refused this call, and rank {runtime.my_pe()} was not", {"pe": rank})
        for name, here, there in zip(names, own[1:], its):
            if here != there:
                raise DifferError(
                    f"{call}: {name} is {here} on rank {runtime.my_pe()}, and {there} on rank {rank}", {"pe": rank}
                )


def array(runtime: Any, shape: tuple[int, ...], dtype: str, text: str, timeout: float | None) -> Any:
    """Zeroed symmetric memory as an array: NumPy's, or a DeviceArray. `text` is the same on all ranks, which is compared.
    Collective."""
    count = math.prod(shape)
    memory = runtime.allocate(count * np.dtype(dtype).itemsize, text, timeout=timeout)
    if memory.gpu is not None:
        return _symrail.DeviceArray(memory, shape, dtype)
    return np.asarray(memory).view(dtype)[:count].reshape(shape)


def tensor(symmetric: Any) -> Any:
    """A tensor of torch on the same memory."""
    import torch

    return symmetric.tensor() if isinstance(symmetric, _symrail.DeviceArray) else torch.from_numpy(symmetric)


def of_bytes(given: Any, role: str, gpu: int | None, call: str) -> Any:
    """The bytes of a contiguous tensor in the memory of this rank's calls: its GPU's, or the host's."""
    import torch

    if not isinstance(given, torch.Tensor):
        raise ArgumentError(f"{call}: {role} is a {type(given).__name__}, not a tensor of torch")
    where = torch.device("cpu") if gpu is None else torch.device("cuda", gpu)
    if given.device != where:
        raise ArgumentError(f"{call}: {role} is on {given.device}; wanted is {where}")
    if not given.is_contiguous() or given.is_neg() or given.is_conj():
        raise ArgumentError(f"{call}: {role} is not contiguous, or only marked as negated: {role}.contiguous()")
    return given.reshape(-1).view(torch.uint8)


def bytes_of(shape: Any, dtype: Any) -> int:
    """The bytes of a tensor of this shape."""
    import torch

    each = int(torch.empty((), dtype=dtype, device="cpu").element_size())
    return each * math.prod(int(length) for length in shape)


def up(number: int, unit: int) -> int:
    """The next multiple of a unit."""
    return -(-number // unit) * unit
