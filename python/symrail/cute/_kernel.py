"""Compiled functions with Symrail's device functions."""

from __future__ import annotations

from typing import Any

import cutlass.cute as cute
from cuda.bindings import runtime

from symrail._modules import Modules, job_on, module_of
from symrail.errors import StateError

_modules = Modules()


class Compiled:
    """What `compile` returns: cute.compile's function, whose calls check the job."""

    def __init__(self, compiled: Any) -> None:
        self.compiled = compiled
        self.loaded = False

    def prepare(self) -> None:
        """Loads the module, and passes the job's state to it."""
        # The job first: it needs no GPU.
        job = job_on(None)
        error, device = runtime.cudaGetDevice()
        if error != runtime.cudaError_t.cudaSuccess:
            raise StateError(f"cudaGetDevice: {error.name}")
        _modules.prepare(job_on(device) if device != job.device else job)
        if not self.loaded:
            self.compiled.to()
            for library in self.compiled.jit_module.cuda_library:
                _modules.add(module_of(int(library)))
            self.loaded = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.prepare()
        return self.compiled(*args, **kwargs)


def compile(fn: Any, *args: Any, **options: Any) -> Compiled:
    """As cute.compile, for functions whose kernels call those of this package.

    A call raises StateError without a job or after `finalize`, ArgumentError on another GPU than the PE's, and
    UnsupportedError with a heap that no GPU reaches.
    """
    return Compiled(cute.compile(fn, *args, **options))
