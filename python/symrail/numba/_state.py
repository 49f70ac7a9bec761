"""The job's state in modules that numba loads."""

from __future__ import annotations

from typing import Any

from numba import cuda

from symrail._modules import Modules, job_on, module_of

modules = Modules()


def prepare() -> None:
    """Passes the current job's state to the modules."""
    modules.prepare(job_on(cuda.get_current_device().id))


def attach(loaded: Any) -> None:
    """numba's callback for a module with the functions, before its first launch."""
    if modules.job is None or modules.job.finalized:
        prepare()
    modules.add(module_of(loaded.handle))
