"""Objects may be dropped in any order, before and after the end of the job."""

from __future__ import annotations

import pytest
from conftest import run


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("end", ["finalize", "exit"])
def test_handles_dropped_in_random_order(seed: int, end: str) -> None:
    assert run("handles.py", str(seed), end, pes=2) == "dropped\n" * 2


def test_handles_dropped_over_the_wire() -> None:
    assert run("handles.py", "7", "finalize", pes=2, options=("--hosts", "2")) == "dropped\n" * 2
