"""Objects with memory on all PEs that are dropped without being freed, one PE after the other, some in cycles."""

import gc
import sys
import warnings

import numpy as np
from refused import refused

import symrail
import symrail.collectives as collectives
import symrail.decomp as decomp
import symrail.ep as deep_ep
import symrail.overlap as overlap
from symrail.errors import DifferError, HeapExhaustedError

LAPS = int(sys.argv[1])


def low_latency(n):
    size = deep_ep.Buffer.get_low_latency_rdma_size_hint(4, 64, n, n)
    buffer = deep_ep.Buffer(None, num_rdma_bytes=size, low_latency_mode=True)
    x, idx = np.ones((2, 32), "float32"), np.zeros((2, 2), "int64")
    rows, _, handle, _, _ = buffer.low_latency_dispatch(x, idx, 4, n, use_fp8=False)
    found = buffer.low_latency_combine(rows, idx, np.full((2, 2), 0.5, "float32"), handle)[0]
    assert np.array_equal(found, x)
    return buffer


def group(team):
    made = overlap.Group(team, heap_bytes=1 << 20)
    overlap.all_gather_matmul(np.ones((2, 3), "float32"), np.ones((2, 3), "float32"), group=made)
    return made


def grid(n):
    made = decomp.Grid((4, 4, 4), (1, n), dtype="float32")
    made.transpose(made.empty("x", "float32"), "y")
    return made


def reduced(team):
    comm = collectives.Communicator(team, heap_bytes=4 << 20)
    comm.all_reduce(symrail.array(100, "float32"))
    return comm


def crowded(team, heap_bytes):
    """A communicator, or none of a team whose ranks it has no room for. Other teams may get theirs."""
    try:
        return collectives.Communicator(team, heap_bytes=heap_bytes)
    except HeapExhaustedError:
        return None


class Cycle:
    def __init__(self, held):
        self.held, self.me = held, self


with symrail.init(heap_bytes=64 << 20) as runtime:
    me, n = symrail.my_pe(), symrail.n_pes()
    half = symrail.team_world().split_strided(me % 2, 2, (n + 1 - me % 2) // 2) if n > 1 else symrail.team_world()
    makers = [
        lambda: deep_ep.Buffer(None, num_nvl_bytes=1 << 20),
        lambda: low_latency(n),
        lambda: group(None),
        lambda: group(half),
        lambda: grid(n),
        lambda: reduced(None),
        lambda: reduced(half),
        lambda: crowded(half, 64 << 10),
        # Room for one rank, and for no more.
        lambda: crowded(half, 400 << 10),
    ]
    assert crowded(half, 64 << 10) is None
    assert (crowded(half, 400 << 10) is None) == (half.n_pes() > 1)
    kept = []
    for lap in range(LAPS):
        made = makers[lap % len(makers)]()
        # A PE may keep it for longer than the others.
        if me == lap % n:
            kept.append(made)
        elif lap % 3 == 0:
            Cycle(made)
        del made
        if len(kept) > 3:
            kept.clear()
        if lap % 10 == me:
            gc.collect()
    kept.clear()
    gc.collect()
    symrail.barrier_all()
    symrail.reclaim()
    # All that is not used by others is there.
    whole = symrail.array(56 << 20, "uint8")
    assert not whole.any()
    del whole

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for destroys in (True, False):
            buffer = deep_ep.Buffer(None, num_nvl_bytes=1 << 20, explicitly_destroy=True)
            if destroys:
                buffer.destroy()
            del buffer
            gc.collect()
    assert [str(one.message) for one in told if "explicitly_destroy" in str(one.message)] == [
        "a Buffer with explicitly_destroy=True was dropped without destroy()"
    ], told

    # PEs that make different objects learn it.
    if n > 1:
        error = refused(DifferError, lambda: overlap.Group() if me == 0 else symrail.array(3), text="Group")
        assert "(3,)" in str(error), error
    symrail.barrier_all()
    print(f"PE {me} is well\n", end="")
