"""Linear layers for torch that are spread over the ranks of a group. Inputs and results are each rank's own rows.

Inputs have any number of leading dimensions, as those of torch.nn.Linear; ranks share the first one. Under
torch.autocast, layers cast as torch.nn.Linear does.
"""

from __future__ import annotations

from typing import Any

import torch

from .._gpu import is_on_gpu
from ..errors import ArgumentError
from ._group import Group
from ._products import all_gather_matmul, matmul_reduce_scatter


def _dtype_of_autocast(device: str) -> Any:
    """The dtype to which torch.autocast casts the factors of products on a device; None if it is off."""
    if hasattr(torch, "get_autocast_dtype"):
        return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
    if device == "cuda":
        return torch.get_autocast_gpu_dtype() if torch.is_autocast_enabled() else None
    return torch.get_autocast_cpu_dtype() if torch.is_autocast_cpu_enabled() else None


class _Rows:
    """Inputs as a matrix, and the result as the layer returns it."""

    def __init__(self, rows: Any, layer: _Spread) -> None:
        if len(rows.shape) < 1 or rows.shape[-1] != layer.inputs:
            raise ArgumentError(f"rows has the shape {tuple(rows.shape)}; wanted is any x {layer.inputs}")
        self.group, (*self.leading, _) = layer.group, rows.shape
        self.first: int = self.leading[0] if self.leading else 1
        self.inner = 1
        for length in self.leading[1:]:
            self.inner *= length
        self.dtype = _dtype_of_autocast(rows.device.type)
        # The host multiplies numbers of float32, which hold those of the shorter types.
        self.widens = not is_on_gpu(rows)
        self.matrix = self.cast(rows.reshape(self.first * self.inner, layer.inputs))
        self.weight, self.bias = self.cast(layer.weight), None if layer.bias is None else self.cast(layer.bias)

    def cast(self, numbers: Any) -> Any:
        """The numbers in the type of autocast, which leaves other types than these alone."""
        if self.dtype is None or numbers.dtype not in (torch.float32, torch.float16, torch.bfloat16):
            return numbers
        numbers = numbers.to(self.dtype)
        return numbers.float() if self.widens else numbers

    def known(self, all_rows: int) -> bool:
        """Whether each rank's share of `all_rows` in the first dimension is its share of the matrix's rows, too."""
        of, inner = self.group, self.inner
        shares = [(of.share(all_rows, rank), of.share(all_rows * inner, rank)) for rank in range(of.ranks)]
        return all(inner * (one.stop - one.start) == other.stop - other.start for one, other in shares)

    def result(self, product: Any) -> Any:
        """A product with the input's leading dimensions; the length of the first one follows."""
        if self.dtype is not None:
            product = product.to(self.dtype)
        if len(self.leading) == 1:
            return product
        count, outputs = product.shape
        if not self.leading:
            return product.reshape(outputs) if count == 1 else product
        if self.inner == 0 or count % self.inner:
            raise ArgumentError(
                f"rows of ranks: {count} in all, with {tuple(self.leading[1:])} here behind the first dimension"
            )
        return product.reshape(count // self.inner, *self.leading[1:], outputs)


class _Spread(torch.nn.Module):  # type: ignore[misc] # torch may not be there
    """A rank's part of a linear layer."""

    def __init__(self, group: Group, weight: Any, bias: Any) -> None:
        super().__init__()
        self.group = group
        self.inputs: int = weight.shape[1]
        self.weight = torch.nn.Parameter(weight.detach().clone())
        self.bias = None if bias is None else torch.nn.Parameter(bias.detach().clone())


class ColumnParallelLinear(_Spread):
    """This rank's outputs of a linear layer, for the rows of all ranks. `whole` is the layer, the same on all ranks."""

    def __init__(self, whole: Any, group: Group) -> None:
        own = group.share(whole.out_features)
        super().__init__(group, whole.weight[own], None if whole.bias is None else whole.bias[own])

    def forward(self, rows: Any, all_rows: int | None = None) -> Any:
        """Takes this rank's rows, of all inputs; returns all rows, of this rank's outputs: see `all_gather_matmul`.

        Of more dimensions, the first one is gathered, and `all_rows` is its length; the others are alike on all ranks.
        """
        given = _Rows(rows, self)
        known = all_rows * given.inner if all_rows is not None and given.known(all_rows) else None
        product = all_gather_matmul(given.matrix, given.weight, given.bias, group=self.group, all_rows=known)
        return given.result(product)


class RowParallelLinear(_Spread):
    """This rank's inputs of a linear layer, summed over all ranks. `whole` is the layer, the same on all ranks.

    Each rank has the whole bias, and the gradient of all rows for it."""

    def __init__(self, whole: Any, group: Group) -> None:
        super().__init__(group, whole.weight[:, group.share(whole.in_features)], whole.bias)

    def forward(self, rows: Any, own_rows: int | None = None) -> Any:
        """Takes all rows, of this rank's inputs; returns this rank's rows, of all outputs: see
        `matmul_reduce_scatter`.

        Of more dimensions, the first one is shared, and `own_rows` is this rank's length of it.
        """
        given = _Rows(rows, self)
        own = None
        if own_rows is not None or not given.known(given.first):
            own = given.inner * self.group.rows_of(given.first, own_rows)
        product = matmul_reduce_scatter(given.matrix, given.weight, given.bias, group=self.group, own_rows=own)
        return given.result(product)
