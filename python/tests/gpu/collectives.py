"""Checks of collectives on streams against NumPy, for scripts/gpu.sh: `symrail run -n 2 -- python collectives.py`.

Arguments limit the dtypes. Works on device and pinned heaps, mapped or not; the variables SYMRAIL_… choose.
"""

import os
import sys
import traceback
from pathlib import Path

import numpy as np
import symrail
import torch
from symrail.errors import ArgumentError, OperationError

sys.path.append(str(Path(__file__).parents[1] / "programs"))
from reference import KINDS, OPS, of_all, values  # noqa: E402


def host(array):
    """A NumPy array with the present elements."""
    torch.cuda.synchronize()
    return array.numpy() if isinstance(array, symrail.DeviceArray) else array.copy()


def done_with(team):
    """Memory that was read may be overwritten, since all have read it."""
    torch.cuda.synchronize()
    team.barrier()


class Memory:
    """Arrays of several types and lengths in the same symmetric memory."""

    def __init__(self, nbytes):
        self.bytes = [symrail.array(nbytes, "uint8") for _ in range(2)]

    def arrays(self, dtype, lengths, skip=0):
        size = np.dtype(dtype).itemsize
        return [a[skip : skip + n * size].view(dtype) for a, n in zip(self.bytes, lengths)]


def copies(team, memory, stream, dtype, count):
    me, n = team.my_pe(), team.n_pes()
    there, mine = memory.arrays(dtype, (count * n, count))
    mine[...] = values(dtype, count, me)
    done_with(team)
    symrail.fcollect(team, there, mine, stream=stream)
    assert np.array_equal(host(there), of_all(dtype, count, n).ravel()), ("fcollect", dtype, count)
    done_with(team)
    short = count - (me > 0)
    there[...] = values(dtype, count * n, 9)
    done_with(team)
    symrail.collect(team, there, mine[:short], stream=stream)
    parts = np.concatenate([values(dtype, count, pe)[: count - (pe > 0)] for pe in range(n)])
    assert np.array_equal(host(there)[: len(parts)], parts), ("collect", dtype, count)
    for root in range(n):
        done_with(team)
        symrail.broadcast(team, there[:count], mine, root, stream=stream)
        assert np.array_equal(host(there)[:count], values(dtype, count, root)), ("broadcast", dtype, count, root)
    there, blocks = memory.arrays(dtype, (count * n, count * n))
    blocks[...] = (of_all(dtype, count, n) + np.array(me, dtype)).ravel()
    done_with(team)
    symrail.alltoall(team, there, blocks, stream=stream)
    wanted = np.stack([values(dtype, count, me) + np.array(pe, dtype) for pe in range(n)])
    assert np.array_equal(host(there), wanted.ravel()), ("alltoall", dtype, count)
    done_with(team)


def reductions(team, memory, stream, dtype, count, skip=0, ops=tuple(OPS)):
    me, n = team.my_pe(), team.n_pes()
    kind = np.dtype(dtype).kind
    for op in ops:
        if kind in "fc" and op in ("and", "or", "xor") or kind == "c" and op in ("min", "max"):
            continue
        result, mine = memory.arrays(dtype, (n * count, n * count), skip)
        mine[...] = values(dtype, n * count, me)
        result[...] = values(dtype, n * count, 77)
        done_with(team)
        more = {"dtype": dtype} if op in ("sum", "prod") else {}
        wanted = OPS[op](of_all(dtype, n * count, n), axis=0, **more)
        what = (op, dtype, count, skip)
        symrail.reduce(team, result, mine, op, stream=stream)
        assert np.array_equal(host(result), wanted), ("reduce", *what)
        done_with(team)
        symrail.reducescatter(team, result[:count], mine, op, stream=stream)
        assert np.array_equal(host(result)[:count], wanted[me * count : (me + 1) * count]), ("reducescatter", *what)
        done_with(team)
        symrail.reduce(team, mine, mine, op, stream=stream)
        assert np.array_equal(host(mine), wanted), ("reduce in place", *what)
        done_with(team)


def graphs(team, memory, count):
    me, n = team.my_pe(), team.n_pes()
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    names = ("fcollect", "alltoall", "broadcast", "collect", "reduce", "reducescatter")
    mine, total = symrail.array(count * n, "int32"), symrail.array(count * n, "int32")
    out = {name: symrail.array(count * n, "int32") for name in names}
    torch.cuda.synchronize()
    symrail.barrier_all()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        symrail.fcollect(team, out["fcollect"], mine[:count], stream=stream)
        symrail.alltoall(team, out["alltoall"], mine, stream=stream)
        symrail.broadcast(team, out["broadcast"], mine, n - 1, stream=stream)
        symrail.collect(team, out["collect"], mine[: count - me], stream=stream)
        symrail.reduce(team, out["reduce"], mine, "sum", stream=stream)
        symrail.reducescatter(team, out["reducescatter"][:count], mine, "max", stream=stream)
        symrail.reduce(team, total, out["reduce"], "min", stream=stream)
    for lap in range(5):
        mine[...] = values("int32", count * n, me, lap)
        done_with(team)
        graph.replay()
        found = {name: host(array) for name, array in out.items()}
        all_of = of_all("int32", count * n, n, lap)
        wanted = {
            "fcollect": all_of[:, :count].ravel(),
            "alltoall": all_of[:, me * count : (me + 1) * count].ravel(),
            "broadcast": all_of[n - 1],
            "collect": np.concatenate([all_of[pe][: count - pe] for pe in range(n)]),
            "reduce": all_of.sum(axis=0),
            "reducescatter": all_of.max(axis=0)[me * count : (me + 1) * count],
        }
        for name, numbers in wanted.items():
            assert np.array_equal(found[name][: len(numbers)], numbers), (name, lap)
        assert np.array_equal(host(total), wanted["reduce"]), lap
        symrail.quiet()
        done_with(team)


def without_streams(team, memory):
    """Arrays in GPUs' memory: the call waits."""
    n, (result, mine) = team.n_pes(), memory.arrays("float32", (3000, 3000))
    mine[...] = values("float32", 3000, team.my_pe())
    done_with(team)
    symrail.reduce(team, result, mine, "sum")
    found = result.numpy() if isinstance(result, symrail.DeviceArray) else result
    assert np.array_equal(found, of_all("float32", 3000, n).sum(axis=0))
    done_with(team)


def misuse(team, memory, stream):
    result, mine = memory.arrays("float32", (10, 10))
    for wrong, text in (((result, torch.zeros(10, device="cuda")), "symmetric"), ((result[:9], mine), "elements")):
        try:
            symrail.reduce(team, *wrong, stream=stream)
            raise AssertionError(text)
        except ArgumentError as error:
            assert text in str(error), error
    symrail.collect(team, result, mine, stream=stream)
    torch.cuda.synchronize()
    try:
        symrail.quiet()
        raise AssertionError("a collect without room was not refused")
    except OperationError as error:
        assert "too short" in str(error), error
    done_with(team)


def main():
    with symrail.init() as runtime:
        torch.cuda.set_device(runtime.device)
        world, stream = symrail.team_world(), torch.cuda.Stream()
        me, n = world.my_pe(), world.n_pes()
        memory = Memory(n * (4 << 20) + 64)
        try:
            for dtype in sys.argv[1:] or KINDS:
                copies(world, memory, stream, dtype, 7)
                reductions(world, memory, stream, dtype, 7)
                reductions(world, memory, stream, dtype, 9000, np.dtype(dtype).itemsize, ("sum", "max"))
            for count in (1, 3000, 70_000, 500_001):
                copies(world, memory, stream, "float64", count)
                reductions(world, memory, stream, "float64", count, 0, ("sum",))
            for team in (world.split_strided(n - 1, -1, n), world.split_strided(me, 1, 1)):
                copies(team, memory, stream, "int32", 1000)
                reductions(team, memory, stream, "int32", 40_000, 4, ("sum", "xor"))
                team.destroy()
            for count in (100, 100_000):
                graphs(world, memory, count)
            without_streams(world, memory)
            misuse(world, memory, stream)
        except BaseException:
            print(f"PE {me}: FAILED\n{traceback.format_exc()}", flush=True)
            os._exit(1)
        symrail.quiet()
        symrail.barrier_all()
        print(f"PE {me}: collectives on streams: well\n", end="", flush=True)


main()
