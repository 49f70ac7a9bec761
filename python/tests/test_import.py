"""`import symrail` is quick: it loads nothing that only some calls need."""

from __future__ import annotations

import subprocess
import sys

from conftest import environment

RARE = {"asyncio", "ctypes", "email", "importlib.metadata", "numpy", "torch", "zipfile"}


def test_an_import_loads_nothing_that_only_some_calls_need() -> None:
    code = f"import sys, symrail; print(sorted({RARE} & set(sys.modules)))"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment(), timeout=60)
    assert (told.returncode, told.stdout) == (0, "[]\n"), told
