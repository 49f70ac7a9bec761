"""Bad input: each is an exception of its own kind, on both PEs, and the job continues."""

import numpy as np
import symrail
import symrail.decomp
from refused import refused
from symrail import errors
from symrail.collectives import Communicator


with symrail.init(heap_bytes=4 << 20) as runtime:
    me, n = symrail.my_pe(), symrail.n_pes()
    other = (me + 1) % n
    a = symrail.array((4, 5), "float64")
    word = symrail.array(2, "uint64")
    plain = np.zeros((4, 5))
    world = symrail.team_world()

    error = refused(errors.ArgumentError, symrail.put, plain, a, other, text="not in the symmetric heap")
    assert (error.pe, error.operation, error.bytes) == (other, "put", 160), vars(error)
    refused(errors.ArgumentError, symrail.get, a, plain, other)
    refused(errors.ArgumentError, symrail.put, a, plain.astype("float32"), other, text="float32")
    refused(errors.ArgumentError, symrail.put, a, np.zeros(4), other, text="broadcast")
    refused(errors.ArgumentError, symrail.put, a, "text", other)
    refused(errors.ArgumentError, symrail.put, a, None, other)
    refused(errors.ArgumentError, symrail.put, a[0, 0], 1.0, other, text="a[i:i+1]")
    refused(errors.ArgumentError, symrail.put, symrail.array(3, "int32"), 1.5, other)
    refused(errors.ArgumentError, symrail.put, symrail.array(3, "uint8"), 300, other)
    refused(errors.ArgumentError, symrail.get, np.broadcast_to(np.zeros(5), (4, 5)), a, other, text="writeable")
    refused(errors.ArgumentError, symrail.array, 3, object)
    refused(errors.ArgumentError, symrail.array, 3, "float3")
    for shape in ((3, -1), "abc", (2, None), 1.5, float("inf")):
        refused(errors.ArgumentError, symrail.array, shape, text="whole numbers from 0")
    refused(errors.ArgumentError, symrail.decomp.Grid, "abc", text="whole numbers from 0")
    refused(errors.ArgumentError, symrail.decomp.Grid, (4, 4), text="three extents")
    refused(errors.ArgumentError, symrail.put, np.array([None]), a, other)
    refused(errors.ArgumentError, symrail.put, a.astype(">f8"), a, other)
    refused(TypeError, symrail.put, a, plain, 1.5)
    for pe in (-1, n, 1 << 40):
        refused(errors.NoSuchPeError, symrail.put, a, plain, pe, text=str(pe))
    refused(errors.ArgumentError, symrail.signal_op, a, 1, "set", other, text="uint64")
    refused(errors.ArgumentError, symrail.signal_op, word, 1, "set", other, offset=2, text="2 elements")
    refused(errors.ArgumentError, symrail.signal_op, word, 1, "subtract", other, text="set, add")
    refused(OverflowError, symrail.signal_op, word, -1, "set", other)
    refused(errors.ArgumentError, symrail.wait_until, word, "=", 1)
    refused(errors.ArgumentError, symrail.wait_until, a, "==", 1)
    refused(errors.ArgumentError, symrail.atomic_add, symrail.array(3, "int16"), 1, other, text="int16")
    refused(errors.UnsupportedError, symrail.atomic_and, a, 1, other)
    refused(errors.ArgumentError, world.reduce, a, a[::-1], "sum", text="contiguous")
    refused(errors.ArgumentError, world.reduce, a, a, "mean", text="sum, prod")
    refused(errors.ArgumentError, world.fcollect, a, a, text="elements")
    refused(errors.NoSuchPeError, world.broadcast, a, a, n)
    refused(errors.ArgumentError, world.split_strided, 0, 1, n + 1)
    refused(errors.StateError, world.destroy)
    refused(errors.StateError, symrail.init)
    refused(errors.HeapExhaustedError, symrail.array, 1 << 40, "uint8", text="SYMRAIL_HEAP_SIZE")

    error = refused(errors.TimeoutError, symrail.wait_until, word, "==", 5, timeout=0.1)
    assert isinstance(error, TimeoutError)
    differ = refused(errors.DifferError, symrail.array, 3 + me, "int8", text="(4,) int8")
    assert differ.pe == 1
    refused(errors.DifferError, symrail.array, 4, "int8" if me else "uint8")

    with Communicator() as comm:
        rows = {ty: symrail.array((8, 4), ty) for ty in ("float32", "float16", "uint8")}
        x, half, codes = rows["float32"], rows["float16"], rows["uint8"]
        weight, scale = x[0], x[0, :1]
        given = {"input": x, "residual": x, "weight": weight}
        for wrong, text in (
            ({"input": half}, "weight has dtype float32; use float16"),
            ({"weight": half[0]}, "weight has dtype float16"),
            ({"residual": half}, "residual has dtype float16"),
            ({"residual_out": half}, "residual_out has dtype float16"),
            ({"out": codes}, "out has dtype uint8; use float32"),
            ({"scale": scale}, "out has dtype float32; use float8_e4m3fn or uint8"),
            ({"out": codes, "scale": half[0, :1]}, "scale has dtype float16; use float32"),
            ({"out": codes, "scales": half}, "scales has dtype float16"),
            ({}, "is for GPUs"),
            ({"out": codes, "scale": scale}, "is for GPUs"),
        ):
            refused(errors.ArgumentError, comm.all_reduce_rms_norm, **{**given, **wrong}, text=text)
        part = {"input": x[:4], "residual": x[:4]} if me else {}
        refused(errors.DifferError, comm.all_reduce_rms_norm, **{**given, **part}, text="another bytes of the input")
        without = {"residual": None, "residual_out": x} if me else {}
        refused(errors.DifferError, comm.all_reduce_rms_norm, **{**given, **without}, text="another residual")
        epsilon = 1e-5 if me else 1e-6
        refused(errors.DifferError, comm.all_reduce_rms_norm, **given, epsilon=epsilon, text="another epsilon")
        way = "packets" if me else "pushed"
        refused(errors.DifferError, comm.all_reduce_rms_norm, **given, algorithm=way, text="another algorithm")

    symrail.free(a)
    refused(errors.FreedError, symrail.put, a, plain, other)
    refused(errors.FreedError, symrail.get, plain, a, other)
    refused(errors.ArgumentError, symrail.free, plain)
    before = runtime.blocks()[0]
    del a
    symrail.reclaim()
    assert runtime.blocks()[0] < before

    b = symrail.array(3, "int32")
    symrail.put(b, me, other)
    symrail.barrier_all()
    assert (b == other).all()

symrail.finalize()
b[:] = 7  # the memory outlives the job, for this process
refused(errors.StateError, symrail.put, b, 1, 0, text="has left")
print("well\n", end="", flush=True)
