"""Layers of symrail.overlap train as the same layers in one process do; gradients are those of torch."""

import numpy as np
import torch

import symrail
import symrail.overlap as overlap
from symrail.overlap.layers import ColumnParallelLinear, RowParallelLinear

ROWS, WIDTH, HIDDEN, STEPS = 37, 10, 23, 12


def total(value: torch.Tensor, parts: np.ndarray, sums: np.ndarray) -> torch.Tensor:
    """The sum of a number over all PEs."""
    parts[0] = float(value)
    symrail.team_world().reduce(sums, parts, "sum")
    return torch.tensor(sums[0])


def gradients(group: overlap.Group) -> None:
    """Gradients of an all-reduce, whose sum all ranks have."""
    torch.manual_seed(1)
    x, weight = torch.randn(9, 14, requires_grad=True), torch.randn(5, 14, requires_grad=True)
    wanted = torch.autograd.grad((x @ weight.t()).square().sum(), (x, weight))
    own = group.share(14)
    mine = x[:, own].detach().requires_grad_(), weight[:, own].detach().requires_grad_()
    found = torch.autograd.grad(overlap.matmul_all_reduce(*mine, group=group).square().sum(), mine)
    for one, other in zip(found, wanted):
        torch.testing.assert_close(one, other[:, own], rtol=1e-4, atol=1e-4)


def train(group: overlap.Group) -> None:
    torch.manual_seed(0)
    one = torch.nn.Sequential(torch.nn.Linear(WIDTH, HIDDEN), torch.nn.GELU(), torch.nn.Linear(HIDDEN, WIDTH))
    spread = torch.nn.Sequential(ColumnParallelLinear(one[0], group), torch.nn.GELU(), RowParallelLinear(one[2], group))
    x, y = torch.randn(ROWS, WIDTH), torch.randn(ROWS, WIDTH)
    own = group.share(ROWS)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.5) for model in (one, spread)]
    parts, sums = symrail.array((1,), "float32"), symrail.array((1,), "float32")
    losses = []
    for _ in range(STEPS):
        wanted = (one(x) - y).square().sum() / y.numel()
        mine = (spread(x[own]) - y[own]).square().sum() / y.numel()
        for optimizer, loss in zip(optimizers, (wanted, mine)):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        torch.testing.assert_close(total(mine, parts, sums), wanted.detach(), rtol=1e-5, atol=1e-6)
        losses.append(float(wanted))
    assert losses[-1] < 0.9 * losses[0], losses
    torch.testing.assert_close(spread[2].bias, one[2].bias, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(spread[0].weight, one[0].weight[group.share(HIDDEN)], rtol=1e-4, atol=1e-5)


torch.set_num_threads(1)
with symrail.init(heap_bytes=64 << 20), overlap.Group(heap_bytes=8 << 20) as group:
    gradients(group)
    train(group)
    print(f"PE {symrail.my_pe()} trains as one process does\n", end="")
