"""Words for what is done, and what arrays are."""

from __future__ import annotations

from enum import Enum
from typing import Any

from .._arrays import type_name
from ..errors import ArgumentError


class ReduceOp(str, Enum):
    """How elements are combined. AVG divides their sum by the number of ranks; of integers it is cut."""

    SUM = "sum"
    PROD = "prod"
    PRODUCT = "prod"
    MIN = "min"
    MAX = "max"
    AVG = "avg"


_OPS = tuple(op.value for op in ReduceOp)


def op_name(op: Any) -> str:
    """The word for an operation: ours, its name, or one of torch.distributed."""
    # torch's prints as RedOpType.SUM.
    name = op.value if isinstance(op, ReduceOp) else str(op).rpartition(".")[2].lower()
    name = {"product": "prod", "mean": "avg"}.get(name, name)
    if name not in _OPS:
        raise ArgumentError(f"op is {op!r}; there are {', '.join(_OPS)}")
    return name


def dtype_name(dtype: Any) -> str | None:
    """The word for the type that bytes of arrays are to be taken for."""
    if dtype is None or dtype == "float8_e4m3b15":
        return dtype
    return type_name(dtype)


def current_stream(array: Any) -> Any:
    """torch's current stream for its tensors on GPUs; none for other arrays."""
    if not getattr(array, "is_cuda", False):
        return None
    import torch

    return torch.cuda.current_stream(array.device)
