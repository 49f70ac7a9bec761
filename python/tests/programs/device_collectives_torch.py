"""symrail.collectives on tensors of torch in the symmetric heap of the host, by torch.distributed's names."""

import torch
import torch.distributed as dist

import symrail
from symrail.collectives import Communicator

with symrail.init(heap_bytes=64 << 20):
    memory, more = symrail.array(64, "float32"), symrail.array(64, "float32")
    x, y = torch.from_numpy(memory), torch.from_numpy(more)
    with Communicator() as comm:
        x.fill_(comm.rank + 1)
        comm.all_reduce(x, op=dist.ReduceOp.SUM)
        assert torch.equal(x, torch.full((64,), comm.size * (comm.size + 1) / 2)), x
        x.fill_(comm.rank)
        comm.all_gather_into_tensor(y[: 4 * comm.size], x[:4])
        assert torch.equal(y[: 4 * comm.size], torch.arange(comm.size).repeat_interleave(4).float()), y
        half = x.view(torch.bfloat16)
        half.fill_(comm.rank + 1)
        comm.all_reduce(half, op=dist.ReduceOp.MAX)
        assert (half == comm.size).all(), half
        small = x.view(torch.uint8).view(torch.float8_e4m3fn)[:16]
        small.copy_(torch.full((16,), 0.5).to(torch.float8_e4m3fn))
        comm.all_reduce(small)
        assert (small.float() == 0.5 * comm.size).all(), small
        print(f"PE {comm.rank}: tensors are right\n", end="")
