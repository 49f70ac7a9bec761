"""The functions that PyTorch has for Triton kernels on NVSHMEM, under its names, by Symrail's.

    import symrail.triton.nvshmem as nvshmem      # torch.distributed._symmetric_memory._nvshmem_triton

    @nvshmem.requires_nvshmem
    @triton.jit
    def kernel(...):
        nvshmem.put(dest, source, n, pe)

Kernels with that import run on tensors of `symrail.array` and of PyTorch's symmetric memory by the back end "SYMRAIL".
`reduce` is refused when a kernel that calls it is compiled.
"""

from __future__ import annotations

from typing import Any

from triton.language import core
from triton.runtime.jit import JITFunction

from ._functions import (
    _ADDRESS,
    _I32,
    _I64,
    _call,
    alltoall,
    barrier_all,
    broadcast,
    fence,
    get,
    get_nbi,
    my_pe,
    n_pes,
    put,
    quiet,
    signal_op,
    signal_wait_until,
    sync_all,
    wait_until,
)
from ._kernel import Kernel

__all__ = [
    "alltoall",
    "barrier_all",
    "broadcast",
    "fence",
    "get",
    "get_nbi",
    "my_pe",
    "n_pes",
    "put",
    "putmem_signal_block",
    "quiet",
    "requires_nvshmem",
    "signal_op",
    "signal_wait_until",
    "sync_all",
    "wait_until",
]


def requires_nvshmem(kernel: Any) -> Kernel:
    """The kernel of `triton.jit` as one of `symrail.triton.jit`. Raises TypeError for anything else."""
    if not isinstance(kernel, JITFunction):
        raise TypeError(f"a kernel of triton.jit is wanted, and not {type(kernel).__name__}")
    names = ("do_not_specialize", "do_not_specialize_on_alignment", "debug", "noinline")
    return Kernel(kernel.fn, **{name: value for name in names if (value := getattr(kernel, name, None))})


@core.extern
def putmem_signal_block(dst, src, size_bytes, signal, sig_val, sig_op, pe, _semantic=None):
    """Copies bytes to the symmetric `dst` on `pe`, and then updates the signal word there."""
    args = [(dst, _ADDRESS), (src, _ADDRESS), (size_bytes, _I64), (signal, _ADDRESS), (sig_val, _I64), (sig_op, _I32)]
    _call("put_signal_block", _I32, [*args, (pe, _I32), (1, _I32)], _semantic)


@core.extern
def reduce(*_args, _semantic=None):
    """Refused: call symrail's on a stream."""
    raise NotImplementedError("reduce is not among the functions for kernels: call symrail's on a stream")
