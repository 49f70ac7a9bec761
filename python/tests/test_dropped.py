"""Objects with memory on all PEs: dropped without being freed, and freed or remade while a PE is late."""

from __future__ import annotations

import sys

import pytest
from conftest import LIMIT_S, PROGRAMS, run, start

import symrail

WAYS = {"mapped": (), "two hosts over two rails": ("--hosts", "2", "--rails", "2")}


@pytest.mark.parametrize(
    ("pes", "laps", "way"), [(1, 300, "mapped"), (3, 150, "mapped"), (2, 60, "two hosts over two rails")]
)
def test_dropped_objects_give_their_memory_back(pes: int, laps: int, way: str) -> None:
    assert run("dropped.py", str(laps), pes=pes, options=WAYS[way]).count("is well") == pes


@pytest.mark.parametrize("what", ["rows", "slots", "destroy", "connect", "buffer", "group", "plan", "grid", "transpose"])
def test_a_late_pe_is_named_within_the_callers_time(what: str) -> None:
    """Joined by a unique id: `symrail run` would end the others. SYMRAIL_TIMEOUT_S is far beyond the caller's limit."""
    uid, program = symrail.get_unique_id().hex(), str(PROGRAMS / "late_remake.py")
    pes = [
        start([sys.executable, program, uid, str(pe), what], stdin=True, SYMRAIL_TIMEOUT_S="150") for pe in range(2)
    ]
    try:
        out, error = pes[1].communicate(timeout=LIMIT_S)
        assert out.startswith("TimeoutError [0] after "), (out, error)
        assert float(out.split()[3]) < 100, out
        assert what not in ("rows", "slots") or "StateError: these buffers were given back" in out, out
        assert pes[0].poll() is None
        pes[0].communicate("\n", timeout=LIMIT_S)
    finally:
        for process in pes:
            process.kill()
            process.wait()


@pytest.mark.parametrize("pes", [1, 3])
def test_memory_is_not_made_while_a_graph_is_captured(pes: int) -> None:
    assert run("captured.py", pes=pes).count("is well") == pes
