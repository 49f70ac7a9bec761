"""The same products for torch, with gradients: the gradient of a gather is a reduction, and the other way round.

Gradients of gradients are refused if ranks move rows: torch does not track data from other ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable

from ._products import form


def _product(one: Any, other: Any) -> Any:
    """A product in the type of its factors, also if the backward pass is made under torch.autocast."""
    with torch.autocast(one.device.type, enabled=False):
        return one @ other


def _own_gradients(ctx: Any, gradient: Any, rows: Any, weight: int) -> tuple[Any, Any]:
    """The gradients of weight and bias, the arguments from number `weight` on, if they are needed."""
    wants_weight, wants_bias = ctx.needs_input_grad[weight : weight + 2]
    return _product(gradient.t(), rows) if wants_weight else None, gradient.sum(dim=0) if wants_bias else None


class AllGatherMatmul(torch.autograd.Function):  # type: ignore[misc] # torch may not be there
    """`all_gather_matmul`; its gradient for the rows is a `matmul_reduce_scatter`."""

    @staticmethod
    def forward(ctx: Any, group: Any, rows: Any, weight: Any, bias: Any, all_rows: int | None) -> Any:
        product, gathered = form(rows).gather(group, rows, weight, bias, all_rows=all_rows, wanted=True)
        ctx.group, ctx.own = group, rows.shape[0] if all_rows is None else None
        ctx.save_for_backward(gathered, weight)
        return product

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator] # torch may not be there
    def backward(ctx: Any, gradient: Any) -> Any:
        gathered, weight = ctx.saved_tensors
        # All ranks take part, even those that do not need the result.
        rows = form(gradient).reduce(ctx.group, gradient, weight, by_outputs=False, own=ctx.own)
        return None, rows, *_own_gradients(ctx, gradient, gathered, 2), None


class MatmulReduceScatter(torch.autograd.Function):  # type: ignore[misc] # torch may not be there
    """`matmul_reduce_scatter`; its gradient for the rows is an `all_gather_matmul`."""

    @staticmethod
    def forward(ctx: Any, group: Any, rows: Any, weight: Any, bias: Any, own: int | None) -> Any:
        ctx.group, ctx.all_rows = group, rows.shape[0] if own is None else None
        ctx.save_for_backward(rows, weight)
        return form(rows).reduce(group, rows, weight, bias, own=own)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator] # torch may not be there
    def backward(ctx: Any, gradient: Any) -> Any:
        rows, weight = ctx.saved_tensors
        known = {"all_rows": ctx.all_rows, "by_outputs": False, "wanted": True}
        own, gathered = form(gradient).gather(ctx.group, gradient, weight, **known)
        return None, own, *_own_gradients(ctx, gathered, rows, 2), None


class MatmulAllReduce(torch.autograd.Function):  # type: ignore[misc] # torch may not be there
    """`matmul_all_reduce`; its gradients need no other rank."""

    @staticmethod
    def forward(ctx: Any, group: Any, rows: Any, weight: Any, bias: Any) -> Any:
        ctx.save_for_backward(rows, weight)
        return form(rows).reduce(group, rows, weight, bias, everywhere=True)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        rows, weight = ctx.saved_tensors
        return None, _product(gradient, weight), *_own_gradients(ctx, gradient, rows, 2)
