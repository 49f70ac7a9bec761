"""NaN, 16-bit floats, bool and averages in reductions of teams; calls of other dtypes; limits of calls."""

import os
import sys
import time

import numpy as np
import symrail
from refused import refused
from symrail.errors import DifferError


def reduced(values, dtype, op):
    """The reduction of the values of all PEs."""
    source, dest = symrail.array(len(values), dtype), symrail.array(len(values), dtype)
    source[:] = values
    symrail.barrier_all()
    symrail.reduce(symrail.team_world(), dest, source, op)
    return np.array(dest)


def nan(me, n, dtypes):
    for dtype in dtypes:
        for count in (1, 5000, 70000):
            for who in range(n):
                for op in ("min", "max"):
                    found = reduced(np.full(count, np.nan if me == who else 1.0), dtype, op)
                    assert np.isnan(found.astype("float32")).all(), (dtype, count, who, op, found)


def floats(me, n, dtypes):
    for dtype in dtypes:
        for count in (3, 70000):
            mine = np.arange(count) % 8 + me
            mean = np.arange(count) % 8 + (n - 1) / 2
            for op, wanted in {"sum": n * mean, "avg": mean}.items():
                found = reduced(mine, dtype, op).astype("float64")
                assert np.allclose(found, wanted, rtol=1 / 128), (dtype, op, found, wanted)


def others(me, n):
    bits = np.array([0, me == 0, me != 0, 1], "bool")
    some = np.array([0, 1, n > 1, 1], "bool")
    every = np.array([0, n == 1, 0, 1], "bool")
    odd = np.array([0, 1, (n - 1) % 2, n % 2], "bool")
    for op, wanted in {"or": some, "sum": some, "max": some, "and": every, "prod": every, "min": every, "xor": odd}.items():
        found = reduced(bits, "bool", op)
        assert (found == wanted).all(), (op, found)
    assert (reduced([-1 - 2 * me, 3], "int16", "avg") == [-n, 3]).all()
    assert (reduced([complex(me, -me)], "complex64", "avg") == complex((n - 1) / 2, -(n - 1) / 2)).all()
    for dtype, op in {"bool": "avg", "float16": "and", "complex128": "max", "float32": "xor"}.items():
        text = f"no reduction {op} of elements of type {dtype}"
        refused(symrail.errors.ArgumentError, reduced, [1], dtype, op, text=text)
    scattered = symrail.array(1, "float16")
    blocks = symrail.array(n, "float16")
    blocks[:] = np.arange(n) + me
    symrail.barrier_all()
    symrail.reducescatter(symrail.team_world(), scattered, blocks, "avg")
    assert abs(float(scattered[0]) - (me + (n - 1) / 2)) < 0.01


def differ(me, n):
    """All PEs get the same error, which names both dtypes."""
    a, b = symrail.array(4, "float32"), symrail.array(4, "float32")
    kind = "int32" if me == n - 1 else "float32"
    calls = {
        "reduce": lambda team: symrail.reduce(team, b.view(kind), a.view(kind), "sum"),
        "broadcast": lambda team: symrail.broadcast(team, b.view(kind), a.view(kind)),
        "alltoall": lambda team: symrail.alltoall(team, b.view(kind), a.view(kind)),
    }
    error = refused(DifferError, calls[sys.argv[2]], symrail.team_world(), text="(int32)")
    assert "(float32)" in str(error), error
    print("well\n", end="", flush=True)
    os._exit(0)


def late(me, n):
    """The last PE calls only when the others have given up."""
    gone = symrail.array(1, "uint64")
    team = symrail.team_world()
    part = team.split_strided(0, 1, n)
    calls = {
        "array": lambda: symrail.array(10, timeout=1),
        "reclaim": lambda: symrail.reclaim(timeout=1),
        "split": lambda: team.split_strided(0, 1, n, timeout=1),
        "destroy": lambda: part.destroy(timeout=1),
        "agree": lambda: team.all_agree(True, timeout=1),
    }
    if me == n - 1:
        symrail.signal_wait(gone, n - 1)
    else:
        begun = time.monotonic()
        error = refused(symrail.errors.TimeoutError, calls[sys.argv[2]])
        assert time.monotonic() - begun >= 1, error
        symrail.signal_op(gone, 1, "add", n - 1)
        symrail.quiet()
    print("well\n", end="", flush=True)
    os._exit(0)


symrail.init()
me, n = symrail.my_pe(), symrail.n_pes()
if sys.argv[1] == "differ":
    differ(me, n)
if sys.argv[1] == "late":
    late(me, n)
wide = ["float16", "float32", "float64"]
try:
    import ml_dtypes  # noqa: F401

    wide.append("bfloat16")
except ImportError:
    pass
nan(me, n, wide)
floats(me, n, wide)
others(me, n)
symrail.finalize()
print("well\n", end="", flush=True)
