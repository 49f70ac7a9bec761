"""Arrays without elements, NumPy's and torch's, through every kind of call. Argument: numpy or torch."""

import sys

import numpy as np

import symrail
import symrail.collectives as collectives
import symrail.decomp as decomp
import symrail.ep as deep_ep
import symrail.overlap as overlap

HIDDEN, K = 32, 2

if sys.argv[1] == "torch":
    import torch

    torch.set_num_threads(1)

    def of(array):
        if array.size:
            return torch.from_numpy(array)
        return torch.empty(array.shape, dtype=getattr(torch, array.dtype.name))

else:

    def of(array):
        return array


def alike(one, other):
    assert type(one) is type(other), (type(one), type(other))
    assert tuple(one.shape) == tuple(other.shape) and one.dtype == other.dtype, (one, other)
    assert np.array_equal(np.asarray(one), np.asarray(other))


def copies(me, n):
    to, team = (me + 1) % n, symrail.team_world()
    for shape in ((0,), (0, 3), (3, 0), (2, 0, 4)):
        there, own = symrail.array(shape, "float32"), of(np.zeros(shape, "float32"))
        symrail.put(there, own, to)
        symrail.put_nbi(there, own, to)
        symrail.get(own, there, to)
        symrail.get_nbi(own, there, to)
        symrail.quiet()
        team.reduce(there, there, "sum")
        team.reduce_scatter(there, symrail.array(shape, "float32"), "sum")
        for call in (team.broadcast, team.fcollect, team.collect, team.alltoall):
            call(there, symrail.array(shape, "float32"))
        symrail.barrier_all()
    there, word = symrail.array((0,), "int64"), symrail.array(1, "uint64")
    symrail.put_signal(there, of(np.zeros(0, "int64")), word, 1, "set", to)
    symrail.signal_wait(word, 1)
    with collectives.Communicator() as comm:
        one, other = of(symrail.array(0, "float32")), of(symrail.array(0, "float32"))
        comm.all_reduce(one)
        comm.all_gather(one, other)
        comm.reduce_scatter(one, other)
        comm.all_to_all(one, other)
        comm.broadcast(one)


def experts(me, n):
    size = deep_ep.Buffer.get_low_latency_rdma_size_hint(4, HIDDEN * 2, n, n)
    buffer = deep_ep.Buffer(None, 1 << 20, size, low_latency_mode=True)
    for who in (*range(n), n):
        # One rank has no tokens, then all have none.
        count = 0 if who in (me, n) else 3
        x = of(np.ones((count, HIDDEN), "float32"))
        idx, weights = of(np.full((count, K), 0, "int64")), of(np.full((count, K), 0.5, "float32"))
        for fp8, hook in ((False, False), (False, True), (True, False)):
            if fp8 and sys.argv[1] == "torch" and not hasattr(torch, "float8_e4m3fn"):
                continue
            rows, counts, handle, _, receive = buffer.low_latency_dispatch(
                x, idx, 4, n, use_fp8=fp8, return_recv_hook=hook
            )
            if receive is not None:
                receive()
            come = 0 if me > 0 else 3 * (0 if who == n else n - 1)
            assert int(counts[0]) == come and tuple((rows[0] if fp8 else rows).shape) == (1, 4 * n, HIDDEN)
            back = of(np.zeros((1, 4 * n, HIDDEN), "float32")) if fp8 else rows
            out = of(np.zeros((count, HIDDEN), "float32"))
            found = buffer.low_latency_combine(back, idx, weights, handle, out=out)[0]
            alike(found, x if not fp8 else x * 0)
        per_rank, _, per_expert, in_rank, _ = buffer.get_dispatch_layout(idx, n)
        for topk in ({}, dict(topk_idx=idx, topk_weights=weights)):
            got, got_idx, got_weights, _, handle, _ = buffer.dispatch(
                x, num_tokens_per_rank=per_rank, num_tokens_per_expert=per_expert, is_token_in_rank=in_rank, **topk
            )
            assert tuple(got.shape) == (come, HIDDEN) and type(got) is type(x)
            if topk:
                assert got_idx.dtype == idx.dtype and tuple(got_idx.shape) == (come, K) == tuple(got_weights.shape)
            found, sums, _ = buffer.combine(got, handle, topk_weights=got_weights, bias=x)
            alike(found, 2 * x)
            if topk:
                alike(sums, weights)
            again, *_ = buffer.dispatch(x, handle=handle)
            alike(again, got)
    buffer.destroy()


def products(me, n):
    with overlap.Group(heap_bytes=1 << 20) as group:
        for rows, inputs, outputs in ((0, 3, 2), (0 if me == 0 else 2, 3, 2), (2, 3, 0)):
            x, weight = of(np.ones((rows, inputs), "float32")), of(np.ones((outputs, inputs), "float32"))
            found = overlap.all_gather_matmul(x, weight, group=group)
            all_rows = rows * n if rows or outputs == 0 or inputs == 0 else 0
            if rows == 2 and outputs == 2 or me == 0 and outputs == 2 and rows == 0:
                all_rows = found.shape[0]
            assert tuple(found.shape) == (all_rows, outputs)
        x, weight = of(np.ones((0, 3), "float32")), of(np.ones((2, 3), "float32"))
        assert tuple(overlap.matmul_reduce_scatter(x, weight, group=group).shape) == (0, 2)
        assert tuple(overlap.matmul_all_reduce(x, weight, group=group).shape) == (0, 2)


def pencils(me, n):
    # Fewer elements along an axis than PEs: some have none.
    grid = decomp.Grid((3, 1, 1), (1, n))
    x = grid.empty("x", "float32")
    x[:] = 1 + np.arange(3).reshape(3, 1, 1)[: x.shape[0]]
    back = grid.transpose(grid.transpose(x, "y"), "x")
    assert np.array_equal(back, x)
    grid.halo(x)
    grid.free()
    assert me < n


with symrail.init(heap_bytes=64 << 20):
    here = symrail.my_pe(), symrail.n_pes()
    copies(*here)
    experts(*here)
    products(*here)
    pencils(*here)
    symrail.barrier_all()
    print(f"PE {here[0]} is well\n", end="")
