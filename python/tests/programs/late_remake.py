"""PE 1 makes a call that needs all PEs, most of them for memory, and PE 0 is late. Arguments: the job's id, this PE, what."""

import os
import sys
import time

import numpy as np

import symrail
import symrail.decomp as decomp
import symrail.ep as deep_ep
import symrail.overlap as overlap
from symrail.errors import StateError, TimeoutError

uid, me, what = bytes.fromhex(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
symrail.init(uid=uid, rank=me, nranks=2, heap_bytes=64 << 20)
LIMIT = 2
low = deep_ep.Buffer.get_low_latency_rdma_size_hint(8, 512, 2, 8)


def rounds(buffer, hidden, k=2):
    idx, x = np.zeros((2, k), "int64"), np.ones((2, hidden), "float32")
    rows, _, handle, _, _ = buffer.low_latency_dispatch(x, idx, 8, 8, use_fp8=False)
    return buffer.low_latency_combine(rows, idx, np.full((2, k), 1 / k, "float32"), handle)[0]


if what in ("rows", "slots", "destroy", "connect"):
    buffer = deep_ep.Buffer(None, 1 << 20, low, low_latency_mode=True, timeout=LIMIT)
    assert (rounds(buffer, 64) == 1).all()
    late = {
        "rows": lambda: rounds(buffer, 128),
        "slots": lambda: rounds(buffer, 64, 4),
        "destroy": buffer.destroy,
        "connect": lambda: buffer.connect_ranks([0]),
    }[what]
elif what == "buffer":
    late = lambda: deep_ep.Buffer(None, 1 << 20, timeout=LIMIT)  # noqa: E731
elif what == "group":
    group = overlap.Group(timeout=LIMIT)
    late = group.free
elif what == "plan":
    group = overlap.Group(timeout=LIMIT)
    late = lambda: overlap.matmul_all_reduce(  # noqa: E731
        np.ones((3, 2), "float32"), np.ones((4, 2), "float32"), group=group
    )
elif what == "grid":
    grid = decomp.Grid((4, 4, 4), (1, 2), timeout=LIMIT)
    late = grid.free
else:
    grid = decomp.Grid((4, 4, 4), (1, 2), timeout=LIMIT)
    x = grid.empty("x")
    late = lambda: grid.transpose(x, "y")  # noqa: E731
symrail.barrier_all()
if me == 0:
    sys.stdin.readline()
else:
    began = time.monotonic()
    try:
        late()
    except TimeoutError as error:
        print(f"TimeoutError {list(error.pes)} after {time.monotonic() - began:.1f} s: {error}", flush=True)
        if what in ("rows", "slots"):
            try:
                rounds(buffer, 64)
            except StateError as error:
                print(f"StateError: {error}", flush=True)
            buffer.destroy()
    else:
        print("no error", flush=True)
# The other PE does not end with this one.
os._exit(0)
