"""Tensor-parallel products that hide their communication: pieces of rows move while others are multiplied.

    import numpy as np, symrail, symrail.overlap as overlap

    with symrail.init(), overlap.Group() as group:
        rows = np.ones((4, 8), "float32")                                   # this rank's rows
        weight = np.ones((3, 8), "float32")                                 # this rank's outputs of all inputs
        y = overlap.all_gather_matmul(rows, weight, group=group)            # these outputs of all rows
        weight = np.ones((8, 3), "float32")                                 # all outputs of this rank's inputs
        z = overlap.matmul_reduce_scatter(y, weight, group=group)           # all outputs of this rank's rows

Arrays are NumPy's, or tensors of torch in host memory, of float32; or tensors in the memory of this PE's GPU, of
float32, float16, bfloat16 or 8-bit floats, on a heap that the GPU can access. Results are of the same kind, and those
of tensors that require gradients have gradients. Weights have the layout of `torch.nn.Linear`: outputs x inputs. Calls
are collective over the group's team. `symrail.overlap.layers` has layers for torch.
"""

from ._group import Group
from ._point_to_point import PointToPoint
from ._products import all_gather_matmul, matmul_all_reduce, matmul_reduce_scatter

__all__ = ["Group", "PointToPoint", "all_gather_matmul", "matmul_all_reduce", "matmul_reduce_scatter"]
