"""Puts, gets, signals and atomics in numba's CUDA kernels, on the symmetric heap of any PE.

    import symrail, symrail.numba as shmem

    @shmem.jit
    def ring(inbox, outbox, arrived, n):
        next = (shmem.my_pe() + 1) % shmem.n_pes()
        shmem.put_signal_block(inbox, outbox, n, arrived, 1, shmem.SIGNAL_ADD, next)
        if cuda.threadIdx.x == 0:
            shmem.signal_wait_until(arrived, shmem.CMP_GE, 1)
        cuda.syncthreads()

    with symrail.init(heap="device"):
        inbox = cuda.as_cuda_array(symrail.array(1024, "float32"))
        ...
        ring[1, 128](inbox, outbox, arrived, 1024)

`jit` stands for numba.cuda.jit: a launch checks the job and passes its state to the kernel's module. The functions have
the scopes of CUDA C++: one thread calls one without a suffix; all threads of a warp or block call `…_warp`, `…_block`
with the same arguments. Arrays stand for the addresses of their first elements (`x[3:]` for others), and integers for
addresses.
"""

from ._functions import *  # noqa: F403
from ._functions import __all__ as _functions
from ._kernel import jit

__all__ = [*_functions, "jit"]
