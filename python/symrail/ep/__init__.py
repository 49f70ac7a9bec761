"""Expert parallelism: tokens go to the PEs that own their experts, and come back as sums.

The interface is that of DeepEP's first-generation Buffer: a program that was written for it imports

    import symrail.ep as deep_ep

Arrays are NumPy's, or tensors of torch in host memory; results are of the same kind. bfloat16 and FP8 in NumPy need the
package ml_dtypes. Calls are made by all ranks together, one rank a PE, and are complete when they return.
"""

from __future__ import annotations

from ._buffer import Buffer
from ._config import Config
from ._events import EventHandle, EventOverlap
from ._high import Handle

__all__ = ["Buffer", "Config", "EventHandle", "EventOverlap", "Handle", "topk_idx_t"]

topk_idx_t = "int64"
"""The dtype of top-k indices; int32 is taken, too."""
