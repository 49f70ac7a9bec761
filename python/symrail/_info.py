"""Libraries and paths between PEs: `symrail.info()`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import groupby
from typing import Any

import symrail

from . import _symrail


class Info(dict[str, Any]):
    """A dict that prints as a table."""

    def __str__(self) -> str:
        return "\n".join(_lines(self))

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text("Info(...)" if cycle else str(self))


def info() -> Info:
    """The libraries, and in a job the paths to other PEs, as a dict that prints as a table. Local; also before `init`.

    `version`; `libraries`: by name, the loaded `path` and `version`, or `missing` with `reason` and `remedy`, and its
    `purpose`; `job`: None before `init` and after `finalize`, otherwise `pe`, `n_pes`, `heap_kind`, `heap_bytes`
    (including the runtime's own), `proxy_threads`, `rails` (`name`, `provider`, `nic`, and `rdma`: whether a NIC
    instead of a CPU reads and writes the target's memory; `speed`: None, or with the policy `adaptive` the measured
    `bandwidth` in bytes a second and `latency` in ns), `why` (sentences), `paths` (to each PE: `pe`; `path`:
    "self", "mapped" or "wire"; `staged`: whether bytes pass through a buffer in host memory; `why`).

    Raises SettingError. The command `symrail info` shows more of the machine.
    """
    libraries = {library.pop("name"): library for library in json.loads(_symrail.libraries())}
    job = json.loads(symrail.current().description()) if symrail.is_initialized() else None
    return Info(version=symrail.__version__, libraries=libraries, job=job)


def _lines(found: Info) -> Iterator[str]:
    yield f"symrail {found['version']}"
    for name, library in found["libraries"].items():
        missing = library["missing"]
        if missing is None:
            yield f"  {name:<12} {library['version'] or '':<10} {library['path'] or ''}"
        else:
            yield f"  {name:<12} missing: {missing['reason']}"
            yield f"  {'':<12} needed for {library['purpose']}; {missing['remedy']}"
    job = found["job"]
    if job is None:
        yield "not in a job (symrail.init)"
        return
    threads = f", {job['proxy_threads']} proxy thread(s)" if job["rails"] else ""
    yield f"PE {job['pe']} of {job['n_pes']}: heap of {job['heap_bytes'] / 2**20:.0f} MiB, kind {job['heap_kind']}{threads}"
    for rail in job["rails"]:
        speed = rail["speed"]
        measured = f"; {speed['bandwidth'] / 1e6:.0f} MB/s, {speed['latency'] / 1e3:.0f} us" if speed else ""
        yield f"  rail {rail['name']:<15} {rail['provider']}{', RDMA' if rail['rdma'] else ''}; {rail['nic']}{measured}"
    for (path, staged, why), group in groupby(job["paths"], lambda to: (to["path"], to["staged"], to["why"])):
        pes = [to["pe"] for to in group]
        to = f"PE {pes[0]}" if len(pes) == 1 else f"PEs {pes[0]}-{pes[-1]}"
        yield f"  {to:<12} {path}{', staged' if staged else ''}: {why}"
    for reason in job["why"]:
        yield f"  {'why':<12} {reason}"
