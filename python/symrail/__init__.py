"""Symmetric memory for NumPy, PyTorch and CuPy: arrays that every process (PE) of a job has, and all others can access.

    import symrail

    with symrail.init():
        me, n = symrail.my_pe(), symrail.n_pes()
        box = symrail.array(3, "float64")        # on every PE, zeroed
        symrail.put(box, [me, me, me], (me + 1) % n)
        symrail.barrier_all()
        print(me, box)

Start it by itself (one PE), by `symrail run -n 4 python ring.py`, `mpirun -n 4 python ring.py`, or torchrun.

All PEs call "collective" functions, in the same order; any PE may call "local" ones.

All of them raise StateError without a job, and ForkedError in a forked child. Functions with a PE raise NoSuchPeError,
functions with arrays ArgumentError and FreedError, and functions that wait PeerLostError and TimeoutError. Each
function lists its further exceptions.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from types import TracebackType
from typing import Any

from . import _symrail, errors
from ._symrail import DeviceArray, Memory, __version__
from .errors import ForkedError, StateError, SymrailError

__all__ = [
    "ComparisonType",
    "DeviceArray",
    "Info",
    "Memory",
    "Runtime",
    "SignalOp",
    "SymrailError",
    "Team",
    "__version__",
    "alltoall",
    "array",
    "atomic_add",
    "atomic_and",
    "atomic_compare_swap",
    "atomic_fetch",
    "atomic_fetch_add",
    "atomic_fetch_and",
    "atomic_fetch_inc",
    "atomic_fetch_or",
    "atomic_fetch_xor",
    "atomic_inc",
    "atomic_or",
    "atomic_set",
    "atomic_swap",
    "atomic_xor",
    "barrier",
    "barrier_all",
    "broadcast",
    "buffer",
    "collect",
    "connect_all",
    "cudecomp_path",
    "current",
    "errors",
    "fcollect",
    "fence",
    "finalize",
    "free",
    "get",
    "get_nbi",
    "get_peer_array",
    "get_peer_tensor",
    "get_unique_id",
    "info",
    "init",
    "is_initialized",
    "is_mapped",
    "my_pe",
    "n_pes",
    "nccl_path",
    "nccl_plugin_path",
    "nvshmem_path",
    "put",
    "put_nbi",
    "put_signal",
    "quiet",
    "reclaim",
    "reduce",
    "reducescatter",
    "signal_op",
    "signal_wait",
    "sync",
    "sync_all",
    "team_world",
    "test",
    "wait_until",
]

Runtime = _symrail.Runtime
Team = _symrail.Team

_current: Runtime | None = None
# The process that joined, and the unique id by which it did.
_process = 0
_uid: bytes | None = None


class Joined:
    """A job that `init` has joined. As a context manager it finalizes at the end of a block that ends normally.

    A block that ends by an exception does not wait for the other PEs: they learn that this PE has left when its process
    ends.
    """

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime

    def __enter__(self) -> Runtime:
        return self.runtime

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.runtime.finalize()

    def __repr__(self) -> str:
        return f"<symrail: PE {self.runtime.my_pe()} of {self.runtime.n_pes()}>"


def init(
    *,
    uid: bytes | None = None,
    rank: int | None = None,
    nranks: int | None = None,
    process_group: Any = None,
    comm: Any = None,
    heap_bytes: int | None = None,
    require: str | Iterable[str] = (),
    heap: str | None = None,
    device: Any = None,
) -> Joined:
    """Joins a job. Collective.

    The first of these determines the job: `uid` with `rank` and `nranks` (`get_unique_id`), `process_group` (a process
    group of torch.distributed, or True for the default one), `comm` (an mpi4py communicator), the innermost launcher.
    Launchers are `symrail run`, SYMRAIL_BOOTSTRAP_UID, PMIx (mpirun, Slurm) and torchrun's environment (RANK,
    WORLD_SIZE, MASTER_ADDR, MASTER_PORT). Without any of them this process is a job of one PE.

    `heap_bytes` is the size of each PE's symmetric heap in bytes, by default SYMRAIL_HEAP_SIZE. `heap` is the kind of
    its memory, the same on all PEs: "host", "pinned" (host memory that GPUs can access) or "device" (GPU memory), by
    default SYMRAIL_HEAP_KIND. `device` is the GPU for the latter two, by CUDA's number or as torch.device, and is
    current afterwards; by default it is the current one, or the one with the PE's number on its host, modulo GPUs.

    `require` lists requirements on this PE's paths, so that no fallback is silent; any of: "mapped" (loads and stores
    reach all PEs), "wire" (there are rails, even if all PEs are mapped), "rdma" (over rails, NICs read and write PEs'
    memory, instead of CPUs as with TCP), "gpudirect" (the heap is in a GPU, and NICs read and write it; nothing is
    staged). `info` shows the paths. If one PE does not meet them, all raise RequirementError.

    Raises StateError if this process is in a job already, ForkedError if it was forked from a process that is,
    RequirementError, ArgumentError, SettingError, TimeoutError (which names the PEs that did not arrive), DifferError,
    FabricError, LibraryError, BootstrapError.
    """
    global _current, _process, _uid
    if _current is not None and not _current.finalized:
        me, size = _current.my_pe(), _current.n_pes()
        if os.getpid() != _process:
            raise ForkedError(f"this process was forked from PE {me} of a job of {size}, and cannot be a PE", {"pe": me})
        raise StateError(f"this process is PE {me} of a job of {size} already; finalize() leaves it")
    from ._gpu import folders_of_nvrtc, local_rank, number
    from ._join import place

    wanted = [require] if isinstance(require, str) else list(require)
    found, me, size = place(uid, rank, nranks, process_group, comm)
    nvrtc = folders_of_nvrtc(heap)
    _current = Runtime.join(found, me, size, heap_bytes, wanted, heap, number(device), local_rank(), nvrtc)
    _process, _uid = os.getpid(), found
    return Joined(_current)


def get_unique_id(interface: str | None = None) -> bytes:
    """Creates the unique id of a job; one process passes it to all PEs by any means. Local.

    This process serves the rendezvous at `interface`, the IP address of one of its interfaces; by default at the
    loopback interface, for PEs of this machine only. The id contains the job's secret.
    """
    return bytes(_symrail.create_uid(interface))


def current() -> Runtime:
    """The job that this process is in. Raises StateError without one. Local."""
    if _current is None:
        raise StateError("symrail.init() was not called")
    return _current


def is_initialized() -> bool:
    """Whether this process is in a job. Local."""
    return _current is not None and not _current.finalized


def finalize(*, timeout: float | None = None) -> None:
    """Leaves the job: completes the operations that this PE has started, and waits for all PEs, at most `timeout`
    seconds. Collective.

    Does nothing without a job, the second time, and in a forked child. Arrays of the job keep their memory as long as
    they live. A program that exits with success without it finalizes at its end.
    """
    if _current is not None:
        _current.finalize(timeout=timeout)


def array(shape: int | tuple[int, ...], dtype: Any = "float32", *, timeout: float | None = None) -> Any:
    """A zeroed array in symmetric memory, of the same shape and dtype on all PEs. Collective.

    With a heap in host memory it is an ordinary NumPy array, with a heap in GPUs a `DeviceArray`. Operations accept it
    and its slices as symmetric, and also other libraries' arrays of the same memory. Each PE drops it whenever it likes
    and in any order. A later `array` or `reclaim` frees its memory when all PEs have dropped it; the program ensures
    that no stream still uses it then. dtypes are NumPy's or PyTorch's; "bfloat16" and FP8 ("float8_e4m3fn", ...) need
    the package ml_dtypes in NumPy's arrays.

    Raises DifferError if PEs ask for different shapes or dtypes, HeapExhaustedError, ArgumentError, and TimeoutError if
    a PE does not call within `timeout` seconds, after which the job has no more collectives.
    """
    from ._arrays import allocate

    return allocate(current(), shape, dtype, timeout)


def buffer(nbytes: int) -> Memory:
    """Zeroed bytes of symmetric memory, the same number on all PEs. Collective.

    It has an `address` and `nbytes`, for C code; `numpy.asarray` makes a uint8 array of it for operations. Its memory
    is freed like that of an `array`.

    Raises DifferError if PEs ask for different numbers of bytes, HeapExhaustedError, ArgumentError.
    """
    from ._arrays import extent

    (length,) = extent(nbytes)
    return current().allocate(length, f"{length} bytes")


def get_peer_array(array: Any, remote_pe: int) -> Any:
    """PE `remote_pe`'s copy of a symmetric array, for access without calls; None if it is not mapped. Local.

    Only signals and barriers order such accesses with those of its owner.
    """
    from ._arrays import of_peer

    return of_peer(current(), array, remote_pe)


def get_peer_tensor(array: DeviceArray, remote_pe: int) -> Any:
    """As `get_peer_array`, as a PyTorch tensor; None if it is not mapped. Local."""
    found = get_peer_array(array, remote_pe)
    return None if found is None else found.tensor()


from ._atomics import (  # noqa: E402  (they use `current`)
    atomic_add,
    atomic_and,
    atomic_compare_swap,
    atomic_fetch,
    atomic_fetch_add,
    atomic_fetch_and,
    atomic_fetch_inc,
    atomic_fetch_or,
    atomic_fetch_xor,
    atomic_inc,
    atomic_or,
    atomic_set,
    atomic_swap,
    atomic_xor,
)
from ._collectives import (  # noqa: E402
    alltoall,
    barrier,
    broadcast,
    collect,
    fcollect,
    reduce,
    reducescatter,
    sync,
    team_world,
)
from ._info import Info, info  # noqa: E402
from ._libraries import cudecomp_path, nccl_path, nccl_plugin_path, nvshmem_path  # noqa: E402
from ._operations import (  # noqa: E402
    barrier_all,
    connect_all,
    fence,
    free,
    get,
    get_nbi,
    is_mapped,
    my_pe,
    n_pes,
    put,
    put_nbi,
    put_signal,
    quiet,
    reclaim,
    signal_op,
    sync_all,
    test,
    wait_until,
)
from ._signals import ComparisonType, SignalOp, signal_wait  # noqa: E402
