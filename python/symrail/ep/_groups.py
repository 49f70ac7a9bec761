"""The job of a Buffer's group: this process's own job, or for other groups one that the Buffer joins.

A group of some of the job's processes has a job of its own, whose PEs are the group's ranks, with a heap, paths and time
limits of its own. Only the group's members take part in making it, in whatever order they make those of several groups.
"""

from __future__ import annotations

import hashlib
import os
import sys
import weakref
from typing import Any

import symrail

from .. import _symrail
from .._gpu import folders_of_nvrtc, is_capturing, local_rank
from .._join import Exchange, by_exchange, of_mpi, of_team, of_torch
from ..errors import ArgumentError

# Names this process in groups, whatever its host and number.
_PROCESS = os.urandom(8)


class GroupJob:
    """A job of a group. When all its ranks have dropped it, they leave it at the next call that makes one for the group."""

    def __init__(self, runtime: _symrail.Runtime, key: tuple[bytes, ...], number: int) -> None:
        self.runtime: _symrail.Runtime | None = runtime
        self.key, self.number, self.is_dropped = key, number, False

    def leave(self, timeout: float | None) -> None:
        """Leaves the job, and frees its memory when nothing refers to it any more; while a graph is captured, later.
        Collective over the group.
        """
        if is_capturing():
            return self.drop()
        runtime, self.runtime = self.runtime, None
        _jobs.pop((self.key, self.number), None)
        if runtime is None:
            return
        if runtime.device is not None and "torch" in sys.modules:
            sys.modules["torch"].cuda.synchronize(runtime.device)
        runtime.finalize(timeout=timeout)

    def drop(self) -> None:
        """Leaves the job later, with the other ranks. Local."""
        self.is_dropped = True

    def drop_with(self, owner: Any) -> None:
        """Drops the job when the owner is gone."""
        weakref.finalize(owner, self.drop).atexit = False


# The jobs of groups that this process is in, by the members and the number of such jobs before.
_jobs: dict[tuple[tuple[bytes, ...], int], GroupJob] = {}
_made: dict[tuple[bytes, ...], int] = {}


def exchange(group: Any, comm: Any) -> Exchange:
    """How the members of a group exchange objects."""
    if comm is not None:
        return of_mpi(comm)
    if isinstance(group, _symrail.Team):
        return of_team(group)
    torch = sys.modules.get("torch.distributed")
    if group is True or torch is not None and isinstance(group, torch.ProcessGroup):
        return of_torch(group)
    raise ArgumentError(
        f"group is {group!r}: a process group of torch, a Team, None for all PEs, or an mpi4py communicator as comm"
    )


def _has_all_processes(group: Any, comm: Any, size: int) -> bool:
    """Whether a group of so many ranks has all processes that the group's library knows."""
    if comm is not None:
        mpi = sys.modules.get("mpi4py.MPI")
        return mpi is None or bool(size == mpi.COMM_WORLD.Get_size())
    return bool(size == sys.modules["torch.distributed"].get_world_size())


def _current() -> tuple[bytes, int, int] | None:
    """This process's job, PE and number of PEs."""
    if not symrail.is_initialized():
        return None
    named = symrail._uid or os.environ.get("SYMRAIL_BOOTSTRAP_UID", os.environ.get("PMIX_NAMESPACE", "")).encode()
    # An id contains the job's secret.
    return hashlib.sha256(named).digest(), symrail.my_pe(), symrail.n_pes()


def join(
    group: Any, comm: Any, heap_bytes: int, timeout: float | None
) -> tuple[_symrail.Runtime, GroupJob | None]:
    """The job of a group's processes. It is that of the process if their ranks are its PEs; a process without a job joins
    one for a group of all processes. Otherwise it is a new one, whose heap has at least so many bytes. Collective over
    the group.
    """
    if group is None and comm is None:
        if not symrail.is_initialized():
            symrail.init(heap_bytes=heap_bytes)
        return symrail.current(), None
    me, size, all_objects = exchange(group, comm)
    mine = _current()
    dropped = {name for name, job in _jobs.items() if job.is_dropped}
    members = all_objects((_PROCESS, mine, dropped))
    jobs = [job for _, job, _ in members]
    if jobs == [(jobs[0][0], rank, size) if jobs[0] else None for rank in range(size)]:
        if mine is not None:
            return symrail.current(), None
        if _has_all_processes(group, comm, size):
            symrail.init(process_group=group if comm is None else None, comm=comm, heap_bytes=heap_bytes)
            return symrail.current(), None
    key = tuple(process for process, _, _ in members)
    for name in sorted(set.intersection(*(names for _, _, names in members))):
        if name[0] == key and name in _jobs:
            _jobs[name].leave(timeout)
    place = by_exchange(me, size, all_objects)
    beside = symrail.current() if mine is not None else None
    nvrtc = folders_of_nvrtc("device" if beside is not None and beside.device is not None else None)
    runtime = _symrail.Runtime.join_group(place, heap_bytes, local_rank(), nvrtc, beside)
    number = _made[key] = _made.get(key, 0) + 1
    _jobs[key, number] = job = GroupJob(runtime, key, number)
    return runtime, job
