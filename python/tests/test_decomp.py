"""symrail.decomp: transposes, halos and an FFT against NumPy; the example that solves Poisson's equation."""

from __future__ import annotations

import math
import re
import sys
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import finish, launcher, run, start
from symrail import decomp, errors


@pytest.mark.parametrize(("pes", "options"), [(1, ()), (4, ()), (3, ("--hosts", "2", "--rails", "1"))])
def test_pencils(pes: int, options: tuple[str, ...]) -> None:
    assert run("pencils.py", pes=pes, options=options) == "as NumPy has it\n"


def test_poisson(tmp_path: Path) -> None:
    program, plot = Path(__file__).parents[1] / "examples" / "poisson.py", tmp_path / "poisson.svg"
    command = [launcher(), "run", "-n", "4", "--", sys.executable, str(program), "--edge", "16", "--plot", str(plot)]
    (ended,) = finish([start(command)])
    assert ended.returncode == 0, ended
    points = [line.split() for line in ended.stdout.splitlines() if re.fullmatch(r"( +-?[0-9.]+){3}", line)]
    assert len(points) == 8, ended.stdout
    for along, computed, analytic in points:
        expected = math.sin(2 * math.pi * float(along)) * math.sin(4 * math.pi / 8)
        assert float(analytic) == pytest.approx(expected, abs=1e-8) == float(computed)
    assert re.search(r"16\^3 on \d x \d PEs by numpy's FFT in [0-9.]+ ms: largest error \d\.\d+e-1[3-9]", ended.stdout)
    assert plot.read_text().count("<circle") == 16


def test_a_new_pencil_is_memory_of_the_stream_of_its_transpose() -> None:
    """Anything that another stream did to it could run after the transpose."""
    log, current = [], ["the current stream"]

    class Stream:
        """One of PyTorch's, or made of a handle."""

        def __init__(self, handle: int = 7, device: int | None = None) -> None:
            self.cuda_stream = handle

    @contextmanager
    def under(stream: Any) -> Any:
        current.append(f"stream {stream.cuda_stream}")
        yield
        current.pop()

    def empty(count: int, **_: Any) -> Any:
        log.append(f"empty on {current[-1]}")
        return np.empty(count)

    cuda = SimpleNamespace(Stream=Stream, ExternalStream=Stream, stream=under)
    torch = SimpleNamespace(__name__="torch", cuda=cuda, empty=empty, float64=float)
    pencils = SimpleNamespace(
        pencil=lambda rank, along: ([0] * 3, [2, 3, 4], [0, 1, 2]),
        transpose=lambda *arguments: log.append(f"transpose on {decomp._symrail.stream_handle(arguments[-1])}"),
    )
    grid: Any = decomp.Grid.__new__(decomp.Grid)
    grid._arrays, grid._pencils, grid._runtime = torch, pencils, SimpleNamespace(my_pe=lambda: 0, device=0)
    source = grid._pencil("x", np.zeros(24), decomp.NONE, decomp.NONE)
    for stream in (Stream(), 9):
        assert grid.transpose(source, "y", stream=stream).array.shape == (2, 3, 4)
    assert log == ["empty on stream 7", "transpose on 7", "empty on stream 9", "transpose on 9"]


def test_a_refused_call_tells_the_axes_that_are_right() -> None:
    """PEs whose GPUs have a plan for these axes do not compare calls, and those that have none do."""
    told: list[Any] = []
    pencils = SimpleNamespace(
        pencil=lambda rank, along: ([0] * 3, [2, 3, 4], [0, 1, 2]),
        tell=lambda *arguments: told.append(arguments),
    )
    grid: Any = decomp.Grid.__new__(decomp.Grid)
    grid._arrays, grid._pencils, grid._runtime = np, pencils, SimpleNamespace(my_pe=lambda: 0, device=0)
    x, y = (grid._pencil(axis, np.zeros(24), decomp.NONE, decomp.NONE) for axis in "xy")
    other = grid._pencil("z", np.zeros(24, "float32"), decomp.NONE, decomp.NONE)
    for arguments in ((x, x.whole), (y, other), (y, "w"), (None, y), (x.whole, 3)):
        with pytest.raises(errors.ArgumentError):
            grid.transpose(*arguments, stream=7)
    with pytest.raises(errors.ArgumentError):
        grid.halo(y, periodic=(True, False), stream=8)
    with pytest.raises(errors.ArgumentError):
        grid.halo(y.whole)
    axes = [(0, None), (1, 2), (1, None), (None, 1), (None, None)]
    assert told == [(False, pair, 7) for pair in axes] + [(True, (1, None), 8), (True, (None, None), None)]
