"""A PE's GPU, checks of tensors in its memory, and the folders of CUDA's run-time compiler."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

from ._symrail import is_on_gpu as is_on_gpu
from .errors import ArgumentError, UnsupportedError

# The variables in which launchers set a PE's number on its host.
_LOCAL_RANKS = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID", "PMI_LOCAL_RANK")
# ... and the number of PEs there.
_LOCAL_SIZES = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "PMI_LOCAL_SIZE")


def number(device: Any) -> int | None:
    """The number of a GPU that is given by it, or as torch.device."""
    found = getattr(device, "index", device)
    return None if found is None else int(found)


def local_rank() -> int | None:
    """This PE's number on its host, if its launcher has set it."""
    return _said(_LOCAL_RANKS)


def local_size() -> int | None:
    """The number of PEs on this host, if their launcher has set it."""
    return _said(_LOCAL_SIZES)


def _said(names: tuple[str, ...]) -> int | None:
    said = (os.environ.get(name, "") for name in names)
    return next((int(text) for text in said if text.isdigit()), None)


def folders_of_nvrtc(heap: str | None) -> list[str]:
    """Folders of NVIDIA's Python packages that may have the compiler, for heaps that GPUs can access."""
    if (heap or os.environ.get("SYMRAIL_HEAP_KIND")) not in ("device", "pinned"):
        return []
    spec = importlib.util.find_spec("nvidia")
    folders = (spec.submodule_search_locations if spec else None) or []
    return [str(library.parent) for folder in folders for library in Path(folder).glob("*/lib/libnvrtc.so*")]


def reached(gpu: int | None) -> int:
    """The GPU that can access the job's heap, if there is one."""
    if gpu is None:
        raise UnsupportedError(
            "tensors of a GPU need a heap that it reaches, and here is none: "
            'symrail.init(heap="device") or SYMRAIL_HEAP_KIND=device, on a machine with a GPU'
        )
    return gpu


def is_capturing() -> bool:
    """Whether work on the current stream of PyTorch or CuPy is captured in a graph."""
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    if cuda is not None and cuda.is_initialized() and cuda.is_current_stream_capturing():
        return True
    cupy = sys.modules.get("cupy")
    if cupy is None or not hasattr(cupy, "cuda"):
        return False
    try:
        return bool(cupy.cuda.get_current_stream().is_capturing())
    except RuntimeError as error:
        # The default stream has no answer while another one captures; without a GPU there is none either.
        return "capture" in str(error).lower()


def must_be_on(gpu: int, array: Any, role: str) -> None:
    """Raises ArgumentError for anything but a tensor in this GPU's memory."""
    if not is_on_gpu(array) or array.device.index != gpu:
        where = getattr(array, "device", type(array).__name__)
        raise ArgumentError(f"{role} is on {where}; wanted is this PE's GPU, cuda:{gpu}")
