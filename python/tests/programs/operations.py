"""Every operation, for every dtype, on contiguous and strided arrays, against NumPy."""

import itertools
import sys

import ml_dtypes
import numpy as np
import symrail

DTYPES = [
    *("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128", "S5", "M8[s]"),
    ml_dtypes.bfloat16,
    ml_dtypes.float8_e4m3fn,
]
SLICES = [
    np.s_[...],
    np.s_[1:3],
    np.s_[:, 1],
    np.s_[::2, ::3],
    np.s_[::-1],
    np.s_[1:3, ::-2],
    np.s_[2:2],
    np.s_[0:1, 4:5],
]
SHAPE = (4, 5)


def values(dtype, seed):
    numbers = (np.arange(20).reshape(SHAPE) * 7 + seed) % 100
    return np.asarray(numbers).astype(dtype)


def copies(me, n):
    following, before = (me + 1) % n, (me - 1) % n
    for dtype in DTYPES:
        there = symrail.array(SHAPE, dtype)
        assert there.dtype == np.dtype(dtype) and not there.view(np.uint8).any()
        for to, order in itertools.product(SLICES, "CF"):
            there[...] = values(dtype, 50)
            symrail.barrier_all()
            source = np.asarray(values(dtype, me)[to], order=order)
            symrail.put(there[to], source, following)
            symrail.barrier_all()
            wanted = values(dtype, 50)
            wanted[to] = values(dtype, before)[to]
            assert np.array_equal(there.view(np.uint8), wanted.view(np.uint8)), (dtype, to, there, wanted)
            back = np.zeros((8, 10), dtype)[::2, ::2]
            symrail.get(back[to], there[to], following)
            assert np.array_equal(back[to], values(dtype, me)[to]), (dtype, to)
            symrail.barrier_all()


def sources(me, n):
    """Possible sources of puts besides arrays of the same shape."""
    following = (me + 1) % n
    there = symrail.array((2, 3), "int32")
    for source, wanted in [
        (7, np.full((2, 3), 7)),
        ([1, 2, 3], [[1, 2, 3], [1, 2, 3]]),
        (np.arange(6, dtype="int32").reshape(2, 3)[:, ::-1], [[2, 1, 0], [5, 4, 3]]),
        (np.int32(4), np.full((2, 3), 4)),
    ]:
        symrail.put(there, source, following)
        symrail.barrier_all()
        assert np.array_equal(there, wanted), (source, there)
        symrail.barrier_all()


def not_waited_for(me, n):
    """Arrays of operations in flight are kept until a quiet, whatever their users do."""
    following, before = (me + 1) % n, (me - 1) % n
    there, large = symrail.array((64, 7), "int32"), symrail.array(1 << 16, "float64")
    for lap in range(5):
        large[:] = me + lap
        symrail.barrier_all()
        for row in range(64):
            symrail.put_nbi(there[row, ::2], np.full(4, me * 1000 + row + lap, "int32"), following)
        got = np.zeros(1 << 16)
        used = sys.getrefcount(got)
        symrail.get_nbi(got[:-1], large[:-1], following)
        part = np.zeros((2, 100))[:, ::3]
        symrail.get_nbi(part, large[:68].reshape(2, 34), following)
        if symrail.is_mapped(following):
            assert sys.getrefcount(got) == used
        else:
            assert sys.getrefcount(got) == used + 1
        (symrail.quiet if lap % 2 else symrail.barrier_all)()
        assert sys.getrefcount(got) == used
        assert (got[:-1] == following + lap).all() and got[-1] == 0 and (part == following + lap).all()
        symrail.barrier_all()
        assert (there[:, ::2] == (before * 1000 + lap + np.arange(64))[:, None]).all() and not there[:, 1::2].any()
    symrail.barrier_all()


def plain_bytes(me, n):
    buffer = symrail.buffer(48)
    words = np.asarray(buffer).view("uint64")
    assert buffer.nbytes == 48 and buffer.address == words.ctypes.data and not words.any()
    symrail.barrier_all()
    symrail.put(words, me + 1, (me + 1) % n)
    symrail.barrier_all()
    assert (words == (me - 1) % n + 1).all()
    symrail.barrier_all()


def signals(me, n):
    following, before = (me + 1) % n, (me - 1) % n
    data, word = symrail.array(1000, "float64"), symrail.array(3, "uint64")
    for lap in range(1, 6):
        op = symrail.SignalOp.SIGNAL_ADD if lap % 2 else "set"
        source = np.full(1000, me * 10 + lap, "float64")
        part = np.s_[::2] if lap == 3 else np.s_[:]
        symrail.put_signal(data[part], source[part], word, 1 if lap % 2 else lap, op, following, offset=1)
        assert symrail.signal_wait(word, lap, symrail.ComparisonType.CMP_GE, offset=1, timeout=30) == lap
        assert (data[part] == before * 10 + lap).all()
        symrail.signal_op(word, lap, "set", before, offset=2)
        symrail.wait_until(word, "==", lap, offset=2, timeout=30)
        assert symrail.test(word, ">=", lap, offset=2) and not symrail.test(word, "!=", lap, offset=2)
        symrail.barrier_all()


def atomics(me, n):
    for dtype in ("int32", "uint32", "int64", "uint64"):
        a = symrail.array(4, dtype)
        for pe in range(n):
            symrail.atomic_add(a, 2, pe, offset=1)
            symrail.atomic_inc(a, pe, offset=1)
            assert symrail.atomic_fetch_add(a, 1, pe, offset=2) < n
        symrail.barrier_all()
        assert list(a) == [0, 3 * n, n, 0]
        symrail.barrier_all()
        symrail.atomic_or(a, 1 << me, 0, offset=3)
        symrail.barrier_all()
        assert symrail.atomic_fetch(a, 0, offset=3) == (1 << n) - 1
        symrail.barrier_all()
        symrail.atomic_xor(a, 1 << me, 0, offset=3)
        symrail.barrier_all()
        assert symrail.atomic_fetch_and(a, 0, me, offset=1) == 3 * n and a[1] == 0
        assert symrail.atomic_swap(a, 9, me) == 0
        assert symrail.atomic_compare_swap(a, 9, 5, me) == 9 and symrail.atomic_compare_swap(a, 9, 6, me) == 5
        symrail.atomic_set(a, 3, me)
        assert symrail.atomic_fetch_or(a, 4, me) == 3 and symrail.atomic_fetch_xor(a, 1, me) == 7
        assert symrail.atomic_fetch_inc(a, me) == 6
        symrail.atomic_and(a, 3, me)
        symrail.quiet()
        assert a[0] == 3
        symrail.barrier_all()
    for dtype in ("float32", "float64"):
        a = symrail.array(1, dtype)
        symrail.atomic_add(a, 0.5, 0)
        symrail.barrier_all()
        assert symrail.atomic_fetch(a, 0) == 0.5 * n
        symrail.barrier_all()


def peers(me, n):
    a = symrail.array((3, 4), "int64")
    a[...] = me
    symrail.barrier_all()
    for pe in range(n):
        there = symrail.get_peer_array(a[::-1, 1:3], pe)
        assert (there is not None) == symrail.is_mapped(pe)
        if there is not None:
            assert there.shape == (3, 2) and (there == pe).all()
    symrail.barrier_all()
    following = symrail.get_peer_array(a[::-1, 1:3], (me + 1) % n)
    if following is not None:
        following[0, 0] = me + 100
    symrail.barrier_all()
    before = (me - 1) % n
    assert a[2, 1] == (before + 100 if symrail.is_mapped(before) else me)
    symrail.barrier_all()


with symrail.init() as runtime:
    for part in (copies, sources, not_waited_for, plain_bytes, signals, atomics, peers):
        part(symrail.my_pe(), symrail.n_pes())
    symrail.reclaim()
    assert runtime.blocks()[0] <= 1, runtime.blocks()
    print("well\n", end="", flush=True)
