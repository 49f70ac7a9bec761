"""Operations of several PEs, mapped and over rails."""

from __future__ import annotations

import pytest
from conftest import run

WAYS = {"mapped": (), "two hosts over two rails": ("--hosts", "2", "--rails", "2")}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("pes", [2, 4])
def test_every_operation_and_dtype_against_numpy(pes: int, way: str) -> None:
    assert run("operations.py", pes=pes, options=WAYS[way]) == "well\n" * pes


@pytest.mark.parametrize(("way", "pes"), [("mapped", 4), ("two hosts over two rails", 2)])
def test_arrays_dropped_in_any_order(pes: int, way: str) -> None:
    deletes = "10000" if way == "mapped" else "1000"
    assert len(set(run("garbage.py", deletes, pes=pes, options=WAYS[way]).splitlines())) == 1


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("pes", [2, 4])
def test_every_collective_against_numpy(pes: int, way: str) -> None:
    assert run("collectives.py", pes=pes, options=WAYS[way]) == "well\n" * pes
