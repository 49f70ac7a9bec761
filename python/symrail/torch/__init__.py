"""PyTorch's symmetric memory (torch.distributed._symmetric_memory) on Symrail's heap, as its back end "SYMRAIL".

    symrail.init(process_group=True, heap="device")
    symrail.torch.register()                     # collective
    symm_mem.set_backend("SYMRAIL")
    t = symm_mem.empty(1024, device="cuda", dtype=torch.bfloat16)
    symm_mem.rendezvous(t, group)
    torch.ops.symm_mem.one_shot_all_reduce(t, "sum", group.group_name)

All PEs of a group are on GPUs that can access each other's memory. The C++ extension is built for the installed torch
at its first use, or by `python -m symrail.torch.build`; it needs a C++ compiler and ninja.
"""

from __future__ import annotations

import ctypes

import symrail
from symrail.errors import LibraryError

__all__ = ["register"]


def register(pool_bytes: int = 256 << 20) -> None:
    """Registers the back end "SYMRAIL" with PyTorch, for `symm_mem.set_backend`. Collective.

    `pool_bytes` of every PE's heap are reserved until the process ends for `symm_mem.empty`, whose allocations are
    local. Raises UnsupportedError without a heap in GPUs, HeapExhaustedError, LibraryError if the extension cannot be
    built or fits another version of Symrail.
    """
    from .build import build

    runtime = symrail.current()
    memory = runtime.allocate(pool_bytes, f"{pool_bytes} bytes for PyTorch")
    table = runtime.table_for_torch(memory)
    extension = ctypes.CDLL(str(build()))
    extension.symrail_register.restype = ctypes.c_uint32
    extension.symrail_register.argtypes = [ctypes.c_void_p]
    wanted = extension.symrail_register(table)
    if wanted:
        raise LibraryError(f"the extension for PyTorch wants version {wanted} of Symrail's functions; build it again")
