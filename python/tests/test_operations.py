"""Operations of several PEs, mapped and over rails."""

from __future__ import annotations

import pytest
from conftest import run

WAYS = {"mapped": (), "two hosts over two rails": ("--hosts", "2", "--rails", "2")}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("pes", [2, 4])
def test_every_operation_and_dtype_against_numpy(pes: int, way: str) -> None:
    assert run("operations.py", pes=pes, options=WAYS[way]) == "well\n" * pes


# As many PEs as cores for the long test: they synchronise for each array.
@pytest.mark.parametrize(
    ("way", "pes", "deletes"), [("mapped", 2, 10000), ("mapped", 4, 1000), ("two hosts over two rails", 2, 1000)]
)
def test_arrays_dropped_in_any_order(way: str, pes: int, deletes: int) -> None:
    assert len(set(run("garbage.py", str(deletes), pes=pes, options=WAYS[way]).splitlines())) == 1


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("pes", [2, 4])
def test_every_collective_against_numpy(pes: int, way: str) -> None:
    assert run("collectives.py", pes=pes, options=WAYS[way]) == "well\n" * pes


@pytest.mark.parametrize("ahead", ["nobody", "all", "team"])
def test_who_is_connected_ahead_is_not_connected_when_first_addressed(ahead: str) -> None:
    assert run("connect.py", ahead, pes=8, options=("--hosts", "8", "--rails", "1")) == "well\n" * 8
