"""symrail.collectives on the host, and the example of docs/collectives.md."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from conftest import PROGRAMS, finish, launcher, python_with_torch, run, start

ROOT = Path(__file__).parents[2]
PLAN = ROOT / "tests" / "plans" / "copies.json"
HOSTS = ("--hosts", "2", "--rails", "2")


@pytest.mark.parametrize(("pes", "options"), [(1, ()), (2, ()), (4, ()), (3, HOSTS)])
def test_collectives(pes: int, options: tuple[str, ...]) -> None:
    found = run("device_collectives.py", str(PLAN), pes=pes, options=options, SYMRAIL_TIMEOUT_S="20")
    assert found == "as NumPy has it\n"


@pytest.mark.parametrize("options", [(), HOSTS])
def test_what_one_rank_is_refused_is_known_to_all(options: tuple[str, ...]) -> None:
    out = run("device_collectives_refused.py", str(PLAN), pes=2, options=options, SYMRAIL_TIMEOUT_S="60")
    assert sorted(out.splitlines()) == ["PE 0 goes on", "PE 1 goes on"], out


def test_who_does_not_come_is_named() -> None:
    out = run("device_collectives_late.py", pes=3, SYMRAIL_TIMEOUT_S="6")
    told = [f"PE {pe} is told{again}" for pe in (0, 1) for again in ("", " again")]
    assert sorted(out.splitlines()) == told, out


def test_tensors_of_torch() -> None:
    program = str(PROGRAMS / "device_collectives_torch.py")
    (ended,) = finish([start([launcher(), "run", "-n", "2", "--", python_with_torch("torch.float8_e4m3fn"), program])])
    assert ended.returncode == 0, ended
    assert ended.stdout.count("tensors are right") == 2, ended


def test_example(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "collectives.md").read_text()
    (example,) = re.findall(r"```python\n(# mean\.py.*?)```", page, re.DOTALL)
    program = tmp_path / "mean.py"
    program.write_text(example)
    (ended,) = finish([start([launcher(), "run", "-n", "4", "--", sys.executable, str(program)])])
    assert ended.returncode == 0, ended
    lines = sorted(ended.stdout.splitlines())
    assert lines[:-1] == [f"PE {pe} of 4: mean 1.5, from the rank before {(pe - 1) % 4}" for pe in range(4)], lines
    assert "one_shot" in lines[-1], lines


def test_the_check_for_gpus_says_that_there_is_none() -> None:
    program = str(PROGRAMS.parent / "gpu" / "device_collectives.py")
    (ended,) = finish([start([launcher(), "run", "-n", "1", "--", sys.executable, program])])
    if "on GPUs: ok" not in ended.stdout:
        assert ended.returncode == 0 and "SKIPPED" in ended.stdout, ended
