"""Expert parallelism: tokens go to the PEs that own their experts, and come back as sums.

The interface is that of DeepEP's Buffer and ElasticBuffer: a program that was written for them imports

    import symrail.ep as deep_ep

Arrays are NumPy's, or tensors of torch in host memory; results are of the same kind. bfloat16 and FP8 in NumPy need the
package ml_dtypes. Calls are made by all ranks together, one rank a PE, and are complete when they return.
"""

from __future__ import annotations

from typing import Any

from ._buffer import Buffer
from ._config import Config
from ._elastic import ElasticBuffer, EPHandle
from ._events import EventHandle, EventOverlap
from ._high import Handle

__all__ = ["Buffer", "Config", "EPHandle", "ElasticBuffer", "EventHandle", "EventOverlap", "Handle", "topk_idx_t"]


def __getattr__(name: str) -> Any:
    """`topk_idx_t`: the dtype of top-k indices, torch.int64, or NumPy's where torch is not installed."""
    if name != "topk_idx_t":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        import torch
    except ImportError:
        import numpy as np

        return np.int64
    return torch.int64
