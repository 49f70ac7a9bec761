"""symrail.overlap against NumPy: ragged, tiny and empty shapes; teams; refusals."""

import numpy as np
from refused import refused

import symrail
import symrail.overlap as overlap
from symrail.errors import ArgumentError, DifferError, StateError

random = np.random.default_rng(7)


def matrix(rows: int, columns: int) -> np.ndarray:
    """The same on all PEs."""
    return random.standard_normal((rows, columns)).astype("float32")


def near(found: np.ndarray, wanted: np.ndarray) -> None:
    assert found.shape == wanted.shape and found.dtype == np.float32, (found.shape, wanted.shape)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


def products(group: overlap.Group) -> None:
    for rows, inputs, outputs in ((1, 1, 1), (7, 5, 3), (0, 4, 2), (64, 300, 33), (33, 17, 0)):
        x, weight, bias = matrix(rows, inputs), matrix(outputs, inputs), matrix(1, outputs)[0]
        own_rows, own_inputs, own_outputs = group.share(rows), group.share(inputs), group.share(outputs)
        found = overlap.all_gather_matmul(x[own_rows], weight[own_outputs], bias[own_outputs], group=group)
        near(found, x @ weight[own_outputs].T + bias[own_outputs])
        again = overlap.all_gather_matmul(x[own_rows], weight[own_outputs], group=group, all_rows=rows)
        near(again, x @ weight[own_outputs].T)
        columns, part = x[:, own_inputs], weight[:, own_inputs]
        near(overlap.matmul_reduce_scatter(columns, part, bias, group=group), (x @ weight.T + bias)[own_rows])
        near(overlap.matmul_all_reduce(columns, part, group=group), x @ weight.T)
        # All rows belong to the last rank.
        own = rows if group.rank == group.ranks - 1 else 0
        near(overlap.matmul_reduce_scatter(columns, part, group=group, own_rows=own), (x @ weight.T)[:own])


def refusals(group: overlap.Group) -> None:
    last = group.rank == group.ranks - 1
    x, weight = np.ones((2, 4 + last), "float32"), np.ones((3, 4 + last), "float32")
    if group.ranks > 1:
        for call in (
            lambda: overlap.all_gather_matmul(x, weight, group=group),
            lambda: overlap.matmul_all_reduce(np.ones((2 + last, 4), "float32"), weight[:, :4], group=group),
        ):
            refused(DifferError, call, text=f"PE {symrail.n_pes() - 1}")
        # One rank's arguments do not match: all ranks get an error.
        kind = ArgumentError if last else DifferError
        refused(kind, overlap.all_gather_matmul, x[:, : 3 + (not last)], weight[:, :4], group=group)
    of_others = {"group": group, "all_rows": 2 * group.ranks + group.ranks}
    refused(ArgumentError, overlap.all_gather_matmul, x, weight, **of_others, text="this rank's share of 3")
    refused(ArgumentError, overlap.all_gather_matmul, x.astype("float64"), weight, group=group, text="float32")


with symrail.init(heap_bytes=64 << 20):
    group = overlap.Group(heap_bytes=8 << 20)
    products(group)
    refusals(group)
    products(group)
    group.free()
    refused(StateError, overlap.matmul_all_reduce, *[np.ones((1, 1), "float32")] * 2, group=group)
    # The heap has space for one plan at a time.
    with overlap.Group(heap_bytes=64 << 10) as small:
        for rows in (40, 50, 40):
            x, weight = matrix(rows, 200), matrix(3, 200)
            near(overlap.all_gather_matmul(x[small.share(rows)], weight, group=small), x @ weight.T)
    half = symrail.n_pes() // 2
    if half:
        team = symrail.team_world().split_strided(0 if symrail.my_pe() < half else half, 1,
                                                  half if symrail.my_pe() < half else symrail.n_pes() - half)  # fmt: skip
        with overlap.Group(team, heap_bytes=4 << 20) as part:
            products(part)
    if symrail.my_pe() == 0:
        print("as NumPy has it")
