"""Kernels with the device functions."""

from __future__ import annotations

from typing import Any

from numba import cuda

from symrail.errors import UnsupportedError

from ._state import prepare


class _Launch:
    """A kernel with its grid, blocks and stream."""

    def __init__(self, configured: Any) -> None:
        self.configured = configured

    def __call__(self, *args: Any) -> Any:
        prepare()
        return self.configured(*args)


class Kernel:
    """A kernel of `jit`: numba's dispatcher, whose launches check the job."""

    def __init__(self, dispatcher: Any) -> None:
        self.dispatcher = dispatcher

    def __getitem__(self, configuration: Any) -> _Launch:
        return _Launch(self.dispatcher[configuration])

    def __getattr__(self, name: str) -> Any:
        return getattr(self.dispatcher, name)


def jit(fn: Any = None, **options: Any) -> Any:
    """As numba.cuda.jit, for kernels with the functions of this package.

    A launch raises StateError without a job or after `finalize`, ArgumentError on another GPU than the PE's, and
    UnsupportedError with a heap that no GPU reaches. `cache=True` is refused: numba-cuda saves no kernel that links CUDA
    C++.
    """
    if options.get("cache"):
        raise UnsupportedError("cache=True: numba-cuda saves no kernel that links CUDA C++, as these functions are")
    if fn is None:
        return lambda fn: jit(fn, **options)
    if options.get("device"):
        return cuda.jit(fn, **options)
    return Kernel(cuda.jit(fn, **options))
