"""Tensors and arrays whose elements are not what is in memory at their address, and those without elements."""

from __future__ import annotations


import pytest
from conftest import PROGRAMS, finish, launcher, python_with_torch, run, start

WAYS = {"mapped": (), "two hosts over two rails": ("--hosts", "2", "--rails", "2")}


def with_torch(program: str, *args: str, options: tuple[str, ...] = (), pes: int = 2) -> str:
    """Runs a program by a Python that has torch; it must succeed."""
    python = python_with_torch("import ml_dtypes")
    command = [launcher(), "run", "-n", str(pes), *options, "--", python, str(PROGRAMS / program), *args]
    (ended,) = finish([start(command)])
    assert ended.returncode == 0, f"exit code {ended.returncode}\n{ended.stdout}\n{ended.stderr}"
    return ended.stdout


@pytest.mark.parametrize("way", WAYS)
def test_tensors_are_sent_as_they_are_seen_or_refused_by_name(way: str) -> None:
    assert with_torch("tensors.py", options=WAYS[way]).count("is well") == 2


@pytest.mark.parametrize("way", WAYS)
def test_arrays_without_elements(way: str) -> None:
    assert run("empty.py", "numpy", pes=3 if way == "mapped" else 2, options=WAYS[way]).count("is well") >= 2


@pytest.mark.parametrize("way", WAYS)
def test_tensors_without_elements(way: str) -> None:
    assert with_torch("empty.py", "torch", options=WAYS[way]).count("is well") == 2
