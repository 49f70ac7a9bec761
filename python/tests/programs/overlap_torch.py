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


def leading(group: overlap.Group) -> None:
    """Inputs of more than two dimensions, and torch.autocast, as for torch.nn.Linear."""
    torch.manual_seed(2)
    whole = torch.nn.Linear(8, 6)
    columns, rows = ColumnParallelLinear(whole, group), RowParallelLinear(whole, group)
    for first, middle in ((2 * group.ranks + 1, (3,)), (group.ranks, (2, 2)), (5, ())):
        x = torch.randn(first, *middle, 8)
        share, inputs = group.share(first), group.share(8)
        for dtype in (None, torch.bfloat16):
            for given in (x, x.bfloat16()) if dtype is not None else (x,):
                with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
                    wanted = whole(given)
                    for all_rows in (None, first):
                        mine = given[share].detach().requires_grad_()
                        found = columns(mine, all_rows)
                        assert found.dtype == wanted.dtype and found.shape[:-1] == wanted.shape[:-1]
                        limits = dict(rtol=0.02, atol=0.02) if dtype is not None else dict(rtol=1e-5, atol=1e-5)
                        torch.testing.assert_close(found, wanted[..., group.share(6)], **limits)
                        # The sum over ranks of what each one's outputs contribute.
                        found.float().square().sum().backward()
                        assert mine.grad.shape == mine.shape and mine.grad.dtype == mine.dtype
                        reference = given.detach().requires_grad_()
                        (gradient,) = torch.autograd.grad(whole(reference).float().square().sum(), reference)
                        torch.testing.assert_close(mine.grad, gradient[share], rtol=0.1, atol=0.1)
                    for own in (None, share.stop - share.start):
                        # As many pieces of the sum as ranks, each rounded.
                        found = rows(given[..., inputs], own)
                        assert found.dtype == wanted.dtype
                        torch.testing.assert_close(found, wanted[share], rtol=0.05, atol=0.05)
    try:
        columns(torch.randn(3, 7))
        raise AssertionError("not refused")
    except symrail.errors.ArgumentError as error:
        assert "(3, 7)" in str(error)
    try:
        columns(torch.randn(3, 8).bfloat16())
        raise AssertionError("not refused")
    except symrail.errors.ArgumentError as error:
        assert "bfloat16" in str(error)


torch.set_num_threads(1)
with symrail.init(heap_bytes=64 << 20), overlap.Group(heap_bytes=8 << 20) as group:
    gradients(group)
    train(group)
    leading(group)
    print(f"PE {symrail.my_pe()} trains as one process does\n", end="")
