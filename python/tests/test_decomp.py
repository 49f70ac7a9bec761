"""symrail.decomp: transposes, halos and an FFT against NumPy; the example that solves Poisson's equation."""

from __future__ import annotations

import math
import re
import sys
from pathlib import Path

import pytest
from conftest import finish, launcher, run, start


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
