"""Transposes and halos of symrail.decomp against NumPy; a 3-D FFT; refusals."""

import itertools

import numpy as np
from refused import refused

import symrail
import symrail.decomp as decomp
from symrail.errors import ArgumentError, StateError

SHAPE = (9, 10, 11)


def whole(dtype: str) -> np.ndarray:
    """The array of which each PE has a part."""
    return np.arange(1, np.prod(SHAPE) + 1).reshape(SHAPE).astype(dtype)


def part(array: np.ndarray, pencil: decomp.Pencil) -> np.ndarray:
    return array[tuple(slice(a, b) for a, b in zip(pencil.start, pencil.stop))]


def transposes(order: str) -> None:
    grid = decomp.Grid(SHAPE, order=order)
    assert np.prod(grid.processes) == symrail.n_pes()
    for dtype, symmetric in itertools.product(("float32", "float64", "complex64", "complex128"), (False, True)):
        numbers = whole(dtype)
        halo, padding = ((1, 0, 2), (0, 2, 1)) if symmetric else (decomp.NONE, decomp.NONE)
        x = grid.empty("x", dtype)
        x[:] = part(numbers, x)
        y = grid.empty("y", dtype, halo=halo, padding=padding, symmetric=symmetric)
        assert grid.transpose(x, y) is y
        np.testing.assert_array_equal(y, part(numbers, y))
        z = grid.transpose(y, "z")
        np.testing.assert_array_equal(z, part(numbers, z))
        back = grid.transpose(grid.transpose(z, "y"), "x")
        np.testing.assert_array_equal(back, x)
    grid.free()
    refused(StateError, grid.transpose, x, "y")


def measured() -> None:
    """The way of blocks is measured, too; engines need GPUs."""
    grid = decomp.Grid(SHAPE, engines="measured")
    x = grid.empty("x", "float64")
    x[:] = part(whole("float64"), x)
    y = grid.transpose(x, "y")
    np.testing.assert_array_equal(y, part(whole("float64"), y))
    assert grid.engines is None
    grid.free()
    for wrong in (-1, "fast", 0.5):
        refused(ArgumentError, decomp.Grid, SHAPE, engines=wrong)


def halos() -> None:
    grid = decomp.Grid(SHAPE)
    numbers = whole("float64")
    for axis in "xyz":
        pencil = grid.empty(axis, "float64", halo=(1, 1, 1), padding=(0, 1, 0))
        pencil[:] = part(numbers, pencil)
        grid.halo(pencil, periodic=True)
        around = [np.arange(a - 1, b + 1) % n for a, b, n in zip(pencil.start, pencil.stop, SHAPE)]
        found = pencil.whole[:, : pencil.whole.shape[1] - 1, :]
        np.testing.assert_array_equal(found, numbers[np.ix_(*around)])
    grid.free()


def fft() -> None:
    grid = decomp.Grid(SHAPE, order="axis")
    numbers = whole("complex128")
    x = grid.empty("x")
    x[:] = np.fft.fft(part(numbers, x), axis=0)
    y = grid.transpose(x, "y")
    y[:] = np.fft.fft(y, axis=1)
    z = grid.transpose(y, "z")
    z[:] = np.fft.fft(z, axis=2)
    np.testing.assert_allclose(z, part(np.fft.fftn(numbers), z), atol=1e-9 * np.abs(numbers).sum())
    for wrong in ((x, "z"), (x, "w"), (x + 1, "y")):
        refused(ArgumentError, grid.transpose, *wrong)
    grid.free()


with symrail.init():
    transposes("x")
    transposes("axis")
    measured()
    halos()
    fft()
    if symrail.my_pe() == 0:
        print("as NumPy has it")
