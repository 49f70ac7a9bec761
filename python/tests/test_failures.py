"""Bad input, lost peers, interrupts."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import PROGRAMS, finish, free_port, launcher, mpirun, run, start
from test_operations import WAYS

import symrail


@pytest.mark.parametrize("way", WAYS)
def test_bad_input_is_named_and_the_job_goes_on(way: str) -> None:
    assert run("misuse.py", options=WAYS[way]) == "well\nwell\n"


@pytest.mark.parametrize("how", ["barrier", "wait", "allocate", "put", "receive", "reduce"])
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
    if how in ("receive", "reduce"):
        assert first.stdout.startswith("PeerLostError"), first
    # Less than the default of SYMRAIL_TIMEOUT_S.
    assert time.monotonic() - begun < 55


def test_missing_pes_are_named_by_a_barrier() -> None:
    code = (
        "import os, symrail; symrail.init(); me = symrail.my_pe(); word = symrail.array(1, 'uint64')\n"
        "if me < 2:\n"
        "    try: symrail.barrier_all(timeout=4 + 8 * me)\n"
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
        # If the tests run in the background, SIGINT may be ignored.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "symrail.init(uid=uid, rank=me, nranks=2); word = symrail.array(1, 'uint64')\n"
        "if me: sys.stdin.read()\n"
        "else:\n"
        "    try:\n"
        "        print('waits', flush=True)\n"
        f"        {what}\n"
        "    except KeyboardInterrupt: print('interrupted', flush=True)\n"
        "import os; os._exit(0)"
    )
    uid = symrail.get_unique_id().hex()
    pes = [start([sys.executable, "-c", code, uid, str(pe)], stdin=True) for pe in range(2)]
    assert pes[0].stdout is not None and pes[0].stdout.readline() == "waits\n"
    # The signal raises KeyboardInterrupt anywhere after that line; the test is about the wait.
    time.sleep(0.3)
    pes[0].send_signal(signal.SIGINT)
    first, _ = finish(pes)
    assert first.stdout == "interrupted\n", first


# A process manager's library that does not answer in one of its calls.
DEAF = """
#include <unistd.h>
#include <string.h>
#include <stdlib.h>
#include <stdio.h>
typedef int (*any)();
static void wait_in(const char* call) {
    if (strcmp(getenv("DEAF"), call) != 0) return;
    puts("waits");
    fflush(stdout);
    for (;;) pause();
}
int PMIx_Init(void* me, void* infos, size_t n) { wait_in("init"); return 0; }
int PMIx_Get(const void* p, const char* key, const void* infos, size_t n, void** value) { wait_in("get"); return -1; }
int PMIx_Finalize(void* infos, size_t n) { return 0; }
int PMIx_Abort(int code, const char* why, void* p, size_t n) { return 0; }
int PMIx_Put(int scope, const char* key, void* value) { return 0; }
int PMIx_Commit(void) { return 0; }
int PMIx_Fence_nb(void* p, size_t n, void* infos, size_t m, any done, void* context) { return -1; }
const char* PMIx_Error_string(int status) { return "an error"; }
const char* PMIx_Get_version(void) { return "0"; }
"""


@pytest.mark.parametrize("call", ["init", "get"])
def test_ctrl_c_ends_a_wait_for_a_process_manager_that_does_not_answer(call: str, tmp_path: Path) -> None:
    compiler = shutil.which("cc")
    if not compiler:
        pytest.skip("there is no C compiler")
    (tmp_path / "pmix.c").write_text(DEAF)
    library = str(tmp_path / "libpmix.so.2")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, str(tmp_path / "pmix.c")], check=True)
    code = (
        "import os, signal, symrail; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "try: symrail.init()\n"
        "except KeyboardInterrupt: print('interrupted', flush=True)\n"
        "os._exit(0)"
    )
    settings = {"LD_LIBRARY_PATH": str(tmp_path), "PMIX_RANK": "0", "PMIX_NAMESPACE": "job", "DEAF": call}
    pe = start([sys.executable, "-c", code], **settings)
    assert pe.stdout is not None and pe.stdout.readline() == "waits\n"
    pe.send_signal(signal.SIGINT)
    (ended,) = finish([pe])
    assert ended.stdout == "interrupted\n", ended


def interrupt_first(pes: list[subprocess.Popen[str]]) -> None:
    """Interrupts the first of two PEs, which has to end by that, in its wait for the other one."""
    # The signal raises KeyboardInterrupt anywhere behind the line that the PE has written; the test is about the wait.
    time.sleep(0.5)
    pes[0].send_signal(signal.SIGINT)
    (first,) = finish(pes[:1])
    pes[1].kill()
    finish(pes[1:])
    assert first.stdout == "interrupted\n", first


@pytest.mark.parametrize("call", ["recv(large, 1)", "send(large, 1)", "all_reduce(large)"])
def test_ctrl_c_ends_a_collective_of_which_others_do_not_take_part(call: str) -> None:
    code = (
        "import os, signal, sys, symrail, symrail.collectives\n"
        "uid, me = bytes.fromhex(sys.argv[1]), int(sys.argv[2])\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "symrail.init(uid=uid, rank=me, nranks=2, heap_bytes=64 << 20)\n"
        "large = symrail.array(1 << 20, 'float64')\n"
        "communicator = symrail.collectives.Communicator(compare=False)\n"
        "communicator.all_reduce(large)\n"
        "try:\n"
        "    if me: sys.stdin.readline()\n"
        f"    else: print('waits', flush=True); communicator.{call}\n"
        "except KeyboardInterrupt: print('interrupted', flush=True)\n"
        "os._exit(0)"
    )
    uid = symrail.get_unique_id().hex()
    pes = [start([sys.executable, "-c", code, uid, str(pe)], stdin=True, SYMRAIL_TIMEOUT_S="600") for pe in range(2)]
    assert pes[0].stdout is not None and pes[0].stdout.readline() == "waits\n"
    interrupt_first(pes)


def stop(process: subprocess.Popen[str]) -> None:
    """Stops a process, and returns when all of its threads have stopped."""
    process.send_signal(signal.SIGSTOP)
    threads = Path(f"/proc/{process.pid}/task")
    while any((thread / "stat").read_text().rpartition(")")[2].split()[0] != "T" for thread in threads.iterdir()):
        time.sleep(0.01)


@pytest.mark.parametrize(
    "what",
    [
        "symrail.put(large, 1.0, 1)",
        "symrail.get(np.empty(3), large[:3], 1)",
        "symrail.put(large[:1], 1.0, 1); symrail.quiet()",
        "symrail.atomic_fetch_add(word, 1, 1)",
    ],
)
def test_ctrl_c_ends_a_wait_for_a_pe_that_does_not_answer(what: str) -> None:
    code = (
        "import numpy as np, os, signal, sys, symrail; uid, me = bytes.fromhex(sys.argv[1]), int(sys.argv[2])\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "symrail.init(uid=uid, rank=me, nranks=2, heap_bytes=36 << 20)\n"
        "large, word = symrail.array(1 << 22, 'float64'), symrail.array(1, 'uint64')\n"
        "try:\n"
        "    print('ready', flush=True); sys.stdin.readline(); print('waits', flush=True)\n"
        f"    {what}\n"
        "except KeyboardInterrupt: print('interrupted', flush=True)\n"
        "os._exit(0)"
    )
    uid = symrail.get_unique_id().hex()
    settings = {"SYMRAIL_DISABLE_P2P": "1"}
    pes = [start([sys.executable, "-c", code, uid, str(pe)], stdin=True, **settings) for pe in range(2)]
    for pe in pes:
        assert pe.stdout is not None and pe.stdout.readline() == "ready\n"
    stop(pes[1])
    assert pes[0].stdin is not None
    pes[0].stdin.write("\n")
    pes[0].stdin.flush()
    assert pes[0].stdout is not None and pes[0].stdout.readline() == "waits\n"
    interrupt_first(pes)


# The handler raises in the middle of the wait for the missing PE.
JOINS = (
    "import signal, sys, symrail\n"
    "class Alarm(Exception): pass\n"
    "def ring(*_): raise Alarm\n"
    "signal.signal(signal.SIGALRM, ring)\n"
    "try:\n"
    "    signal.setitimer(signal.ITIMER_REAL, 1)\n"
    "    symrail.init(%s)\n"
    "except Alarm: print('interrupted', flush=True)\n"
    "import os; os._exit(0)"
)


def test_a_signal_ends_joining_by_an_id() -> None:
    uid = symrail.get_unique_id().hex()
    code = JOINS % f"uid=bytes.fromhex('{uid}'), rank=0, nranks=2"
    (ended,) = finish([start([sys.executable, "-c", code])])
    assert ended.stdout == "interrupted\n", ended


def test_a_signal_ends_joining_by_torchruns_environment() -> None:
    settings = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    pes = [start([sys.executable, "-c", JOINS % ""], RANK=rank, **settings) for rank in ("0",)]
    pes += [start([sys.executable, "-c", JOINS % ""], RANK="1", **{**settings, "MASTER_PORT": str(free_port())})]
    assert [ended.stdout for ended in finish(pes)] == ["interrupted\n"] * 2


@pytest.mark.parametrize("starter", ["symrail run", "mpirun"])
def test_a_signal_ends_joining_by_a_launcher(starter: str, tmp_path: Path) -> None:
    # PE 1 never joins, and ends when PE 0 has been interrupted.
    done = tmp_path / "done"
    code = (
        "import os, pathlib, time\n"
        f"done = pathlib.Path({str(done)!r})\n"
        "if os.environ.get('PMIX_RANK', os.environ.get('SYMRAIL_LAUNCHER_PE')) == '1':\n"
        "    while not done.exists(): time.sleep(0.05)\n"
        "    os._exit(0)\n" + JOINS.replace("print(", "done.touch(); print(") % ""
    )
    command = [launcher(), "run", "-n", "2", "--"] if starter == "symrail run" else mpirun(2)
    (ended,) = finish([start([*command, sys.executable, "-c", code])])
    assert "interrupted" in ended.stdout, ended
