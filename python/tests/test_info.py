"""The contents of `info`, and the requirements of `init`."""

from __future__ import annotations

import json
import sys

import pytest
import symrail
from conftest import finish, launcher, start

MISSING = {"SYMRAIL_LIBFABRIC_SO": "/nonexistent/libfabric.so", "SYMRAIL_IBV_SO": "/nonexistent/libibverbs.so"}
TWO_HOSTS = ("--hosts", "2", "--rails", "2")


def said(code: str, options: tuple[str, ...] = (), pes: int = 2, **settings: str) -> list[str]:
    """The output of PEs that run this code, a line each."""
    command = [launcher(), "run", "-n", str(pes), *options, "--", sys.executable, "-c", code]
    (ended,) = finish([start(command, **settings)])
    assert ended.returncode == 0, ended
    return sorted(ended.stdout.splitlines())


def jobs(options: tuple[str, ...] = (), **settings: str) -> list[dict[str, object]]:
    """The job's part of `info` on each of two PEs."""
    code = "import json, symrail\nwith symrail.init(): print(json.dumps(symrail.info()['job']) + '\\n', end='', flush=True)"
    found = [json.loads(line) for line in said(code, options, **settings)]
    return sorted(found, key=lambda job: job["pe"])


def paths(job: dict[str, object]) -> list[tuple[str, bool]]:
    return [(to["path"], to["staged"]) for to in job["paths"]]  # type: ignore[attr-defined]


def test_before_init_it_tells_of_libraries() -> None:
    found = symrail.info()
    assert found["job"] is None and found["version"] == symrail.__version__
    assert list(found["libraries"]) == ["libfabric", "libibverbs", "CUDA driver", "NVRTC"]
    for name, library in found["libraries"].items():
        if library["missing"]:
            assert library["missing"]["reason"] and library["missing"]["remedy"] and library["purpose"]
        else:
            assert library["path"].startswith("/") and library["version"], library
        assert f"\n  {name}" in str(found)
    assert json.loads(json.dumps(found)) == found


def test_paths_of_mapped_pes() -> None:
    first, second = jobs(SYMRAIL_HEAP_SIZE="32M")
    assert (paths(first), paths(second)) == ([("self", False), ("mapped", False)], [("mapped", False), ("self", False)])
    assert first["heap_kind"] == "host" and first["heap_bytes"] >= 32 << 20  # type: ignore[operator]


def test_paths_of_two_hosts() -> None:
    first, _ = jobs(TWO_HOSTS)
    assert paths(first) == [("self", False), ("wire", False)]
    assert "on another host" in first["paths"][1]["why"]  # type: ignore[index]
    rails = first["rails"]
    assert [rail["name"] for rail in rails] == ["127.0.0.2", "127.0.0.3"]  # type: ignore[attr-defined]
    for rail in rails:  # type: ignore[attr-defined]
        assert "tcp" in rail["provider"] and not rail["rdma"] and "127.0.0." in rail["nic"], rail


def test_paths_of_staged_heaps() -> None:
    first, _ = jobs(TWO_HOSTS, SYMRAIL_HEAP_KIND="guarded")
    assert paths(first)[1] == ("wire", True) and any("staged" in why for why in first["why"])  # type: ignore[attr-defined]


def test_a_job_of_one_host_without_any_library() -> None:
    code = (
        "import symrail\n"
        "with symrail.init():\n"
        "    me = symrail.my_pe(); box = symrail.array(1, 'int32'); symrail.put(box, me, 1 - me); symrail.barrier_all()\n"
        "    found = symrail.info()\n"
        "    missing = [name for name, library in found['libraries'].items() if library['missing']]\n"
        "    print(f\"{me} {box[0]} {missing[:2]} {found['job']['rails']} {'no wire' in str(found)}\\n\", end='', flush=True)"
    )
    assert said(code, **MISSING) == [f"{me} {1 - me} ['libfabric', 'libibverbs'] [] True" for me in range(2)]


@pytest.mark.parametrize(
    ("require", "options", "settings", "text"),
    [
        ("mapped", TWO_HOSTS, {}, "over the wire: on another host"),
        ("rdma", TWO_HOSTS, {}, "the target's CPU moves the bytes"),
        ("wire", (), MISSING, "libfabric"),
        ("gpudirect", (), {}, "SYMRAIL_HEAP_KIND=device"),
        ("mapped", ("--rails", "1"), {"SYMRAIL_DISABLE_P2P": "1"}, "SYMRAIL_DISABLE_P2P"),
    ],
)
def test_what_is_required_and_not_there_is_an_error_on_all_pes(
    require: str, options: tuple[str, ...], settings: dict[str, str], text: str
) -> None:
    code = (
        "import symrail\n"
        f"try: symrail.init(require={require!r})\n"
        "except symrail.errors.RequirementError as error: print(f'{error.pes} {error}\\n', end='', flush=True)"
    )
    lines = said(code, options, **settings)
    assert len(lines) == 2 and all(line.startswith("(0, 1) ") and text in line for line in lines), lines


def test_what_one_pe_requires_ends_all() -> None:
    code = (
        "import os, symrail\n"
        "require = ['wire', 'mapped'] if os.environ['SYMRAIL_LAUNCHER_PE'] == '1' else []\n"
        "try: symrail.init(require=require)\n"
        "except symrail.errors.RequirementError as error: print(f'{error.pes} {error}\\n', end='', flush=True)"
    )
    first, second = said(code, TWO_HOSTS)
    assert first.startswith("(1,) PE 1 does not have") and second.startswith("(1,) PE 1 reaches PE 0 over"), (first, second)


def test_what_is_required_and_there_changes_nothing() -> None:
    code = "import symrail\nwith symrail.init(require={'mapped', 'wire', 'rdma'}): print('well\\n', end='', flush=True)"
    assert said(code) == ["well", "well"]


def test_an_unknown_requirement_is_refused() -> None:
    with pytest.raises(symrail.errors.ArgumentError, match="mapped, wire, rdma, gpudirect"):
        symrail.init(uid=symrail.get_unique_id(), rank=0, nranks=1, require="fast")
    assert not symrail.is_initialized()
