"""Products of arrays of NumPy and tensors of torch."""

from __future__ import annotations

from typing import Any

from .._host_arrays import is_tensor
from . import _host
from ._group import Group


def _wants_gradients(*arrays: Any) -> bool:
    """Whether torch is to note how a result was made."""
    if not any(is_tensor(array) and array.requires_grad for array in arrays):
        return False
    import torch

    return bool(torch.is_grad_enabled())


def all_gather_matmul(rows: Any, weight: Any, bias: Any = None, *, group: Group) -> Any:
    """The rows of all ranks, one rank's behind the other's, times this rank's weight, with its bias.

    `rows` (any number x inputs) are this rank's; ranks may have different numbers of rows, and of outputs. `weight` is
    outputs x inputs.
    """
    if _wants_gradients(rows, weight, bias):
        from . import _autograd

        return _autograd.AllGatherMatmul.apply(group, rows, weight, bias)
    return _host.gather(group, rows, weight, bias)[0]


def matmul_reduce_scatter(
    rows: Any, weight: Any, bias: Any = None, *, group: Group, own_rows: int | None = None
) -> Any:
    """This rank's rows of the sum of all ranks' `rows` times their weights, with this rank's bias.

    `rows` (all rows x inputs) have as many rows on each rank; the inputs are this rank's. `weight` is outputs x inputs.
    `own_rows` says how many rows of the sum belong to this rank; without it, they are shared out as `Group.share` does.
    """
    if _wants_gradients(rows, weight, bias):
        from . import _autograd

        return _autograd.MatmulReduceScatter.apply(group, rows, weight, bias, own_rows)
    return _host.reduce(group, rows, weight, bias, own=own_rows)


def matmul_all_reduce(rows: Any, weight: Any, bias: Any = None, *, group: Group) -> Any:
    """The sum of all ranks' `rows` times their weights, all rows of it on each rank.

    Arguments are those of `matmul_reduce_scatter`; each row has the bias of the rank that `Group.share` gives it to, so
    that all pass the same. A gradient is taken to be that of the one sum that all ranks have.
    """
    if _wants_gradients(rows, weight, bias):
        from . import _autograd

        return _autograd.MatmulAllReduce.apply(group, rows, weight, bias)
    return _host.reduce(group, rows, weight, bias, everywhere=True)
