"""Kernels with the device functions: linking them, and passing the job's state to the modules that Triton loads."""

from __future__ import annotations

import threading
from typing import Any

import triton
from triton.runtime.jit import JITFunction

from symrail._modules import Modules, job_on, packaged
from symrail.errors import UnsupportedError


def library() -> str:
    """The path of the device functions as LLVM bitcode. Raises UnsupportedError where the package has none."""
    return packaged("libsymrail_device.bc")


def program_library() -> str:
    """As `library`, for the functions of this package alone."""
    return packaged("libsymrail_program.bc")


class _Modules(Modules):
    """Modules that Triton has loaded for kernels of `jit`."""

    def __init__(self) -> None:
        super().__init__()
        # Whether this thread launches a kernel of `jit`.
        self.of_thread = threading.local()

    def loaded(self, module: int, *_: Any) -> None:
        if getattr(self.of_thread, "launches", False):
            self.add(module)

    def unloaded(self, module: int, *_: Any) -> None:
        self.remove(module)


_modules = _Modules()
_hooks: Any = getattr(getattr(triton, "knobs", None), "runtime", None)
if not hasattr(getattr(_hooks, "kernel_load_end_hook", None), "add"):
    raise UnsupportedError(f"symrail.triton needs Triton 3.5 or newer, and this is {triton.__version__}")
_hooks.kernel_load_end_hook.add(_modules.loaded)
# Versions without this hook do not unload kernels.
if hasattr(_hooks, "kernel_unload_hook"):
    _hooks.kernel_unload_hook.add(_modules.unloaded)


class Kernel(JITFunction):
    """A kernel of `jit`."""

    def run(self, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        kwargs["extern_libs"] = {"symrail_device": program_library(), **(kwargs.get("extern_libs") or {})}
        if warmup:
            return super().run(*args, grid=grid, warmup=warmup, **kwargs)
        _modules.prepare(job_on(triton.runtime.driver.active.get_current_device()))
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
