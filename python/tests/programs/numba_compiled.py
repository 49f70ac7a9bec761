"""Compiles and links the kernels of gpu/numba_kernels.py without a GPU, with every function of symrail.numba."""

import re
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "gpu"))
import numba_kernels as kernels
import symrail.numba as shmem
from numba import cuda, types
from numba.cuda.cudadrv import driver
from symrail.numba._call import source

CC = (9, 0)


def arrays(dtype, *dims):
    return [types.Array(getattr(types, dtype), ndim, "C") for ndim in dims]


def cases():
    """Each kernel with the types of its arguments."""
    i64 = types.int64
    for dtype in kernels.TYPES:
        data, words = arrays(dtype, 1)[0], arrays("int64", 1)[0]
        for kernel in kernels.SCOPES.values():
            yield kernel, (data, data, data, data, words, i64, i64, i64)
        yield kernels.values, (data, data, data, i64)
    for dtype in kernels.WORDS:
        data = arrays(dtype, 1)[0]
        yield kernels.floats, (data, data, i64)
        yield kernels.counted, (data, i64)
        if "float" not in dtype:
            yield kernels.integers, (data, data, i64)
    for kernel in kernels.MEETINGS.values():
        yield kernel, (*arrays("int64", 1, 1), i64, i64, i64)
    for kernel in kernels.ALL_MEET:
        yield kernel, (*arrays("int64", 1, 1), i64)
    yield kernels.peers, (*arrays("float32", 1, 1), i64)
    examples = kernels.numba_all_reduce
    yield examples.one_shot_all_reduce, (*arrays("float32", 2), *arrays("int64", 1), *arrays("float32", 1), i64)
    passed = (*arrays("float32", 2, 2), *arrays("int64", 1, 1), *arrays("float32", 2), i64, i64)
    yield examples.pipeline, passed


def linked():
    """The functions that kernels called, as numba's linker gets them: CUDA C++ that NVRTC compiles, and a cubin of it."""
    linker = driver._Linker(cc=CC, lto=True)
    start = time.monotonic()
    linker.add_cu(source.data, source.name)
    return linker.complete(), time.monotonic() - start


def main():
    called = set()
    for kernel, args in cases():
        ptx, _ = cuda.compile_ptx(kernel.dispatcher.py_func, types.void(*args), cc=CC)
        called |= set(re.findall(r"\.extern \.func.*?(symrail_numba_\w+)", ptx, re.DOTALL))
    assert called, "no calls"
    assert called <= set(source.functions), called - set(source.functions)
    cubin, seconds = linked()
    assert cubin
    unused = {name for name in shmem.__all__ if callable(getattr(shmem, name)) and name != "jit"}
    unused -= {re.sub(r"_(u?int\d+|float\d+)$", "", name.removeprefix("symrail_numba_")) for name in source.functions}
    print(f"compiled {len(source.functions)} functions; not called: {' '.join(sorted(unused)) or 'none'}; {seconds:.1f} s")


main()
