"""Memory that is made, freed and dropped while a PE captures a CUDA graph, as `symrail._gpu.is_capturing` says."""

import gc


import symrail
import symrail._gpu
import symrail.collectives as collectives
import symrail.decomp as decomp
import symrail.ep as deep_ep
import symrail.overlap as overlap
from symrail.errors import StateError

with symrail.init(heap_bytes=32 << 20) as runtime:
    me, n = symrail.my_pe(), symrail.n_pes()
    who, before = n - 1, symrail._gpu.is_capturing
    assert not before()

    def captures(on):
        symrail._gpu.is_capturing = (lambda: me == who) if on else before

    left = symrail.array((8 << 20,), "uint8"), overlap.Group(heap_bytes=8 << 20)
    freed = deep_ep.Buffer(None, num_nvl_bytes=1 << 20)
    captures(True)
    for make in (
        lambda: symrail.array(3),
        lambda: deep_ep.Buffer(None, num_nvl_bytes=1 << 20),
        lambda: overlap.Group(heap_bytes=1 << 20),
        lambda: decomp.Grid((4, 4, 4), (1, n)),
        collectives.Communicator,
    ):
        try:
            make()
        except StateError as error:
            # All PEs learn which one captures.
            assert error.pe == who and f"PE {who} captures a CUDA graph" in str(error), error
        else:
            raise AssertionError("not refused")
    # Dropped now, freed later.
    del left
    gc.collect()
    blocks = runtime.blocks()[0]
    symrail.reclaim()
    assert runtime.blocks()[0] == blocks == 1
    # Calls of the heap that was there go on.
    symrail.barrier_all()
    if n == 1:
        freed.destroy()
    captures(False)
    if n > 1:
        freed.destroy()
    symrail.reclaim()
    assert runtime.blocks()[0] == 0
    whole = symrail.array(24 << 20, "uint8")
    assert not whole.any()
    symrail.barrier_all()
    print(f"PE {me} is well\n", end="")
