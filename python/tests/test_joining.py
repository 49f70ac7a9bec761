"""Ways to join a job, and the end of it."""

from __future__ import annotations

import socket
import sys
import threading
import types

import pytest
import symrail
from conftest import PROGRAMS, finish, free_port, launcher, mpirun, run, start

RING = str(PROGRAMS / "ring.py")


def all_pes(n: int) -> list[str]:
    return [f"PE {pe} of {n}" for pe in range(n)]


def test_alone() -> None:
    (ended,) = finish([start([sys.executable, RING])])
    assert (ended.returncode, ended.stdout) == (0, "PE 0 of 1\n"), ended.stderr


@pytest.mark.parametrize("pes", [2, 4])
def test_symrail_run(pes: int) -> None:
    assert sorted(run("ring.py", pes=pes).splitlines()) == all_pes(pes)


def test_two_hosts_over_two_rails() -> None:
    assert sorted(run("ring.py", pes=2, options=("--hosts", "2", "--rails", "2")).splitlines()) == all_pes(2)


def test_environment_of_torchrun() -> None:
    settings = {"WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    pes = [start([sys.executable, RING], RANK=str(pe), **settings) for pe in (2, 0, 1)]
    ended = finish(pes)
    assert sorted(one.stdout.strip() for one in ended) == all_pes(3), [one.stderr for one in ended]


def test_missing_ranks_are_named() -> None:
    settings = {"WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    code = "import symrail\ntry: symrail.init()\nexcept symrail.errors.TimeoutError as error: print(error.pes)"
    pes = [start([sys.executable, "-c", code], RANK=str(pe), SYMRAIL_TIMEOUT_S="10", **settings) for pe in (0, 2)]
    first, _ = finish(pes)
    assert first.stdout == "(1,)\n", first


def of_ranks(size: int, **more: str) -> dict[str, str]:
    return {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), **more}


def nested(case: str) -> tuple[list[str], dict[str, str]]:
    """A command in which one launcher starts another, and the variables around both."""
    run_one, ring = [launcher(), "run", "-n", "1", "--"], [sys.executable, RING]
    by_hand = 'for rank in 0 1; do RANK=$rank "$@" & done; wait'
    if case == "ranks in symrail run":
        settings = " ".join(f"{name}={value}" for name, value in of_ranks(2).items())
        return [*run_one, "bash", "-c", f"export {settings}; {by_hand}", "bash", *ring], {}
    if case == "mpirun in symrail run":
        return [*run_one, *mpirun(2), *ring], {}
    if case == "symrail run in ranks":
        return [launcher(), "run", "-n", "2", "--", *ring], of_ranks(1, RANK="0")
    assert case == "mpirun in ranks"
    return [*mpirun(2), *ring], of_ranks(1, RANK="0")


@pytest.mark.parametrize(
    "case", ["ranks in symrail run", "mpirun in symrail run", "symrail run in ranks", "mpirun in ranks"]
)
def test_the_innermost_launcher_counts(case: str) -> None:
    command, around = nested(case)
    (ended,) = finish([start(command, **around)])
    assert sorted(ended.stdout.splitlines()) == all_pes(2), ended


def test_launchers_of_one_process_must_agree() -> None:
    settings = [f"{name}={value}" for name, value in of_ranks(8, RANK="5").items()]
    in_one = [launcher(), "run", "-n", "2", "--", "env", *settings, sys.executable, RING]
    (ended,) = finish([start(in_one)])
    said = [line for line in ended.stderr.splitlines() if "SettingError" in line]
    assert ended.returncode == 1 and any("of 2, but RANK=5 and WORLD_SIZE=8 are set" in line for line in said), ended


@pytest.mark.parametrize(
    ("variable", "says"),
    [
        ({"MASTER_ADDR": ""}, "RANK=0 and WORLD_SIZE=2 are set, MASTER_ADDR and MASTER_PORT not both"),
        ({"MASTER_PORT": ""}, "RANK=0 and WORLD_SIZE=2 are set, MASTER_ADDR and MASTER_PORT not both"),
        ({"MASTER_PORT": "70000"}, "MASTER_PORT=70000: not accepted; it holds a whole number from 1 to 65535"),
    ],
)
def test_a_place_without_an_address_is_no_job_of_one(variable: dict[str, str], says: str) -> None:
    (ended,) = finish([start([sys.executable, RING], **{**of_ranks(2, RANK="0"), **variable})])
    assert ended.returncode == 1 and says in ended.stderr, ended


def test_an_address_of_ipv6_may_have_brackets() -> None:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("::1 is not an address of this machine")
    settings = of_ranks(2, MASTER_ADDR="[::1]")
    ended = finish([start([sys.executable, RING], RANK=str(pe), **settings) for pe in range(2)])
    assert sorted(one.stdout.strip() for one in ended) == all_pes(2), [one.stderr for one in ended]


class Store:
    """The store of torchrun's agent, for processes that are threads here."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.changed = threading.Condition()
        self.waiting = 0

    def __call__(self, *_: object, **__: object) -> Store:
        return self

    def add(self, key: str, amount: int) -> int:
        with self.changed:
            self.values[key] = str(int(self.values.get(key, b"0")) + amount).encode()
            return int(self.values[key])

    def set(self, key: str, value: str) -> None:
        with self.changed:
            self.values[key] = value.encode()
            self.changed.notify_all()

    def get(self, key: str) -> bytes:
        with self.changed:
            self.waiting += 1
            self.changed.notify_all()
            assert self.changed.wait_for(lambda: key in self.values, timeout=60)
            self.waiting -= 1
            return self.values[key]


def test_each_join_under_torchrun_has_an_id_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    from symrail import _join

    store, found = Store(), []
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace())
    monkeypatch.setitem(sys.modules, "torch.distributed", types.SimpleNamespace(TCPStore=store))
    for _ in range(3):
        came: list[bytes] = []
        # It comes first, while the store has the ids of earlier joins only.
        other = threading.Thread(target=lambda: came.append(_join._of_agent(1, "127.0.0.1", 1)))
        other.start()
        with store.changed:
            assert store.changed.wait_for(lambda: store.waiting or came, timeout=60)
        found.append(_join._of_agent(0, "127.0.0.1", 1))
        other.join()
        assert came == found[-1:]
    assert len(set(found)) == 3


def test_mpirun() -> None:
    (ended,) = finish([start([*mpirun(2), sys.executable, RING])])
    assert sorted(ended.stdout.splitlines()) == all_pes(2), ended.stderr


def test_explicit_id() -> None:
    code = (
        "import sys, symrail, runpy; real = symrail.init\n"
        "symrail.init = lambda: real(uid=bytes.fromhex(sys.argv[1]), rank=int(sys.argv[2]), nranks=2)\n"
        f"runpy.run_path({RING!r})"
    )
    uid = symrail.get_unique_id().hex()
    ended = finish([start([sys.executable, "-c", code, uid, str(pe)]) for pe in range(2)])
    assert sorted(one.stdout.strip() for one in ended) == all_pes(2), [one.stderr for one in ended]


def test_second_init_says_what_there_is_and_finalize_is_idempotent() -> None:
    code = (
        "import symrail; symrail.init()\n"
        "try: symrail.init()\n"
        "except symrail.errors.StateError as error: print(error)\n"
        "symrail.finalize(); symrail.finalize()\n"
        "try: symrail.barrier_all()\n"
        "except symrail.errors.StateError as error: print(error)\n"
        "with symrail.init(): print(symrail.n_pes())"
    )
    (ended,) = finish([start([sys.executable, "-c", code])])
    said = ended.stdout.splitlines()
    assert "PE 0 of a job of 1" in said[0] and "has left" in said[1] and said[2] == "1", ended


def test_a_program_that_ends_well_finalizes_and_one_that_fails_waits_for_nobody() -> None:
    well = "import symrail, sys; symrail.init(); a = symrail.array(4); print(f'{symrail.my_pe()}\\n', end='', flush=True)"
    (ended,) = finish([start([launcher(), "run", "-n", "2", "--", sys.executable, "-c", well])])
    assert (ended.returncode, sorted(ended.stdout.split())) == (0, ["0", "1"]), ended.stderr
    badly = "import symrail, sys; symrail.init(); sys.exit(3 if symrail.my_pe() else 0)"
    (ended,) = finish([start([launcher(), "run", "-n", "2", "--", sys.executable, "-c", badly])])
    assert ended.returncode == 3, ended


def test_a_forked_child_takes_no_part() -> None:
    code = (
        "import os, symrail; symrail.init(); a = symrail.array(2)\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    try: symrail.put(a, 1, 0); symrail.barrier_all()\n"
        "    except symrail.errors.ForkedError as error: print(error.pe, flush=True)\n"
        "    raise SystemExit(0)\n"
        "os.waitpid(child, 0); symrail.barrier_all(); print('parent')"
    )
    (ended,) = finish([start([sys.executable, "-c", code])])
    assert (ended.returncode, ended.stdout) == (0, "0\nparent\n"), ended


def test_a_forked_child_joins_only_where_its_parent_had_not() -> None:
    code = (
        "import os, symrail\n"
        "def in_a_child():\n"
        "    child = os.fork()\n"
        "    if child == 0:\n"
        "        try:\n"
        "            with symrail.init(): print(symrail.array(1).sum(), flush=True)\n"
        "        except symrail.errors.ForkedError as error: print(error.pe, error, flush=True)\n"
        "        os._exit(0)\n"
        "    assert os.waitpid(child, 0)[1] == 0\n"
        "in_a_child(); symrail.init(); in_a_child(); symrail.finalize(); in_a_child()"
    )
    (ended,) = finish([start([sys.executable, "-c", code])])
    said = ended.stdout.splitlines()
    assert ended.returncode == 0 and said[0] == said[2] == "0.0" and said[1].startswith("0 this process was forked"), ended


def test_calls_before_init_are_named_errors() -> None:
    with pytest.raises(symrail.errors.StateError, match="init"):
        symrail.barrier_all()
    with pytest.raises(symrail.errors.StateError):
        symrail.array(3)
