"""Products of arrays of NumPy and tensors of torch, in host memory or a GPU's."""

from __future__ import annotations

from typing import Any

from .._gpu import is_on_gpu
from .._tensors import is_tensor
from ..errors import ArgumentError, UnsupportedError
from . import _gpu, _host
from ._group import Group


def _wants_gradients(*arrays: Any) -> bool:
    """Whether torch must record how a result was made."""
    if not any(is_tensor(array) and array.requires_grad for array in arrays):
        return False
    import torch

    return bool(torch.is_grad_enabled())


def form(rows: Any) -> Any:
    """The products for arrays in this memory: host memory, or GPU memory."""
    return _gpu if is_on_gpu(rows) else _host


def _of_short(rows: Any, wants_gradients: bool, scales: Any, dtype: Any) -> dict[str, Any]:
    """The arguments about numbers that only products on a GPU have."""
    if scales is None and dtype is None:
        return {}
    if not is_on_gpu(rows):
        raise ArgumentError("scales and dtype are of tensors in a GPU's memory; rows are in host memory")
    if wants_gradients:
        raise UnsupportedError("there are no gradients of products with scales or another dtype: torch.no_grad()")
    return {"scales": scales, "dtype": dtype}


def all_gather_matmul(
    rows: Any,
    weight: Any,
    bias: Any = None,
    *,
    group: Group,
    all_rows: int | None = None,
    scales: Any = None,
    dtype: Any = None,
) -> Any:
    """The rows of all ranks, in the order of ranks, times this rank's weight, with its bias.

    `rows` (any number x inputs) are this rank's; ranks may have different numbers of rows, and of outputs. `weight` is
    outputs x inputs. With `all_rows`, of which each rank has its share (`Group.share`), ranks need not exchange their
    numbers of rows: on a GPU the host then waits for no other rank, except in the first call of a shape.

    On a GPU `dtype` is that of the result and the bias: by default, that of the rows, and bfloat16 for 8-bit floats.
    8-bit floats have two `scales`, by which rows and weight are multiplied: float32, of one number each, on the GPU.
    """
    wants = _wants_gradients(rows, weight, bias)
    more = _of_short(rows, wants, scales, dtype)
    if wants:
        from . import _autograd

        return _autograd.AllGatherMatmul.apply(group, rows, weight, bias, all_rows)
    return form(rows).gather(group, rows, weight, bias, all_rows=all_rows, **more)[0]


def matmul_reduce_scatter(
    rows: Any,
    weight: Any,
    bias: Any = None,
    *,
    group: Group,
    own_rows: int | None = None,
    scales: Any = None,
    dtype: Any = None,
) -> Any:
    """This rank's rows of the sum of all ranks' `rows` times their weights, with this rank's bias.

    `rows` (all rows x inputs) have the same number of rows on each rank; the inputs are this rank's. `weight` is
    outputs x inputs. `own_rows` is the number of this rank's rows of the sum; by default they are shared as by
    `Group.share`. `scales` and `dtype` are as for `all_gather_matmul`.
    """
    wants = _wants_gradients(rows, weight, bias)
    more = _of_short(rows, wants, scales, dtype)
    if wants:
        from . import _autograd

        return _autograd.MatmulReduceScatter.apply(group, rows, weight, bias, own_rows)
    return form(rows).reduce(group, rows, weight, bias, own=own_rows, **more)


def matmul_all_reduce(
    rows: Any, weight: Any, bias: Any = None, *, group: Group, scales: Any = None, dtype: Any = None
) -> Any:
    """The sum of all ranks' `rows` times their weights, all rows of it on each rank.

    Arguments are those of `matmul_reduce_scatter`. Each row has the bias of the rank whose share (`Group.share`) it is
    in, so all ranks pass the same bias. A gradient counts as that of the one sum that all ranks have.
    """
    wants = _wants_gradients(rows, weight, bias)
    more = _of_short(rows, wants, scales, dtype)
    if wants:
        from . import _autograd

        return _autograd.MatmulAllReduce.apply(group, rows, weight, bias)
    return form(rows).reduce(group, rows, weight, bias, everywhere=True, **more)
