"""symrail.ep.Buffer over groups of a job of 4 PEs, several at once, compared with NumPy.

Argument: calls (two groups of a rank at once), members (only one group's members make a Buffer), late (a rank is late),
absent (a rank makes no Buffer), fails (one rank cannot leave an old job), differ (one rank does not know of a job), heaps
(ranks with and without a job), captures (a rank captures a graph), left (Buffers that nobody destroys), or torch, a
file, and this process's rank (process groups, without a job).
"""

import gc
import logging.handlers
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from refused import refused

import symrail
import symrail.ep as deep_ep
from symrail._arrays import allocate
from symrail._join import of_team
from symrail.ep import _groups

HIDDEN, EACH, K, TOKENS = 64, 3, 4, 9
# Of `left`, which outlive the job.
kept: list[Any]
words: Any


class Comm:
    """What a Buffer uses of an mpi4py communicator."""

    def __init__(self, team: Any) -> None:
        self.rank, self.size, self.allgather = of_team(team, None)

    def Get_rank(self) -> int:
        return self.rank

    def Get_size(self) -> int:
        return self.size


def heaps() -> int:
    """The mappings of symmetric heaps in this process."""
    return sum("symrail" in line and ".so" not in line for line in Path("/proc/self/maps").read_text().splitlines())


def inputs(pe: int, ranks: int, call: int) -> tuple[Any, Any, Any]:
    """Tokens of a PE of the job; no two PEs have the same."""
    rng = np.random.default_rng([call, pe])
    tokens = TOKENS - pe
    x = (rng.integers(-8, 8, (tokens, HIDDEN)) + 100 * pe).astype("float32")
    indices = np.argsort(rng.random((tokens, ranks * EACH)), axis=1)[:, :K].astype("int64")
    return x, indices, rng.integers(1, 4, (tokens, K)).astype("float32")


def factor(pe: int, local: Any) -> Any:
    """What a PE's expert multiplies by."""
    return 1 + local + 10.0 * pe


def high(buffer: Any, pes: list[int], call: int) -> None:
    me, ranks = buffer.rank, len(pes)
    everybody = [inputs(pe, ranks, call) for pe in pes]
    x, indices, weights = everybody[me]
    per_rank, _, per_expert, in_rank, _ = buffer.get_dispatch_layout(indices, ranks * EACH)
    received, local, its_weights, counts, handle, _ = buffer.dispatch(
        x, num_tokens_per_rank=per_rank, is_token_in_rank=in_rank, num_tokens_per_expert=per_expert,
        topk_idx=indices, topk_weights=weights,
    )
    wanted = [part[0][(part[1] // EACH == me).any(axis=1)] for part in everybody]
    assert np.array_equal(received, np.concatenate(wanted)), (pes, call)
    assert counts == [sum(int((part[1] == me * EACH + e).sum()) for part in everybody) for e in range(EACH)]
    scale = np.where(local >= 0, its_weights * factor(pes[me], local), 0).sum(axis=1, keepdims=True)
    sums, _, _ = buffer.combine((received * scale).astype("float32"), handle)
    owners = np.array(pes)[indices // EACH]
    assert np.array_equal(sums, x * (weights * factor(owners, indices % EACH)).sum(axis=1, keepdims=True)), (pes, call)


def low(buffer: Any, pes: list[int], call: int, there: tuple[int, ...] = (0, 1)) -> None:
    me, ranks = buffer.rank, len(pes)
    x, indices, weights = inputs(pes[me], ranks, call)
    rows, counts, handle, _, _ = buffer.low_latency_dispatch(x, indices, TOKENS, ranks * EACH, use_fp8=False)
    for expert in range(EACH):
        row = 0
        for source in there:
            its_x, its_indices, _ = inputs(pes[source], ranks, call)
            wanted = its_x[(its_indices == me * EACH + expert).any(axis=1)]
            assert np.array_equal(rows[expert, row : row + len(wanted)], wanted), (pes, call, source)
            row += len(wanted)
        assert counts[expert] == row
    numbers = np.arange(EACH, dtype="float32")[:, None, None]
    sums, _, _ = buffer.low_latency_combine(rows * factor(pes[me], numbers), indices, weights, handle)
    owners = np.array(pes)[indices // EACH]
    parts = weights * factor(owners, indices % EACH) * np.isin(indices // EACH, there)
    assert np.array_equal(sums, x * parts.sum(axis=1, keepdims=True)), (pes, call)


def made(group: Any, comm: Any = None, **options: Any) -> Any:
    nvl = deep_ep.Buffer.get_dispatch_config(2).get_nvl_buffer_size_hint(4 * HIDDEN, 2)
    rdma = deep_ep.Buffer.get_low_latency_rdma_size_hint(TOKENS, 2 * HIDDEN, 2, 2 * EACH)
    return deep_ep.Buffer(group, nvl, rdma, low_latency_mode=True, comm=comm, timeout=20, **options)


def teams(me: int) -> tuple[list[int], Any, list[int], Any]:
    """This PE's pair of neighbours, and its pair of PEs that are two apart, the higher one first, with their teams."""
    first, second = me // 2 * 2, me % 2
    beside = symrail.team_world().split_strided(first, 1, 2)
    across = symrail.team_world().split_strided(second + 2, -2, 2)
    return [first, first + 1], beside, [second + 2, second], across


def calls(me: int) -> None:
    near, beside, far, across = teams(me)
    before = heaps()
    one, other = made(beside), made(None, comm=Comm(across))
    assert (one.rank, one.group_size) == (me % 2, 2) and (other.rank, other.group_size) == (1 - me // 2, 2)
    assert heaps() > before
    for call in range(6):
        high(one, near, call)
        low(other, far, call)
        high(other, far, call + 1)
        low(one, near, call + 1)
    # A group of all PEs is the job, and gets no other one.
    alike = symrail.team_world().split_strided(0, 1, 4)
    of_all = deep_ep.Buffer(alike, 1 << 20)
    assert of_all.runtime is symrail.current() and one.runtime is not of_all.runtime
    # In another order it is not.
    turned = deep_ep.Buffer(symrail.team_world().split_strided(3, -1, 4), 1 << 20)
    assert (turned.rank, turned.group_size) == (3 - me, 4) and turned.runtime is not symrail.current()
    high(turned, [3, 2, 1, 0], 7)
    turned.destroy()
    one.disconnect_ranks([1])
    if one.rank == 0:
        low(one, near, 8, there=(0,))
    one.connect_ranks([1])
    mask = np.ones(2, "int32")
    one.low_latency_query_mask_buffer(mask)
    assert not mask.any()
    low(one, near, 9)
    low(other, far, 9)
    for buffer in (one, other):
        buffer.destroy()
        refused(symrail.errors.StateError, buffer.low_latency_dispatch, *inputs(me, 2, 0)[:2], TOKENS, 2 * EACH)
    # Not even a Team of a group's job tells whether it has all processes.
    assert not _groups._has_all_processes(beside, None, 2)
    elastic = deep_ep.ElasticBuffer(beside, 1 << 20)
    elastic.destroy()
    refused(symrail.errors.StateError, elastic.barrier)
    refused(symrail.errors.StateError, elastic.dispatch, *inputs(me, 2, 0)[:2], num_experts=2 * EACH)
    of_all.destroy()
    assert heaps() == before, (heaps(), before)


def members(me: int) -> None:
    """PEs 0 and 1 make Buffers in an order of their own, and PEs 2 and 3 none at first."""
    near, beside, far, across = teams(me)
    before = heaps()
    if me < 2:
        first, second = made(beside), made(beside)
        high(second, near, 1)
        low(first, near, 2)
        second.destroy()
        high(first, near, 3)
        del first, second
        gc.collect()
        held = heaps()
        # The one that was dropped goes before the next one of the group is made.
        for _ in range(3):
            third = made(beside)
            assert heaps() <= held, (held, heaps())
            low(third, near, 4)
            del third
            gc.collect()
        made(beside).destroy()
        assert heaps() == before, (heaps(), before)
    symrail.barrier_all()
    last = made(across)
    high(last, far, 5)
    last.destroy()


def late(me: int) -> None:
    near, _, far, across = teams(me)
    buffer = made(across, enable_shrink=False)
    strict = deep_ep.Buffer(across, 1 << 20, timeout=2)
    low(buffer, far, 1)
    error = None
    if me >= 2:  # rank 0 of its group, whose rank 1 makes no call
        error = refused(symrail.errors.TimeoutError, high, strict, far, 2)
        assert error.pes == (1,), error.pes
    symrail.barrier_all()
    low(buffer, far, 3)
    buffer.destroy()


def absent(me: int) -> None:
    """The second PE of each pair makes no Buffer."""
    _, beside, _, across = teams(me)
    if me % 2 == 0:
        error = refused(symrail.errors.TimeoutError, deep_ep.Buffer, beside, 1 << 20, timeout=2)
        assert error.pes == (me + 1,), error.pes
    symrail.barrier_all()
    # Without a time of its own, that of the job.
    os.environ["SYMRAIL_TIMEOUT_S"] = "2"
    if me < 2:
        error = refused(symrail.errors.TimeoutError, deep_ep.Buffer, across, 1 << 20)
        assert error.pes == (me + 2,), error.pes
    symrail.barrier_all()


def fails(me: int) -> None:
    """The GPU of the first PE of each pair reports an error when the PE leaves the job of a Buffer that was dropped."""
    near, beside, _, _ = teams(me)
    before, told = heaps(), logging.handlers.MemoryHandler(100)
    logging.getLogger("symrail.ep").addHandler(told)
    held = made(beside)
    job = held._group_job
    del held
    gc.collect()
    if me % 2 == 0:
        synchronize = SimpleNamespace(synchronize=lambda _: 1 // 0, is_initialized=lambda: False)
        job.runtime = SimpleNamespace(device=0, finalize=job.runtime.finalize)
        sys.modules["torch"] = SimpleNamespace(cuda=synchronize)
    other = made(beside)
    sys.modules.pop("torch", None)
    del job
    low(other, near, 1)
    other.destroy()
    gc.collect()
    assert heaps() == before, (heaps(), before)
    assert ["by zero" in record.getMessage() for record in told.buffer] == [True] * (1 - me % 2)


def differ(me: int) -> None:
    """The first PE of each pair is interrupted when it has joined a job, which it does not know of then."""
    near, beside, _, _ = teams(me)
    of_group = symrail._symrail.Runtime.heap_of_group

    def interrupted(*given: Any, **options: Any) -> None:
        raise InterruptedError(symrail._symrail.Runtime.join_group(*given, **options))

    if me % 2 == 0:
        _groups._symrail = SimpleNamespace(Runtime=SimpleNamespace(join_group=interrupted, heap_of_group=of_group))
        refused(InterruptedError, deep_ep.Buffer, None, comm=Comm(beside))
        _groups._symrail = symrail._symrail
    else:
        deep_ep.Buffer(None, comm=Comm(beside))
    gc.collect()
    held = heaps()
    for call in range(3):
        buffer = made(beside)
        low(buffer, near, call)
        del buffer
        gc.collect()
    made(beside).destroy()
    assert heaps() == held, (heaps(), held)


def ranks_with_and_without_a_job(me: int) -> None:
    """The second PE of each pair is like a process without a job, and with a smaller heap, or one of another kind."""
    near, beside, _, _ = teams(me)
    if me % 2:
        _groups.symrail = SimpleNamespace(is_initialized=lambda: False)
        os.environ["SYMRAIL_HEAP_SIZE"] = "32M"
    buffer = made(beside)
    low(buffer, near, 1)
    buffer.destroy()
    if me % 2:
        os.environ["SYMRAIL_HEAP_KIND"] = "pinned"
    error = refused(symrail.errors.DifferError, made, beside, text="rank 0 has a host heap, and rank 1 a pinned one")
    assert error.pe == 1


def captures(me: int) -> None:
    """The second PE of each pair captures a graph."""
    near, beside, _, _ = teams(me)
    dropped = made(beside)
    del dropped
    gc.collect()
    held = heaps()
    if me % 2:
        _groups.is_capturing = lambda: True
    error = refused(symrail.errors.StateError, made, beside, text="rank 1 captures a CUDA graph")
    assert error.pe == 1 and heaps() == held
    _groups.is_capturing = lambda: False
    buffer = made(beside)
    low(buffer, near, 1)
    buffer.destroy()


def left(me: int) -> None:
    near, beside, far, across = teams(me)
    kept = [made(beside), made(across)]
    high(kept[0], near, 1)
    low(kept[1], far, 2)
    words = allocate(kept[1].runtime, 1, "int64", None)
    words[0] = me
    kept[1].runtime.barrier_all()
    globals().update(kept=kept, words=words)


def read_those_that_exit(me: int) -> None:
    """The first ranks end their programs, and serve the second ones until these do."""
    found = np.zeros(1, "int64")
    for _ in range(10_000 if me < 2 else 0):
        kept[1].runtime.get(found, words, 0)
        assert found[0] == me + 2


def of_torch(file: str, me: int) -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{file}", rank=me, world_size=4)
    # Every process makes all groups, as torch wants it.
    near, far = ([dist.new_group(pes) for pes in all] for all in (((0, 1), (2, 3)), ((0, 2), (1, 3))))
    one, other = made(near[me // 2]), made(far[me % 2])
    assert not symrail.is_initialized()
    pairs = [me // 2 * 2, me // 2 * 2 + 1], [me % 2, me % 2 + 2]
    for call in range(4):
        for buffer, pes in zip((one, other), pairs):
            high(buffer, pes, call)
            low(buffer, pes, call)
    of_all = deep_ep.Buffer(dist.group.WORLD, 1 << 20)
    assert of_all.runtime is symrail.current() and (symrail.my_pe(), symrail.n_pes()) == (me, 4)
    assert deep_ep.ElasticBuffer.get_buffer_size_hint(near[me // 2], 9, HIDDEN) > 0
    elastic = deep_ep.ElasticBuffer(near[me // 2], num_max_tokens_per_rank=TOKENS, hidden=HIDDEN)
    assert (elastic.rank_idx, elastic.num_ranks) == (me % 2, 2)
    # A Buffer for which the heap is too small that the one before has joined with has a job of its own.
    large, small = (deep_ep.Buffer(dist.group.WORLD, bytes) for bytes in (1 << 30, 1 << 20))
    assert large.runtime is not symrail.current() and small.runtime is symrail.current()
    high(large, [0, 1, 2, 3], 4)
    for buffer in (one, other, elastic, of_all, large, small):
        buffer.destroy()
    symrail.finalize()
    dist.destroy_process_group()


if sys.argv[1] == "torch":
    of_torch(sys.argv[2], int(sys.argv[3]))
    print(f"PE {sys.argv[3]} is well")
    sys.exit()

with symrail.init(heap_bytes=64 << 20):
    pe = symrail.my_pe()
    what = sys.argv[1]
    (ranks_with_and_without_a_job if what == "heaps" else globals()[what])(pe)
    symrail.barrier_all()
    print(f"PE {pe} is well", flush=True)
if sys.argv[1] == "left":
    read_those_that_exit(pe)
