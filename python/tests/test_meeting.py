"""How the ranks of a group meet in the back end of PyTorch's symmetric memory, without PyTorch."""

import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import PROGRAMS

HEADERS = Path(__file__).parent.parent / "symrail" / "torch"


def test_ranks_get_the_words_of_their_own_meeting(tmp_path: Path) -> None:
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    program = tmp_path / "meeting"
    flags = ["-std=c++20", "-O1", "-pthread", "-Wall", "-Wextra", "-Werror", f"-I{HEADERS}"]
    subprocess.run([compiler, *flags, str(PROGRAMS / "meeting.cpp"), "-o", str(program)], check=True)
    ended = subprocess.run([program], capture_output=True, text=True, timeout=300, check=False)
    assert ended.stdout == "well\n", ended.stdout + ended.stderr
