"""Kernels with the device functions: linking them, and passing the job's state to the modules that Triton loads."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import triton
from triton.runtime.jit import JITFunction

import symrail
from symrail.errors import ArgumentError, StateError, UnsupportedError

_FILE = Path(symrail.__file__).parent / "libsymrail_device.bc"


def library() -> str:
    """The path of the device functions as LLVM bitcode. Raises UnsupportedError where the package has none."""
    if not _FILE.exists():
        raise UnsupportedError(f"there is no {_FILE}: scripts/bitcode.sh makes it, with clang")
    return str(_FILE)


class _Modules:
    """Modules that Triton has loaded for kernels of `jit`, and the job whose state they have."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.handles: set[int] = set()
        self.job: Any = None
        # Whether this thread launches a kernel of `jit`.
        self.of_thread = threading.local()

    def prepare(self, job: Any) -> None:
        """Passes the state of another job than before to the modules."""
        with self.lock:
            if self.job is not job:
                self.job = None
                for handle in self.handles:
                    job.attach_module(handle)
                self.job = job

    def loaded(self, module: int, *_: Any) -> None:
        if getattr(self.of_thread, "launches", False):
            with self.lock:
                if self.job.attach_module(module):
                    self.handles.add(module)

    def unloaded(self, module: int, *_: Any) -> None:
        self.handles.discard(module)


_modules = _Modules()
_hooks: Any = getattr(getattr(triton, "knobs", None), "runtime", None)
if not hasattr(getattr(_hooks, "kernel_load_end_hook", None), "add"):
    raise UnsupportedError(f"symrail.triton needs Triton 3.5 or newer, and this is {triton.__version__}")
_hooks.kernel_load_end_hook.add(_modules.loaded)
# Versions without this hook do not unload kernels.
if hasattr(_hooks, "kernel_unload_hook"):
    _hooks.kernel_unload_hook.add(_modules.unloaded)


def _job() -> Any:
    """The job for kernels on the current GPU."""
    job = symrail.current()
    if job.finalized:
        raise StateError("the job is finalized: kernels with symrail.triton's functions need a job")
    if job.device is None:
        raise UnsupportedError(
            'kernels need a heap that a GPU reaches: symrail.init(heap="device") or SYMRAIL_HEAP_KIND=device'
        )
    device = triton.runtime.driver.active.get_current_device()
    if job.device != device:
        raise ArgumentError(f"the kernel is launched on GPU {device}, and the GPU of PE {job.my_pe()} is {job.device}")
    return job


class Kernel(JITFunction):
    """A kernel of `jit`."""

    def run(self, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        kwargs["extern_libs"] = {**(kwargs.get("extern_libs") or {}), "symrail_device": library()}
        if warmup:
            return super().run(*args, grid=grid, warmup=warmup, **kwargs)
        _modules.prepare(_job())
        of_thread = _modules.of_thread
        before, of_thread.launches = getattr(of_thread, "launches", False), True
        try:
            return super().run(*args, grid=grid, warmup=warmup, **kwargs)
        finally:
            of_thread.launches = before


def jit(fn: Any = None, **options: Any) -> Any:
    """As triton.jit, for kernels with the functions of this package.

    A launch raises StateError without a job or after `finalize`, ArgumentError on another GPU than the PE's, and
    UnsupportedError with a heap that no GPU reaches.
    """
    return Kernel(fn, **options) if fn is not None else lambda fn: Kernel(fn, **options)
