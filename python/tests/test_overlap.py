"""symrail.overlap: products against NumPy, layers against one process, and refusals."""

from __future__ import annotations

import re
import signal
import sys
from pathlib import Path

import pytest
from conftest import PROGRAMS, finish, launcher, python_with_torch, run, start

import symrail

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


def test_what_is_refused_on_gpus() -> None:
    assert run("overlap_refused.py").count("was told") == 2


@pytest.mark.parametrize("how", ["killed", "interrupted"])
def test_who_gives_up_in_a_round_tells_the_others(how: str) -> None:
    """Joined by a unique id: `symrail run` would end the others."""
    uid, program = symrail.get_unique_id().hex(), str(PROGRAMS / "overlap_given_up.py")
    settings = {"SYMRAIL_TIMEOUT_S": "30" if how == "interrupted" else "20"}
    pes = [start([sys.executable, program, uid, str(pe), how], **settings) for pe in range(3)]
    if how == "killed":
        first, second, third = finish(pes)
        assert third.returncode == -signal.SIGKILL, third
        # The PE that notices first tells the other; the errors of both name the dead PE.
        assert [ended.stdout.split()[:2] for ended in (first, second)] == [["PeerLostError", "2"]] * 2, (first, second)
        return
    assert pes[2].stdout is not None and pes[2].stdout.readline() == "multiplies\n"
    assert pes[0].stdout is not None and pes[0].stdout.readline() == "waits\n"
    pes[0].send_signal(signal.SIGINT)
    # The third PE already has all data that it needs of the others.
    first, second, _ = finish(pes)
    assert [first.stdout, second.stdout] == ["interrupted\n", "StateError 0 told\n"], (first, second)


def test_example(tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n(# layers\.py.*?)```", PAGE.read_text(), re.DOTALL)
    program = tmp_path / "layers.py"
    program.write_text(example)
    (ended,) = finish([start([launcher(), "run", "-n", "4", "--", python_with_torch(), str(program)])])
    assert ended.returncode == 0, ended
    assert len(re.findall(r"PE \d: its part of the loss is \d", ended.stdout)) == 4, ended
