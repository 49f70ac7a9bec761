"""Reductions of teams; collectives that differ; collectives with a limit."""

from __future__ import annotations

import pytest
from conftest import run
from test_operations import WAYS


@pytest.mark.parametrize(("way", "pes"), [("mapped", 2), ("mapped", 3), ("two hosts over two rails", 4)])
def test_nan_16_bits_bool_and_averages(way: str, pes: int) -> None:
    assert run("reductions.py", "numbers", pes=pes, options=WAYS[way]) == "well\n" * pes


@pytest.mark.parametrize("call", ["reduce", "broadcast", "alltoall"])
def test_calls_of_other_dtypes_are_found(call: str) -> None:
    assert run("reductions.py", "differ", call, SYMRAIL_CHECK_COLLECTIVES="1") == "well\n" * 2


@pytest.mark.parametrize("call", ["array", "reclaim", "split", "destroy", "agree"])
def test_a_collective_ends_when_the_callers_time_is_up(call: str) -> None:
    assert run("reductions.py", "late", call) == "well\n" * 2
