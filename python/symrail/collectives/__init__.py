"""Collectives of devices: execution plans, run by threads of the host or by kernels in the order of a stream.

    import numpy as np, symrail, symrail.collectives as collectives

    with symrail.init(), collectives.Communicator() as comm:
        x = symrail.array(1000, "float32")
        x[:] = comm.rank
        comm.all_reduce(x)                                      # in place
        mean = symrail.array(1000, "float32")
        comm.all_reduce(x, mean, op="avg", algorithm="two_phase")
        print(comm.explain("all_reduce", x.nbytes))

Arrays are contiguous, and symmetric (`symrail.array`): NumPy's and torch's of the host, or PyTorch's and CuPy's of the
PE's GPU. Names of torch.distributed exist, too: `ReduceOp`, `all_gather_into_tensor`, `reduce_scatter_tensor`,
`all_to_all_single`, `isend`, `irecv`, `batch_isend_irecv`; and MSCCL++'s `ExecutionPlan`.
"""

from ._communicator import Communicator, Done
from ._group import P2POp
from ._plan import ExecutionPlan
from ._words import ReduceOp

__all__ = ["Communicator", "Done", "ExecutionPlan", "P2POp", "ReduceOp"]
