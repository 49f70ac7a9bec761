"""Linear layers for torch that are spread over the ranks of a group. Inputs and results are each rank's own rows."""

from __future__ import annotations

from typing import Any

import torch

from ._group import Group
from ._products import all_gather_matmul, matmul_reduce_scatter


class _Spread(torch.nn.Module):  # type: ignore[misc] # torch may not be there
    """A rank's part of a linear layer."""

    def __init__(self, group: Group, weight: Any, bias: Any) -> None:
        super().__init__()
        self.group = group
        self.weight = torch.nn.Parameter(weight.detach().clone())
        self.bias = None if bias is None else torch.nn.Parameter(bias.detach().clone())


class ColumnParallelLinear(_Spread):
    """This rank's outputs of a linear layer, for the rows of all ranks. `whole` is the layer, the same on all ranks."""

    def __init__(self, whole: Any, group: Group) -> None:
        own = group.share(whole.out_features)
        super().__init__(group, whole.weight[own], None if whole.bias is None else whole.bias[own])

    def forward(self, rows: Any, all_rows: int | None = None) -> Any:
        """Takes this rank's rows, of all inputs; returns all rows, of this rank's outputs: see `all_gather_matmul`."""
        return all_gather_matmul(rows, self.weight, self.bias, group=self.group, all_rows=all_rows)


class RowParallelLinear(_Spread):
    """This rank's inputs of a linear layer, summed over all ranks. `whole` is the layer, the same on all ranks.

    Each rank has the whole bias, and the gradient of all rows for it."""

    def __init__(self, whole: Any, group: Group) -> None:
        super().__init__(group, whole.weight[:, group.share(whole.in_features)], whole.bias)

    def forward(self, rows: Any, own_rows: int | None = None) -> Any:
        """Takes all rows, of this rank's inputs; returns this rank's rows, of all outputs: see
        `matmul_reduce_scatter`."""
        return matmul_reduce_scatter(rows, self.weight, self.bias, group=self.group, own_rows=own_rows)
