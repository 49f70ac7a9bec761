"""Puts, gets, signals and atomics in Triton kernels, on the symmetric heap of any PE.

    import symrail, symrail.triton as shmem, triton.language as tl

    @shmem.jit
    def ring(inbox, outbox, arrived, n, BLOCK: tl.constexpr):
        next = (shmem.my_pe() + 1) % shmem.n_pes()
        shmem.put_signal(inbox, outbox, n, arrived, 1, shmem.SIGNAL_ADD, next)
        shmem.signal_wait_until(arrived, shmem.CMP_GE, 1)

    with symrail.init(heap="device"):
        inbox = symrail.array(1024, "float32")
        ...
        ring[(1,)](inbox.tensor(), outbox.tensor(), arrived.tensor(), 1024, BLOCK=1024)

`jit` stands for triton.jit: it links the device functions, and passes the job's state to every kernel that Triton loads,
also to kernels from its cache. Autotuning and CUDA graphs work as usual.

A function has the effect of one call by the program, whatever the number of its warps, and all threads get its result.
It is ordered with the program's earlier loads and stores of all threads, and they with it. Its arguments are scalars:
pointers, not blocks of pointers. `scope` says which threads copy: "block" (all of them), "warp" or "thread". A kernel
with warp specialization cannot call the functions, because all threads of the block meet in them.
"""

from ._functions import (
    CMP_EQ,
    CMP_GE,
    CMP_GT,
    CMP_LE,
    CMP_LT,
    CMP_NE,
    SIGNAL_ADD,
    SIGNAL_SET,
    alltoall,
    atomic_add,
    atomic_and,
    atomic_compare_swap,
    atomic_fetch,
    atomic_fetch_add,
    atomic_fetch_and,
    atomic_fetch_or,
    atomic_fetch_xor,
    atomic_or,
    atomic_set,
    atomic_swap,
    atomic_xor,
    barrier,
    barrier_all,
    broadcast,
    fcollect,
    fence,
    g,
    get,
    get_nbi,
    my_pe,
    n_pes,
    p,
    peer,
    put,
    put_nbi,
    put_signal,
    put_signal_nbi,
    quiet,
    signal_op,
    signal_wait_until,
    sync_all,
    team_my_pe,
    team_n_pes,
    team_sync,
    team_translate_pe,
    test,
    wait_until,
)
from ._kernel import jit, library

__all__ = [
    "CMP_EQ",
    "CMP_GE",
    "CMP_GT",
    "CMP_LE",
    "CMP_LT",
    "CMP_NE",
    "SIGNAL_ADD",
    "SIGNAL_SET",
    "alltoall",
    "atomic_add",
    "atomic_and",
    "atomic_compare_swap",
    "atomic_fetch",
    "atomic_fetch_add",
    "atomic_fetch_and",
    "atomic_fetch_or",
    "atomic_fetch_xor",
    "atomic_or",
    "atomic_set",
    "atomic_swap",
    "atomic_xor",
    "barrier",
    "barrier_all",
    "broadcast",
    "fcollect",
    "fence",
    "g",
    "get",
    "get_nbi",
    "jit",
    "library",
    "my_pe",
    "n_pes",
    "p",
    "peer",
    "put",
    "put_nbi",
    "put_signal",
    "put_signal_nbi",
    "quiet",
    "signal_op",
    "signal_wait_until",
    "sync_all",
    "team_my_pe",
    "team_n_pes",
    "team_sync",
    "team_translate_pe",
    "test",
    "wait_until",
]
