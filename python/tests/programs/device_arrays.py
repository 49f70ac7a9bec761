"""Arrays in memory that the CPU cannot access, against NumPy: here memory that only tests use, staged like GPU
memory."""

import itertools
import os

import ml_dtypes
import numpy as np
import symrail

DTYPES = ["bool", "int8", "uint16", "int32", "float32", "float64", "complex128", "bfloat16", "float8_e4m3fn"]
SLICES = [np.s_[...], np.s_[1:3], np.s_[:, 1], np.s_[::2, ::3], np.s_[::-1], np.s_[-1, ...], np.s_[2:2], np.s_[0, 4:5]]
SHAPE = (4, 5)


def values(dtype, seed):
    numbers = (np.arange(20).reshape(SHAPE) * 7 + seed) % 100
    return numbers.astype(getattr(ml_dtypes, dtype, dtype))


def copies(me, n):
    following, before = (me + 1) % n, (me - 1) % n
    for dtype in DTYPES:
        there, here = symrail.array(SHAPE, dtype), symrail.array(SHAPE, dtype)
        assert isinstance(there, symrail.DeviceArray) and there.dtype == values(dtype, 0).dtype
        assert not there.numpy().view("uint8").any()
        here[...] = values(dtype, me)
        # From the host, and from the same memory.
        for to, device in itertools.product(SLICES, (False, True)):
            there[...] = values(dtype, 50)
            symrail.barrier_all()
            symrail.put(there[to], here[to] if device else values(dtype, me)[to], following)
            symrail.barrier_all()
            wanted = values(dtype, 50)
            wanted[to] = values(dtype, before)[to]
            assert np.array_equal(there.numpy().view("uint8"), wanted.view("uint8")), (dtype, to, device)
            back = np.zeros((8, 10), wanted.dtype)[::2, ::2]
            symrail.get(back[to], there[to], following)
            assert back[to].tobytes() == values(dtype, me)[to].tobytes(), (dtype, to)
            symrail.barrier_all()
    numbers = symrail.array(4, "int32")
    numbers[1:3] = 7
    numbers[3] = np.int32(9)
    assert list(numbers.numpy()) == [0, 7, 7, 9]


def words(me, n):
    following = (me + 1) % n
    data, word = symrail.array(1000, "float64"), symrail.array(3, "uint64")
    for lap in range(1, 6):
        symrail.put_signal(data, np.full(1000, lap, "float64"), word, lap, "set", following, offset=1)
        assert symrail.signal_wait(word, lap, ">=", offset=1, timeout=30) == lap
        assert (data.numpy() == lap).all()
        symrail.barrier_all()
    for pe in range(n):
        symrail.atomic_add(word, 2, pe)
        assert symrail.atomic_fetch_add(word, 1, pe, offset=2) < n
    symrail.barrier_all()
    assert list(word.numpy()) == [2 * n, 5, n]
    symrail.barrier_all()


with symrail.init(heap=os.environ.get("HEAP", "guarded")):
    for part in (copies, words):
        part(symrail.my_pe(), symrail.n_pes())
    symrail.reclaim()
    assert symrail.current().blocks()[0] <= 1
    print("well\n", end="", flush=True)
