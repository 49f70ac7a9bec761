"""The job of a Buffer's group: this process's own job, or for other groups one that the Buffer joins.

A group of some of the job's processes has a job of its own, whose PEs are the group's ranks, with a heap, paths and time
limits of its own. Only the group's members take part in making it, in whatever order they make those of several groups.
"""

from __future__ import annotations

import hashlib
import logging
import os
import sys
import weakref
from typing import Any

import symrail

from .. import _symrail
from .._gpu import folders_of_nvrtc, is_capturing, local_rank
from .._join import Exchange, by_exchange, of_mpi, of_team, of_torch, timeout_s
from ..errors import ArgumentError, DifferError, StateError

# Names this process in groups, whatever its host and number.
_PROCESS = os.urandom(8)
# What names a job of a group on all members: these, and the hash of the job's unique id.
_Name = tuple[tuple[bytes, ...], bytes]


class GroupJob:
    """A job of a group. When all its ranks have dropped it, they leave it at the next call that makes one for the group."""

    def __init__(self, runtime: _symrail.Runtime, name: _Name) -> None:
        self.runtime: _symrail.Runtime | None = runtime
        self.name, self.is_dropped = name, False

    def leave(self, timeout: float | None) -> None:
        """Leaves the job, and frees its memory when nothing refers to it any more; while a graph is captured, later.
        `timeout` is in seconds, by default SYMRAIL_TIMEOUT_S; this rank has left in any case. Collective over the group.
        """
        if is_capturing():
            return self.drop()
        runtime, self.runtime = self.runtime, None
        _jobs.pop(self.name, None)
        if runtime is None:
            return
        try:
            if runtime.device is not None and "torch" in sys.modules:
                sys.modules["torch"].cuda.synchronize(runtime.device)
        finally:
            runtime.finalize(timeout=timeout_s() if timeout is None else timeout)

    def drop(self) -> None:
        """Leaves the job later, with the other ranks. Local."""
        self.is_dropped = True

    def drop_with(self, owner: Any) -> None:
        """Drops the job when the owner is gone."""
        weakref.finalize(owner, self.drop).atexit = False


# The jobs of groups that this process is in.
_jobs: dict[_Name, GroupJob] = {}
# The process's job if a Buffer joined it, which determined the size of its heap.
_joined: _symrail.Runtime | None = None


def _become_another_process() -> None:
    """A forked child is in none of its parent's jobs."""
    global _PROCESS
    _PROCESS = os.urandom(8)
    _jobs.clear()


os.register_at_fork(after_in_child=_become_another_process)


def exchange(group: Any, comm: Any, timeout: float | None) -> Exchange:
    """How the members of a group exchange objects; those of a Team within so many seconds."""
    if comm is not None:
        return of_mpi(comm)
    if isinstance(group, _symrail.Team):
        return of_team(group, timeout)
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
    if isinstance(group, _symrail.Team):
        # Of a group's job.
        return False
    return bool(size == sys.modules["torch.distributed"].get_world_size())


def _current() -> tuple[bytes, int, int] | None:
    """This process's job, PE and number of PEs."""
    if not symrail.is_initialized():
        return None
    named = symrail._uid or os.environ.get("SYMRAIL_BOOTSTRAP_UID", os.environ.get("PMIX_NAMESPACE", "")).encode()
    # An id contains the job's secret.
    return hashlib.sha256(named).digest(), symrail.my_pe(), symrail.n_pes()


def _heap_of_gpu() -> str | None:
    """The kind of the heap of a process that joins its first job: "device" where PyTorch uses a GPU, as programs for
    DeepEP do, and None, the default, elsewhere and where SYMRAIL_HEAP_KIND is set."""
    torch = sys.modules.get("torch")
    uses_gpu = torch is not None and torch.cuda.is_initialized()
    return "device" if uses_gpu and "SYMRAIL_HEAP_KIND" not in os.environ else None


def has_heap_for_gpu() -> bool:
    """Whether the process's job, or the one that it would join, has a heap that a GPU accesses."""
    if symrail.is_initialized():
        return symrail.current().device is not None
    return (_heap_of_gpu() or _symrail.Runtime.heap_of_group(0, None)[1]) in ("device", "pinned")


def _at_least_as_set(heap_bytes: int) -> int:
    """The size of the heap of a job that this process joins: SYMRAIL_HEAP_SIZE, if it is set and more."""
    return _symrail.Runtime.heap_of_group(heap_bytes, None)[0] if "SYMRAIL_HEAP_SIZE" in os.environ else heap_bytes


def join(
    group: Any, comm: Any, heap_bytes: int, timeout: float | None
) -> tuple[_symrail.Runtime, GroupJob | None]:
    """The job of a group's processes. It is that of the process if their ranks are its PEs; a process without a job joins
    one for a group of all processes. Otherwise, and where an earlier Buffer has joined with a smaller heap, it is a new
    one, whose heap has at least so many bytes. Each wait for ranks, but for exchanges of torch and MPI, lasts at most so
    many seconds, by default SYMRAIL_TIMEOUT_S. Collective over the group.

    Raises on all ranks, before they leave or join a job, StateError if one captures a CUDA graph, and DifferError if
    their heaps are of different kinds.
    """
    global _joined
    if group is None and comm is None:
        if not symrail.is_initialized():
            symrail.init(heap_bytes=_at_least_as_set(heap_bytes), heap=_heap_of_gpu())
        return symrail.current(), None
    limit = timeout_s() if timeout is None else timeout
    me, size, all_objects = exchange(group, comm, limit)
    mine = _current()
    beside = symrail.current() if mine is not None else None
    # Objects may be dropped meanwhile, by this thread's collection of garbage, too.
    dropped = {name for name, job in list(_jobs.items()) if job.is_dropped}
    heap = _symrail.Runtime.heap_of_group(heap_bytes, beside)
    too_small = beside is not None and beside is _joined and heap_bytes > _symrail.Runtime.heap_of_group(0, beside)[0]
    if beside is None:
        heap = heap[0], _heap_of_gpu() or heap[1]
    members = all_objects(
        (_PROCESS, mine, dropped, heap, _at_least_as_set(heap_bytes), too_small, is_capturing())
    )
    processes, jobs, drops, heaps, joining, smalls, captures = zip(*members)
    if True in captures:
        why = "captures a CUDA graph, in which no Buffer can be made: make it before the capture"
        raise StateError(f"rank {captures.index(True)} {why}", {"pe": captures.index(True)})
    kinds = [kind for _, kind in heaps]
    for rank, kind in enumerate(kinds):
        if kind != kinds[0]:
            remedy = "give all the same heap= of init, or SYMRAIL_HEAP_KIND where there is no job"
            why = f"rank 0 has a {kinds[0]} heap, and rank {rank} a {kind} one: {remedy}"
            raise DifferError(why, {"pe": rank})
    if list(jobs) == [(jobs[0][0], rank, size) if jobs[0] else None for rank in range(size)]:
        if mine is not None and True not in smalls:
            return symrail.current(), None
        if mine is None and _has_all_processes(group, comm, size):
            process_group = group if comm is None else None
            symrail.init(process_group=process_group, comm=comm, heap_bytes=max(joining), heap=kinds[0])
            _joined = symrail.current()
            return _joined, None
    for name in sorted(set.intersection(*drops)):
        if name[0] == processes and (dropped_job := _jobs.get(name)) is not None:
            try:
                dropped_job.leave(limit)
            except Exception as error:
                # The other ranks wait for this one in what follows. It has left in any case.
                told = f"rank {me}, while it left the job of a dropped Buffer: {error}"
                logging.getLogger("symrail.ep").warning(told)
    place = by_exchange(me, size, all_objects)
    nvrtc = folders_of_nvrtc(kinds[0])
    wanted = max(bytes for bytes, _ in heaps), kinds[0]
    runtime = _symrail.Runtime.join_group(place, wanted, local_rank(), nvrtc, beside, timeout=limit)
    name = processes, hashlib.sha256(place[0]).digest()
    _jobs[name] = job = GroupJob(runtime, name)
    return runtime, job
