"""Bad input, lost peers, interrupts."""

from __future__ import annotations

import signal
import sys
import time

import pytest
from conftest import PROGRAMS, finish, launcher, run, start
from test_operations import WAYS

import symrail


@pytest.mark.parametrize("way", WAYS)
def test_bad_input_is_named_and_the_job_goes_on(way: str) -> None:
    assert run("misuse.py", options=WAYS[way]) == "well\nwell\n"


@pytest.mark.parametrize("how", ["barrier", "wait", "allocate", "put"])
def test_a_killed_peer_is_named(how: str) -> None:
    """Joined by a unique id: `symrail run` would end the others."""
    code = (
        "import sys, symrail, runpy; real = symrail.init; uid, me = bytes.fromhex(sys.argv.pop(1)), int(sys.argv.pop(1))\n"
        "symrail.init = lambda: real(uid=uid, rank=me, nranks=2)\n"
        f"runpy.run_path({str(PROGRAMS / 'killed.py')!r})"
    )
    uid, settings = symrail.get_unique_id().hex(), {"SYMRAIL_TIMEOUT_S": "5"}
    if how == "put":
        settings["SYMRAIL_DISABLE_P2P"] = "1"  # a dead PE's mapped memory can still be written
    begun = time.monotonic()
    pes = [start([sys.executable, "-c", code, uid, str(pe), how], **settings) for pe in range(2)]
    first, second = finish(pes)
    assert second.returncode == -signal.SIGKILL
    assert first.stdout.split()[1:] == ["1", "True"], first
    assert time.monotonic() - begun < 40


def test_missing_pes_are_named_by_a_barrier() -> None:
    code = (
        "import os, symrail; symrail.init(); me = symrail.my_pe(); word = symrail.array(1, 'uint64')\n"
        "if me < 2:\n"
        "    try: symrail.barrier_all(timeout=2 + 2 * me)\n"
        "    except symrail.errors.TimeoutError as error: print(f'{me}: {error.pes}\\n', end='', flush=True)\n"
        "if me == 1:\n"
        "    for pe in (0, 2): symrail.signal_op(word, 1, 'set', pe)\n"
        "    symrail.quiet()\n"
        "else: symrail.signal_wait(word, 1)\n"
        "os._exit(0)"
    )
    (ended,) = finish([start([launcher(), "run", "-n", "3", "--", sys.executable, "-c", code])])
    # PE 0 has given up when PE 1 does.
    assert sorted(ended.stdout.splitlines()) == ["0: (2,)", "1: (0, 2)"], ended


@pytest.mark.parametrize("what", ["symrail.signal_wait(word, 1)", "symrail.barrier_all()", "symrail.array(3)"])
def test_ctrl_c_ends_a_wait(what: str) -> None:
    code = (
        "import signal, sys, symrail, time; uid, me = bytes.fromhex(sys.argv[1]), int(sys.argv[2])\n"
        # Whoever starts the tests in the background may have it ignored.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "symrail.init(uid=uid, rank=me, nranks=2); word = symrail.array(1, 'uint64')\n"
        "if me: sys.stdin.read()\n"
        "else:\n"
        "    print('waits', flush=True)\n"
        f"    try: {what}\n"
        "    except KeyboardInterrupt: print('interrupted', flush=True)\n"
        "import os; os._exit(0)"
    )
    uid = symrail.get_unique_id().hex()
    pes = [start([sys.executable, "-c", code, uid, str(pe)], stdin=True) for pe in range(2)]
    assert pes[0].stdout is not None and pes[0].stdout.readline() == "waits\n"
    # Wherever it arrives, from the line after that on, it raises KeyboardInterrupt; within the wait is what is tested.
    time.sleep(0.3)
    pes[0].send_signal(signal.SIGINT)
    first, _ = finish(pes)
    assert first.stdout == "interrupted\n", first
