"""numba's kernels with `symrail.numba` on GPUs: `symrail run -n 2 -- python numba_kernels.py [NAME ...]`.

Works on device and pinned heaps, mapped or not; the variables SYMRAIL_… choose.
"""

import os
import sys
import time
import traceback
from pathlib import Path

import numpy as np
import symrail
import symrail.numba as shmem
from numba import cuda
from symrail.errors import ArgumentError, StateError, UnsupportedError

sys.path.insert(0, os.environ.get("SYMRAIL_EXAMPLES") or str(Path(__file__).parents[2] / "examples"))
import numba_all_reduce  # noqa: E402

TYPES = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "float32", "int64", "uint64", "float64")
WORDS = ("int32", "uint32", "int64", "uint64", "float32", "float64")


def copies_of(put, get, signalled, threads):
    """A kernel of one scope: a put, a get, and a put with a signal, by the first threads of the block."""

    @shmem.jit
    def kernel(there, here, back, inbox, signal, n, lap, pe):
        if cuda.threadIdx.x < threads:
            put(there, here, n, pe)
            shmem.quiet()
            get(back, there, n, pe)
            shmem.quiet()
            signalled(inbox, here, n, signal, lap, shmem.SIGNAL_SET, pe)
            if cuda.threadIdx.x == 0:
                shmem.signal_wait_until(signal, shmem.CMP_GE, lap)
            shmem.quiet()

    return kernel


SCOPES = {
    f"{scope or '_thread'}{nbi}": copies_of(*(getattr(shmem, name + nbi + scope) for name in ("put", "get", "put_signal")), n)
    for scope, n in (("", 1), ("_warp", 32), ("_block", 96))
    for nbi in ("", "_nbi")
}


class _OnGpu:
    """An array of a heap in pinned host memory, which kernels access at the same address."""

    def __init__(self, array):
        self.array, self.__cuda_array_interface__ = array, array.__array_interface__ | {"version": 3, "strides": None}


def view(array):
    return cuda.as_cuda_array(array if hasattr(array, "__cuda_array_interface__") else _OnGpu(array))


def check_copies(me, n):
    """Each scope and type: puts, gets, puts with a signal."""
    pe, last, count = (me + 1) % n, (me - 1) % n, 5000
    signal, lap = symrail.array(1, "int64"), 0
    for dtype in TYPES:
        arrays = [symrail.array(count, dtype) for _ in range(4)]
        there, here, back, inbox = (view(array) for array in arrays)
        for scope, kernel in SCOPES.items():
            for first, length in ((0, 1), (3, 17), (0, 4999)):
                lap += 1
                numbers = lambda of: ((np.arange(count) + 31 * of + lap) % 101).astype(dtype)  # noqa: B023, E731
                here.copy_to_device(numbers(me))
                for array in (there, back, inbox):
                    array.copy_to_device(np.zeros(count, dtype))
                cuda.synchronize()
                symrail.barrier_all()
                kernel[1, 96](there[first:], here[first:], back[first:], inbox[first:], view(signal), length, lap, pe)
                cuda.synchronize()
                symrail.barrier_all()
                for array, of in ((there, last), (back, me), (inbox, last)):
                    wanted = np.zeros(count, dtype)
                    wanted[first : first + length] = numbers(of)[first : first + length]
                    assert (array.copy_to_host() == wanted).all(), (dtype, scope, first, length)


@shmem.jit
def values(word, value, out, pe):
    shmem.p(word, value[0], pe)
    shmem.quiet()
    out[0] = shmem.g(word, pe)


def check_values(me, n):
    for dtype in TYPES:
        word, value, out = (view(symrail.array(1, dtype)) for _ in range(3))
        value.copy_to_device(np.array([100 + me], dtype))
        symrail.barrier_all()
        values[1, 1](word, value, out, (me + 1) % n)
        cuda.synchronize()
        symrail.barrier_all()
        assert out.copy_to_host()[0] == 100 + me, dtype
        assert word.copy_to_host()[0] == 100 + (me - 1) % n, dtype


@shmem.jit
def floats(word, out, pe):
    shmem.atomic_set(word, 5, pe)
    out[0] = shmem.atomic_fetch(word, pe)
    out[1] = shmem.atomic_fetch_add(word, 7, pe)
    shmem.atomic_add(word, 2, pe)
    shmem.quiet()
    out[2] = shmem.atomic_swap(word, 12, pe)
    out[3] = shmem.atomic_fetch(word, pe)


@shmem.jit
def integers(word, out, pe):
    shmem.atomic_set(word, 12, pe)
    out[4] = shmem.atomic_compare_swap(word, 12, 14, pe)
    out[5] = shmem.atomic_compare_swap(word, 12, 99, pe)
    out[6] = shmem.atomic_fetch_and(word, 6, pe)
    out[7] = shmem.atomic_fetch_or(word, 9, pe)
    out[8] = shmem.atomic_fetch_xor(word, 3, pe)
    shmem.atomic_and(word, 12, pe)
    shmem.atomic_or(word, 2, pe)
    shmem.atomic_xor(word, 1, pe)
    shmem.atomic_inc(word, pe)
    shmem.quiet()
    out[9] = shmem.atomic_fetch_inc(word, pe)


@shmem.jit
def counted(word, pe):
    shmem.atomic_add(word, 1, pe)
    shmem.quiet()


def check_atomics(me, n):
    for dtype in WORDS:
        word, out = view(symrail.array(1, dtype)), view(symrail.array(10, dtype))
        wanted = [5, 5, 14, 12, 0, 0, 0, 0, 0, 0]
        floats[1, 1](word, out, (me + 1) % n)
        if "float" not in dtype:
            wanted = [5, 5, 14, 12, 12, 14, 14, 6, 15, ((12 & 12 | 2) ^ 1) + 1]
            integers[1, 1](word, out, (me + 1) % n)
        assert out.copy_to_host().tolist() == wanted, (dtype, out.copy_to_host().tolist(), wanted)
        symrail.barrier_all()
        word.copy_to_device(np.zeros(1, dtype))
        symrail.barrier_all()
        counted[8, 32](word, 0)
        cuda.synchronize()
        symrail.barrier_all()
        assert word.copy_to_host()[0] == (256 * n if me == 0 else 0), (dtype, word.copy_to_host()[0])
        symrail.barrier_all()


def meeting_of(barrier, sync, threads):
    @shmem.jit
    def kernel(word, out, laps, team, pe):
        if cuda.threadIdx.x < threads:
            for lap in range(1, laps + 1):
                if cuda.threadIdx.x == 0:
                    shmem.p(word, lap, pe)
                barrier(team)
                if cuda.threadIdx.x == 0:
                    out[0] += shmem.test(word, shmem.CMP_EQ, lap)
                sync(team)
            if cuda.threadIdx.x == 0:
                out[1] = shmem.wait_until(word, shmem.CMP_NE, 0)
                out[2] = shmem.my_pe() * 1000 + shmem.n_pes()
                out[3] = shmem.team_my_pe(team) * 1000 + shmem.team_n_pes(team)
                out[4] = shmem.team_translate_pe(team, 0, 0)
                shmem.fence()

    return kernel


MEETINGS = {
    scope or "_thread": meeting_of(getattr(shmem, "barrier" + scope), getattr(shmem, "team_sync" + scope), threads)
    for scope, threads in (("", 1), ("_warp", 32), ("_block", 96))
}


def collected_of(broadcast, fcollect, alltoall, threads):
    @shmem.jit
    def kernel(there, here, n, team, root, what, out):
        if cuda.threadIdx.x < threads:
            failed = 0
            if what == 0:
                failed = broadcast(team, there, here, n, root)
            elif what == 1:
                failed = fcollect(team, there, here, n)
            else:
                failed = alltoall(team, there, here, n)
            if cuda.threadIdx.x == 0:
                out[0] = failed

    return kernel


COLLECTIVES = {
    scope or "_thread": collected_of(*(getattr(shmem, what + scope) for what in ("broadcast", "fcollect", "alltoall")), threads)
    for scope, threads in (("", 1), ("_warp", 32), ("_block", 96))
}


def check_collectives(me, n):
    count = 70
    numbers = np.arange(count * n, dtype="float64")
    here, there = (view(symrail.array(count * n, "float64")) for _ in range(2))
    out = view(symrail.array(1, "int64"))
    for scope, kernel in COLLECTIVES.items():
        for what, parts in enumerate((
            [numbers[:count] + n - 1],
            [numbers[:count] + pe for pe in range(n)],
            [numbers[me * count :][:count] + pe for pe in range(n)],
        )):
            here.copy_to_device(numbers + me)
            there.copy_to_device(np.full(count * n, -1.0))
            cuda.synchronize()
            symrail.barrier_all()
            kernel[1, 96](there, here, count, 0, n - 1, what, out)
            found, wanted = there.copy_to_host(), np.full(count * n, -1.0)
            wanted[: len(parts) * count] = np.concatenate(parts)
            assert (found == wanted).all() and out.copy_to_host()[0] == 0, (scope, what, found)
            symrail.barrier_all()


def all_meet_of(barrier, sync, threads):
    @shmem.jit
    def kernel(word, out, pe):
        if cuda.threadIdx.x < threads:
            for lap in range(1, 21):
                if cuda.threadIdx.x == 0:
                    shmem.p(word, lap, pe)
                barrier()
                if cuda.threadIdx.x == 0 and shmem.signal_fetch(word) == lap:
                    out[0] += 1
                sync()

    return kernel


ALL_MEET = [
    all_meet_of(getattr(shmem, "barrier_all" + scope), getattr(shmem, "sync_all" + scope), threads)
    for scope, threads in (("", 1), ("_warp", 32), ("_block", 96))
]


def check_order(me, n):
    world = symrail.team_world()
    pair = world.split_strided(0, 1, n)
    one = world.split_strided(me, 1, 1)
    for scope, kernel in MEETINGS.items():
        for team, first, size in ((0, 0, n), (pair.handle, 0, n), (one.handle, me, 1)):
            word, out = view(symrail.array(1, "int64")), view(symrail.array(5, "int64"))
            symrail.barrier_all()
            kernel[1, 96](word, out, 20, team, first + (me - first + 1) % size)
            found = out.copy_to_host().tolist()
            assert found == [20, 20, me * 1000 + n, (me - first) * 1000 + size, first], (scope, found)
            symrail.barrier_all()
    for kernel in ALL_MEET:
        word, out = view(symrail.array(1, "int64")), view(symrail.array(1, "int64"))
        symrail.barrier_all()
        kernel[1, 96](word, out, (me + 1) % n)
        assert out.copy_to_host()[0] == 20
        symrail.barrier_all()
    one.destroy()
    pair.destroy()


@shmem.jit
def peers(x, out, pe):
    there = shmem.peer(x, pe)
    i = cuda.threadIdx.x
    out[i] = there[i] if shmem.address(there) != 0 else -1.0


def check_peers(me, n):
    pe = (me + 1) % n
    x, out = view(symrail.array(96, "float32")), view(symrail.array(96, "float32"))
    x.copy_to_device(np.full(96, me + 0.5, "float32"))
    symrail.barrier_all()
    peers[1, 96](x, out, pe)
    wanted = pe + 0.5 if symrail.is_mapped(pe) else -1.0
    assert (out.copy_to_host() == wanted).all(), (out.copy_to_host()[:4], wanted)
    symrail.barrier_all()


def check_examples(me, n):
    assert numba_all_reduce.all_reduces()
    symrail.barrier_all()
    assert numba_all_reduce.passed_on()


def check_errors(me, n):
    x = view(symrail.array(4, "int64"))
    counted[1, 1](x, 0)
    cuda.synchronize()
    if len(cuda.gpus) > 1:
        other = (symrail.current().device + 1) % len(cuda.gpus)
        with cuda.gpus[other]:
            refused(ArgumentError, f"GPU {other}", counted[1, 1], x, 0)
    symrail.barrier_all()


def refused(error, text, call, *args, **named):
    try:
        call(*args, **named)
    except error as found:
        assert text in str(found), found
        return
    raise AssertionError("not refused")


@shmem.jit
def lap_of_graph(inbox, outbox, signal, laps, pe):
    """Passes the values on, one larger. `laps` is this PE's own count of laps."""
    lap = laps[0] + 1
    cuda.syncthreads()
    shmem.put_signal_block(inbox, outbox, inbox.size, signal, lap, shmem.SIGNAL_SET, pe)
    if cuda.threadIdx.x == 0:
        shmem.signal_wait_until(signal, shmem.CMP_GE, lap)
        laps[0] = lap
    cuda.syncthreads()
    for i in range(cuda.threadIdx.x, inbox.size, cuda.blockDim.x):
        outbox[i] = inbox[i] + 1
    shmem.barrier_all_block()


def check_graph(me, n):
    """A kernel that is captured in a graph of PyTorch, and replayed."""
    import torch

    inbox, outbox = (view(symrail.array(100, "float64")) for _ in range(2))
    signal, count = (view(symrail.array(1, "int64")) for _ in range(2))
    outbox.copy_to_device(np.full(100, float(me)))
    cuda.synchronize()
    symrail.barrier_all()
    pe, laps = (me + 1) % n, 10
    lap_of_graph[1, 128](inbox, outbox, signal, count, pe)
    cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        stream = cuda.external_stream(torch.cuda.current_stream().cuda_stream)
        lap_of_graph[1, 128, stream](inbox, outbox, signal, count, pe)
    for _ in range(laps - 1):
        graph.replay()
    torch.cuda.synchronize()
    # Each lap passes values of the PE before, one larger.
    assert (outbox.copy_to_host() == (me - laps) % n + laps).all(), outbox.copy_to_host()[:3]
    symrail.barrier_all()
    refused(UnsupportedError, "cache=True", shmem.jit, lap_of_graph.py_func, cache=True)


CHECKS = {name.removeprefix("check_"): check for name, check in list(globals().items()) if name.startswith("check_")}


def main():
    # The examples are for heaps in GPU memory.
    left_out = {"examples"} if os.environ.get("SYMRAIL_HEAP_KIND") == "pinned" else set()
    wanted, failed = sys.argv[1:] or [name for name in CHECKS if name not in left_out], 0
    refused(StateError, "init", counted[1, 1], None, 0)
    with symrail.init(heap=os.environ.get("SYMRAIL_HEAP_KIND", "device")):
        me, n = symrail.my_pe(), symrail.n_pes()
        cuda.select_device(symrail.current().device)
        for name in wanted:
            start, said = time.monotonic(), "right"
            try:
                CHECKS[name](me, n)
                cuda.synchronize()
                symrail.quiet()
            except Exception:  # noqa: BLE001
                failed, said = 1, "WRONG\n" + traceback.format_exc(limit=-6)
            if me == 0 or failed:
                print(f"numba {name}, PE {me}: {said} ({time.monotonic() - start:.1f} s)", flush=True)
            if failed:
                sys.exit(1)
    refused(StateError, "finalized", counted[1, 1], None, 0)
    if me == 0:
        print("numba errors before init and after finalize: right", flush=True)


if __name__ == "__main__":
    main()
