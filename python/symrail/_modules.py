"""Modules that compilers of kernels have loaded, and the state of the job that they need."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import symrail
from symrail.errors import ArgumentError, StateError, UnsupportedError


def packaged(name: str) -> str:
    """The path of a file that scripts/bitcode.sh makes. Raises UnsupportedError where the package lacks it."""
    file = Path(symrail.__file__).parent / name
    if not file.exists():
        raise UnsupportedError(f"there is no {file}: scripts/bitcode.sh makes it, with clang")
    return str(file)


def job_on(device: int | None) -> Any:
    """The job for kernels on a GPU, by CUDA's number; None for any.

    Raises StateError without a job and after `finalize`, UnsupportedError with a heap that no GPU reaches, and
    ArgumentError on another GPU than the PE's.
    """
    job = symrail.current()
    if job.finalized:
        raise StateError("the job is finalized: kernels with Symrail's functions need a job")
    if job.device is None:
        raise UnsupportedError(
            'kernels need a heap that a GPU reaches: symrail.init(heap="device") or SYMRAIL_HEAP_KIND=device'
        )
    if device is not None and job.device != device:
        raise ArgumentError(f"the kernel is launched on GPU {device}, and the GPU of PE {job.my_pe()} is {job.device}")
    return job


class Modules:
    """Loaded modules with device functions, and the job whose state they have."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.handles: set[int] = set()
        self.job: Any = None

    def prepare(self, job: Any) -> None:
        """Passes the state of another job than before to the modules."""
        with self.lock:
            if self.job is not job:
                self.job = None
                for handle in self.handles:
                    job.attach_module(handle)
                self.job = job

    def add(self, handle: int) -> None:
        """Passes the job's state to a module that was loaded now."""
        with self.lock:
            if self.job.attach_module(handle):
                self.handles.add(handle)

    def remove(self, handle: int) -> None:
        """Forgets a module that is unloaded."""
        with self.lock:
            self.handles.discard(handle)


def module_of(library: Any) -> int:
    """The CUmodule of a library (CUlibrary), or of a module itself, in the current context."""
    from cuda.bindings import driver

    if isinstance(library, driver.CUmodule):
        return int(library)
    error, module = driver.cuLibraryGetModule(driver.CUlibrary(int(library)))
    if error != driver.CUresult.CUDA_SUCCESS:
        raise StateError(f"cuLibraryGetModule: {error.name}")
    return int(module)
