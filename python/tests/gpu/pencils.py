"""Pencils on GPUs by PyTorch and CuPy: transposes in the order of their streams, halos, and an FFT.

    SYMRAIL_HEAP_KIND=device symrail run -n 2 -- python3 pencils.py

Each step is printed with the seconds that it took.
"""

import os
import time

# All of PyTorch's kernels take 20 s to load. A PE loads those that it uses when its half of a round is enqueued.
os.environ["CUDA_MODULE_LOADING"] = "LAZY"

import numpy as np

import symrail
import symrail.decomp as decomp

BEGUN = time.monotonic()
since = BEGUN


def done(what):
    """Prints what PE 0 has done, with the seconds of this step and of all so far."""
    global since
    now = time.monotonic()
    if symrail.my_pe() == 0:
        print(f"{now - since:5.1f} s {now - BEGUN:5.1f} s  {what}", flush=True)
    since = now


def numbers(module, pencil, dtype):
    """The number of each element in the whole array."""
    x, y, z = (module.arange(pencil.start[dim], pencil.stop[dim]) for dim in range(3))
    every = (z[None, None, :] * 100 + y[None, :, None]) * 100 + x[:, None, None] + 1
    return every.to(pencil.array.device, dtype) if module.__name__ == "torch" else every.astype(dtype)


def check(module, dtype, symmetric, engines=None):
    n = symrail.n_pes()
    grid = decomp.Grid((24, 20, 17), (n, 1), order="axis", arrays=module, heap_bytes=8 << 20, engines=engines)
    done(f"{module.__name__}: a grid")
    assert grid.engines == engines or engines == "measured"
    x = grid.empty("x", dtype, symmetric=symmetric, halo=(1, 1, 1))
    x.array[:] = numbers(module, x, dtype)
    grid.halo(x, periodic=True)
    y = grid.empty("y", dtype, symmetric=symmetric)
    stream = module.cuda.Stream() if module.__name__ == "torch" else module.cuda.Stream(non_blocking=True)
    wait = module.cuda.synchronize if module.__name__ == "torch" else module.cuda.Device().synchronize
    wait()
    grid.transpose(x, y, stream=stream)
    z = grid.transpose(y, "z", stream=stream)
    stream.synchronize()
    for pencil in (y, z):
        assert bool((pencil.array == numbers(module, pencil, dtype)).all()), f"{module.__name__} {dtype} {pencil.axis}"
    first = x.whole[0, 1:-1, 1:-1]
    before = x.whole[-2, 1:-1, 1:-1]
    assert bool((first == before).all()), "the halo is periodic along the axis that is whole"
    grid.free()
    done(f"{module.__name__}: {x.dtype}, {'symmetric' if symmetric else 'private'}, engines {engines}")


def two_streams(torch):
    """PEs delay one of two streams each: all rounds with the grid's workspace are in the order of their calls."""
    n, me = symrail.n_pes(), symrail.my_pe()
    grid = decomp.Grid((64, 64, 64), (n, 1), arrays=torch, heap_bytes=32 << 20)
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    sources = []
    for factor in (1, 2):
        x = grid.empty("x", torch.float64)
        x.array[:] = numbers(torch, x, torch.float64) * factor
        sources.append(x)
    # Rounds with these buffers are known from here on.
    there = [grid.empty("y", torch.float64) for _ in sources]
    back = [grid.empty("x", torch.float64) for _ in sources]
    for k in (0, 1):
        grid.transpose(sources[k], there[k])
        grid.transpose(there[k], back[k])
    torch.cuda.synchronize()
    for turn in range(20):
        for pencil in there + back:
            pencil.array.fill_(-1)
        torch.cuda.synchronize()
        with torch.cuda.stream(streams[(me + turn) % 2]):
            torch.cuda._sleep(20_000_000)
        # One plan on two streams, and then another one with the same workspace.
        for k in (0, 1):
            grid.transpose(sources[k], there[k], stream=streams[k])
        for k in (0, 1):
            grid.transpose(there[k], back[k], stream=streams[k])
        torch.cuda.synchronize()
        for k in (0, 1):
            assert bool((there[k].array == numbers(torch, there[k], torch.float64) * (k + 1)).all()), (turn, k, "y")
            assert bool((back[k].array == sources[k].array).all()), (turn, k, "x")
    grid.free()
    done("torch: two streams")


def new_memory(torch):
    """A new pencil has the transpose, though its memory is still being written on another stream."""
    n = symrail.n_pes()
    grid = decomp.Grid((64, 64, 64), (n, 1), arrays=torch, heap_bytes=32 << 20)
    x = grid.empty("x", torch.float64)
    x.array[:] = numbers(torch, x, torch.float64)
    stream = torch.cuda.Stream()
    grid.transpose(x, "y", stream=stream)
    torch.cuda.synchronize()
    for _ in range(10):
        torch.cuda._sleep(20_000_000)
        y = grid.transpose(x, "y", stream=stream)
        torch.cuda.synchronize()
        assert bool((y.array == numbers(torch, y, torch.float64)).all()), "the pencil was written behind its transpose"
    grid.free()
    done("torch: new pencils on another stream")


def replayed(torch):
    """A plan with a larger workspace is made after a graph was captured: replays and the plan do not disturb each other."""
    n = symrail.n_pes()
    grid = decomp.Grid((32, 32, 32), (n, 1), arrays=torch, heap_bytes=32 << 20)
    x, y = grid.empty("x", torch.float32), grid.empty("y", torch.float32)
    x.array[:] = numbers(torch, x, torch.float32)
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    grid.transpose(x, y, stream=stream)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        grid.transpose(x, y, stream=stream)
    wide = grid.empty("x", torch.complex128)
    wide.array[:] = numbers(torch, wide, torch.complex128)
    there = grid.transpose(wide, "y")
    # The words of this plan take the first memory that is free.
    back = grid.transpose(there, "x")
    torch.cuda.synchronize()
    for turn in range(5):
        for pencil in (y, there, back):
            pencil.array.fill_(-1)
        torch.cuda.synchronize()
        graph.replay()
        torch.cuda.synchronize()
        grid.transpose(wide, there)
        grid.transpose(there, back)
        torch.cuda.synchronize()
        assert bool((y.array == numbers(torch, y, torch.float32)).all()), turn
        assert bool((there.array == numbers(torch, there, torch.complex128)).all()), turn
        assert bool((back.array == wide.array).all()), turn
    grid.free()
    done("torch: a graph from before a larger workspace")


def halos_replayed(torch):
    """A graph has halos of which two dimensions have no layers, so that their rounds launch nothing."""
    n = symrail.n_pes()
    grid = decomp.Grid((16, 16, 16), (n, 1), arrays=torch, heap_bytes=8 << 20)
    pencils = [grid.empty("x", torch.float32, halo=widths) for widths in ((1, 0, 0), (0, 1, 0))]
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    # Twice, since the second plan may replace the workspace.
    for pencil in pencils * 2:
        pencil.array[:] = numbers(torch, pencil, torch.float32)
        torch.cuda.synchronize()
        grid.halo(pencil, periodic=True, stream=stream)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(2):
            for pencil in pencils:
                grid.halo(pencil, periodic=True, stream=stream)
    first, second = (pencil.whole for pencil in pencils)
    for _ in range(3):
        first[0], first[-1], second[:, 0], second[:, -1] = -1, -1, -1, -1
        torch.cuda.synchronize()
        symrail.barrier_all()
        graph.replay()
        torch.cuda.synchronize()
        assert bool((first[0] == first[-2]).all() and (first[-1] == first[1]).all()), "along X"
        below, above = (pencils[1].start[1] - 1) % 16, pencils[1].stop[1] % 16
        own = numbers(torch, pencils[1], torch.float32)[:, 0] - pencils[1].start[1] * 100
        assert bool((second[:, 0] == own + below * 100).all() and (second[:, -1] == own + above * 100).all()), "along Y"
    grid.free()
    done("torch: halos in graphs")


def refused(torch):
    """A PE that hears of a refused round takes part in the round of the call that raises it."""
    n, me = symrail.n_pes(), symrail.my_pe()
    grid = decomp.Grid((32, 32, 32), (n, 1), arrays=torch, heap_bytes=32 << 20)
    x, y = grid.empty("x", torch.float64), grid.empty("y", torch.float64)
    x.array[:] = numbers(torch, x, torch.float64)
    torch.cuda.synchronize()
    grid.transpose(x, y)
    torch.cuda.synchronize()
    both = torch.zeros(x._memory.numel() + y._memory.numel(), dtype=torch.float64, device=x.array.device)
    none = (0, 0, 0)
    for turn in range(3):
        # PE 0's arrays overlap in this round.
        source = grid._pencil("x", both[: x._memory.numel()], none, none) if me == 0 else x
        dest = grid._pencil("y", both[2 : 2 + y._memory.numel()], none, none) if me == 0 else y
        told = []
        for arrays in ((source, dest), (x, y)):
            try:
                grid.transpose(*arrays)
            except symrail.errors.ArgumentError as error:
                told.append(str(error))
            torch.cuda.synchronize()
            symrail.barrier_all()
        assert len(told) == 1 and ("overlap" in told[0]), told
        assert bool((y.array == numbers(torch, y, torch.float64)).all()), (turn, told)
        y.array.fill_(-1)
        torch.cuda.synchronize()
    grid.free()
    done("torch: a round that one PE refuses")


def refused_before_a_round(torch):
    """A call that one PE is refused by Python: all compare a first one of its axes; of a later one the others hear."""
    n, me = symrail.n_pes(), symrail.my_pe()
    grid = decomp.Grid((32, 32, 32), (n, 1), arrays=torch, heap_bytes=32 << 20)
    x, y, z = (grid.empty(axis, torch.float64, halo=(1, 1, 1) if axis == "x" else (0, 0, 0)) for axis in "xyz")
    other_y, other_z = (grid.empty(axis, torch.float32) for axis in "yz")
    x.array[:] = numbers(torch, x, torch.float64)
    torch.cuda.synchronize()

    def errors(*calls):
        raised = []
        for call in calls:
            try:
                call()
            except (symrail.errors.ArgumentError, symrail.errors.DifferError) as error:
                raised.append(error)
            torch.cuda.synchronize()
            symrail.barrier_all()
        return raised

    grid.transpose(x, y)
    grid.halo(x, periodic=True)
    # There is a plan of X to Y, and none of Y to Z.
    first = errors(lambda: grid.transpose(y, z if me else other_z), lambda: grid.transpose(y, z))
    assert len(first) == 1 and isinstance(first[0], symrail.errors.ArgumentError if me == 0 else symrail.errors.DifferError)
    assert bool((z.array == numbers(torch, z, torch.float64)).all())
    for turn in range(3):
        y.array.fill_(-1)
        x.whole[:, 0] = -1
        torch.cuda.synchronize()
        later = errors(
            lambda: grid.transpose(x, y if me else other_y), lambda: grid.transpose(x, y), lambda: grid.transpose(x, y)
        )
        assert len(later) == 1, later
        assert bool((y.array == numbers(torch, y, torch.float64)).all()), turn
        periodic = True if me else (True, False)
        later = errors(lambda: grid.halo(x, periodic=periodic), *[lambda: grid.halo(x, periodic=True)] * 2)
        assert len(later) == (1 if me in (0, 1, n - 1) else 0), later
        below = numbers(torch, x, torch.float64)[:, 0] + ((x.start[1] - 1) % 32 - x.start[1]) * 100
        assert bool((x.whole[1:-1, 0, 1:-1] == below).all()), turn
    grid.free()
    done("torch: calls that one PE is refused")


def fft(torch):
    """A forward transform of a wave has one term."""
    grid = decomp.Grid((32, 32, 32), arrays=torch)
    x = grid.empty("x", torch.complex128)
    at = torch.arange(32, dtype=torch.float64, device=x.array.device)[:, None, None] * (2 * np.pi * 3 / 32)
    x.array[:] = torch.exp(1j * at)
    for dim, axis in enumerate("xyz"):
        pencil = x if axis == "x" else grid.transpose(pencil, axis)
        pencil.array.copy_(torch.fft.fft(pencil.array, dim=dim))
    torch.cuda.synchronize()
    term = float(pencil.array.abs().sum()) if pencil.start[0] <= 3 < pencil.stop[0] and pencil.start[1] == 0 else 0.0
    assert term == 0.0 or abs(term - 32**3) < 1e-6, term
    grid.free()


def main():
    with symrail.init():
        done("joined")
        import torch

        torch.cuda.set_device(symrail.current().device)
        torch.zeros(1, device="cuda")
        done("torch")
        for symmetric in (False, True):
            for dtype in (torch.float32, torch.complex128):
                check(torch, dtype, symmetric)
        for engines in (0, 4096, "measured"):
            check(torch, torch.complex128, True, engines)
        two_streams(torch)
        new_memory(torch)
        replayed(torch)
        halos_replayed(torch)
        if symrail.n_pes() > 1:
            refused(torch)
            refused_before_a_round(torch)
        fft(torch)
        done("torch: an FFT on a grid that was measured")
        try:
            import cupy
        except ImportError:
            cupy = None
        if cupy is not None:
            cupy.cuda.Device(symrail.current().device).use()
            done("cupy")
            for symmetric in (False, True):
                check(cupy, np.float64, symmetric)
        if symrail.my_pe() == 0:
            print("well: pencils by PyTorch" + (" and CuPy" if cupy else ""))


main()
