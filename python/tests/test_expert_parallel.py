"""symrail.ep: dispatch and combine against NumPy, and the example of docs/ep.md as it stands."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import PROGRAMS, environment, finish, launcher, run, start

PAGE = Path(__file__).parents[2] / "docs" / "ep.md"
HOSTS = ("--hosts", "2", "--rails", "2")


@pytest.mark.parametrize(
    "what, pes, options",
    [
        ("high", 2, ()),
        ("high", 3, ()),
        ("high", 4, HOSTS),
        ("low", 2, ()),
        ("low", 3, ()),
        ("low", 4, HOSTS),
        ("refuse", 3, ()),
        ("refuse", 2, HOSTS),
        ("shrink", 3, ()),
        ("shrink", 4, HOSTS),
    ],
)
def test_equals_numpy(what: str, pes: int, options: tuple[str, ...]) -> None:
    out = run("expert_parallel.py", what, pes=pes, options=options)
    assert all(f"PE {pe} is well" in out for pe in range(pes))


def python_with_torch() -> str:
    """A Python that has torch: this one, or the system's."""
    for python in (sys.executable, "/usr/bin/python3"):
        tried = [python, "-c", "import torch, numpy"]
        if Path(python).exists() and subprocess.run(tried, capture_output=True).returncode == 0:
            return python
    pytest.skip("there is no torch")


@pytest.mark.parametrize("options", [(), HOSTS])
def test_takes_tensors(options: tuple[str, ...]) -> None:
    command = [launcher(), "run", "-n", "4", *options, "--", python_with_torch()]
    (ended,) = finish([start([*command, str(PROGRAMS / "expert_parallel_torch.py")])])
    assert ended.returncode == 0, ended
    assert ended.stdout.count("is well") == 4, ended


def test_example(tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n(# experts\.py.*?)```", PAGE.read_text(), re.DOTALL)
    program = tmp_path / "experts.py"
    program.write_text(example)
    (ended,) = finish([start([launcher(), "run", "-n", "4", *HOSTS, "--", sys.executable, str(program)])])
    assert ended.returncode == 0, ended
    assert len(re.findall(r"^PE \d: \d+ tokens came$", ended.stdout, re.MULTILINE)) == 4, ended


def test_sizes_are_printed() -> None:
    command = [sys.executable, "-m", "symrail.ep", "--ranks", "8", "--tokens", "128", "--experts", "256"]
    told = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=60)
    assert told.returncode == 0, told
    high, low, both = (int(line.split()[-1].replace(",", "")) for line in told.stdout.splitlines())
    # Two slots at both ends for each of 8 ranks: 128 tokens of bfloat16, and 16 rows for each that come back.
    assert 4 * 8 * (128 + 2048) * 14336 < low < 1.1 * 4 * 8 * (128 + 2048) * 14336
    assert 4 * 8 * 256 * 14336 < high < 1.1 * 4 * 8 * 256 * 14336 and both > high + low
