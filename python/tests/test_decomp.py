"""symrail.decomp: transposes, halos and an FFT against NumPy."""

from __future__ import annotations

import pytest
from conftest import run


@pytest.mark.parametrize(("pes", "options"), [(1, ()), (4, ()), (3, ("--hosts", "2", "--rails", "1"))])
def test_pencils(pes: int, options: tuple[str, ...]) -> None:
    assert run("pencils.py", pes=pes, options=options) == "as NumPy has it\n"
