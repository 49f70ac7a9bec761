"""Tensors of torch whose elements are not what the memory at their address holds.

Every place that passes an address on calls `must_be_plain`, or `resolved` where a copy does no harm: this module alone
knows the kinds of such tensors.
"""

from __future__ import annotations

import sys
from typing import Any

from .errors import ArgumentError


def is_tensor(array: Any) -> bool:
    """Whether it is a tensor of torch, which may not be installed."""
    return any(of.__module__.partition(".")[0] == "torch" and of.__name__ == "Tensor" for of in type(array).__mro__)


def _refusal(tensor: Any) -> str | None:
    """Why the memory at a tensor's address is not its elements, and what to pass instead; None if it is."""
    torch = sys.modules.get("torch")
    if torch is None:
        return None  # an array that only has torch's name
    kind = type(tensor).__name__
    if tensor.is_nested:
        return "is a nested tensor: pass its parts (unbind())"
    if tensor.layout != torch.strided:
        return f"has the layout {tensor.layout}: pass to_dense()"
    if tensor.is_quantized:
        return "is quantized, and its scales are elsewhere: pass dequantize(), or int_repr() and the scales"
    if tensor.device.type == "meta":
        return "is on the device meta, which holds no elements"
    if tensor.is_conj():
        return "is only marked as conjugated, and its memory is not: pass resolve_conj()"
    if tensor.is_neg():
        return "is only marked as negated, and its memory is not: pass resolve_neg()"
    try:
        address = tensor.data_ptr()
    except RuntimeError as error:
        return f"is a {kind} without an address: {error}"
    if address == 0 and tensor.numel() > 0:
        return f"is a {kind} without memory of its own: pass the tensor that it wraps (of a DTensor, to_local())"
    return None


def must_be_plain(tensor: Any, role: str) -> None:
    """Raises ArgumentError for a tensor whose elements are not what is in memory at its address."""
    why = _refusal(tensor)
    if why is not None:
        raise ArgumentError(f"{role} {why}")


def resolved(tensor: Any, role: str) -> Any:
    """The tensor, or a copy of one that is only marked as conjugated or negated, without a history of gradients.

    Raises ArgumentError for other tensors whose elements are not what is in memory at their address.
    """
    tensor = tensor.detach()
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    must_be_plain(tensor, role)
    return tensor
