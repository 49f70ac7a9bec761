"""Names of operations and of arrays' types."""

from __future__ import annotations

import operator
from enum import Enum
from typing import Any

from .._arrays import type_name
from ..errors import ArgumentError


class ReduceOp(str, Enum):
    """The operation on elements. AVG divides their sum by the number of ranks, and truncates integers. BAND, BOR and
    BXOR are of the bits of integers and booleans, on the host."""

    SUM = "sum"
    PROD = "prod"
    PRODUCT = "prod"
    MIN = "min"
    MAX = "max"
    AVG = "avg"
    BAND = "and"
    BOR = "or"
    BXOR = "xor"


def op_name(op: Any) -> str:
    """The name of an operation: ours, a name, or one of torch.distributed. Unknown ones are refused later, so that
    the other ranks learn of it; the same holds for dtypes."""
    # torch's operations print as RedOpType.SUM.
    name = op.value if isinstance(op, ReduceOp) else str(op).rpartition(".")[2].lower()
    return {"product": "prod", "band": "and", "bor": "or", "bxor": "xor"}.get(name, name)


def dtype_name(dtype: Any) -> str | None:
    """The name of the type in which to reinterpret arrays."""
    if dtype is None:
        return None
    try:
        return type_name(dtype)
    except ArgumentError:
        return str(dtype)


def counts(role: str, splits: Any) -> list[int]:
    """The integers of a sequence, an array or a tensor."""
    try:
        found = [operator.index(count) for count in splits]
    except TypeError:
        raise ArgumentError(f"{role} is {splits!r}, not a sequence of integers") from None
    if any(not 0 <= count < 2**63 for count in found):
        raise ArgumentError(f"{role} is {found}: numbers are from 0 to 2**63 - 1")
    return found


def current_stream(array: Any) -> Any:
    """torch's current stream for its tensors on GPUs; none for other arrays."""
    if not getattr(array, "is_cuda", False):
        return None
    import torch

    return torch.cuda.current_stream(array.device)
