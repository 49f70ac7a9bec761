"""symrail.overlap: products against NumPy, layers against one process, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from conftest import PROGRAMS, finish, launcher, python_with_torch, run, start

PAGE = Path(__file__).parents[2] / "docs" / "overlap.md"
HOSTS = ("--hosts", "2", "--rails", "2")


@pytest.mark.parametrize(("pes", "options"), [(1, ()), (4, ()), (3, HOSTS)])
def test_products(pes: int, options: tuple[str, ...]) -> None:
    assert run("overlap.py", pes=pes, options=options) == "as NumPy has it\n"


@pytest.mark.parametrize(("pes", "options"), [(3, ()), (2, HOSTS)])
def test_layers_train(pes: int, options: tuple[str, ...]) -> None:
    command = [launcher(), "run", "-n", str(pes), *options, "--", python_with_torch()]
    (ended,) = finish([start([*command, str(PROGRAMS / "overlap_torch.py")])])
    assert ended.returncode == 0, ended
    assert ended.stdout.count("trains as one process does") == pes, ended


def test_what_plans_on_gpus_refuse() -> None:
    command = [launcher(), "run", "-n", "3", "--", python_with_torch(), str(PROGRAMS / "overlap_refused.py")]
    (ended,) = finish([start(command)])
    assert ended.returncode == 0, ended
    assert ended.stdout.count("was told") == 3, ended


def test_example(tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n(# layers\.py.*?)```", PAGE.read_text(), re.DOTALL)
    program = tmp_path / "layers.py"
    program.write_text(example)
    (ended,) = finish([start([launcher(), "run", "-n", "4", "--", python_with_torch(), str(program)])])
    assert ended.returncode == 0, ended
    assert len(re.findall(r"PE \d: its part of the loss is \d", ended.stdout)) == 4, ended
