"""Puts, gets, signals and atomics in kernels of the CuTe DSL (nvidia-cutlass-dsl), on the symmetric heap of any PE.

    import cutlass.cute as cute, symrail.cute as shmem

    @cute.kernel
    def kernel(inbox: cute.Tensor, outbox: cute.Tensor, arrived: cute.Tensor, n: cutlass.Int32):
        shmem.put_signal_block(inbox, outbox, n, arrived, 1, shmem.SIGNAL_ADD, 1 - shmem.my_pe())

    run = shmem.compile(launch, inbox, outbox, arrived, 1024)
    run(inbox, outbox, arrived, 1024)

`compile` stands for cute.compile: what it returns checks the job at each call, and passes its state to the module.
Tensors and pointers stand for addresses, and integers are addresses. Scopes are those of CUDA C++: one thread calls a
function without a suffix; all threads of a warp or block call `…_warp`, `…_block` with the same arguments.
"""

from ._functions import *  # noqa: F403
from ._functions import __all__ as _functions
from ._kernel import compile

__all__ = [*_functions, "compile"]
