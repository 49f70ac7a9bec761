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


def op_name(op: Any) -> str:
    """The word for an operation: ours, its name, or one of torch.distributed. What there is not, is refused later, so that
    the other ranks learn of it; and so for dtypes."""
    # torch's prints as RedOpType.SUM.
    name = op.value if isinstance(op, ReduceOp) else str(op).rpartition(".")[2].lower()
    return {"product": "prod"}.get(name, name)


def dtype_name(dtype: Any) -> str | None:
    """The word for the type that bytes of arrays are to be taken for."""
    if dtype is None:
        return None
    try:
        return type_name(dtype)
    except ArgumentError:
        return str(dtype)


def current_stream(array: Any) -> Any:
    """torch's current stream for its tensors on GPUs; none for other arrays."""
    if not getattr(array, "is_cuda", False):
        return None
    import torch

    return torch.cuda.current_stream(array.device)
