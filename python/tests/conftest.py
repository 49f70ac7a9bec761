"""Jobs for tests: programs in `programs`, started as users start them, each within its time limit."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parent / "programs"
# Only programs that hang reach it.
LIMIT_S = 400


def environment(**settings: str) -> dict[str, str]:
    """This process's environment without users' settings, and with these."""
    left_out = ("SYMRAIL_", "RANK", "WORLD_SIZE", "MASTER_", "PMIX_", "OMPI_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    return {**kept, **settings}


def launcher() -> str:
    """The program `symrail`."""
    found = os.environ.get("SYMRAIL_TEST_PROGRAM") or shutil.which("symrail")
    if not found:
        pytest.skip("the program symrail is not there")
    return found


def finish(processes: list[subprocess.Popen[str]]) -> list[subprocess.CompletedProcess[str]]:
    """Waits for processes, within the time limit, and leaves none behind."""
    ended = []
    try:
        for process in processes:
            out, error = process.communicate(timeout=LIMIT_S)
            ended.append(subprocess.CompletedProcess(process.args, process.returncode, out, error))
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return ended


def start(command: list[str], *, stdin: bool = False, **settings: str) -> subprocess.Popen[str]:
    """Starts a process whose output is kept; its standard input stays open until it has ended, or it has none."""
    pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
    return subprocess.Popen(
        command, stdin=pipe if stdin else nothing, stdout=pipe, stderr=pipe, text=True, env=environment(**settings)
    )


def run(program: str, *args: str, pes: int = 2, options: tuple[str, ...] = (), **settings: str) -> str:
    """Runs a program by `symrail run` and returns its output; it must succeed."""
    command = [launcher(), "run", "-n", str(pes), *options, "--", sys.executable, str(PROGRAMS / program), *args]
    (ended,) = finish([start(command, **settings)])
    assert ended.returncode == 0, f"exit code {ended.returncode}\n{ended.stdout}\n{ended.stderr}"
    return ended.stdout


def free_port() -> int:
    """A port of the loopback interface that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def mpirun(pes: int) -> list[str]:
    """The command with which mpirun starts `pes` PEs."""
    found = shutil.which("mpirun")
    if not found:
        pytest.skip("there is no mpirun")
    as_root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    return [found, "--oversubscribe", *as_root, "-n", str(pes)]


def python_with_torch(needs: str = "") -> str:
    """A Python that has torch, and in which the code `needs` succeeds: this one, or the system's."""
    for python in (sys.executable, "/usr/bin/python3"):
        tried = [python, "-c", f"import torch, numpy\n{needs}"]
        if Path(python).exists() and subprocess.run(tried, capture_output=True).returncode == 0:
            return python
    pytest.skip(f"there is no torch with {needs}" if needs else "there is no torch")
