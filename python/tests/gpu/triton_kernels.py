"""Triton kernels with `symrail.triton` on GPUs: `symrail run -n 2 -- python triton_kernels.py [NAME ...]`.

Works on device and pinned heaps, mapped or not; the variables SYMRAIL_… choose.
"""

import itertools
import os
import sys
import time
import traceback
from pathlib import Path

import symrail
import symrail.triton as shmem
import symrail.triton.nvshmem as nvshmem
import torch
import triton
import triton.language as tl
from symrail.errors import ArgumentError, StateError

sys.path.insert(0, os.environ.get("SYMRAIL_EXAMPLES") or str(Path(__file__).parents[2] / "examples"))
import triton_all_gather_matmul  # noqa: E402
import triton_all_reduce  # noqa: E402

TYPES = ("int8", "uint8", "int16", "float16", "int32", "float32", "int64", "float64")


class _OnGpu:
    """An array of a heap in pinned host memory, which kernels access at the same address."""

    def __init__(self, array):
        self.array, self.__cuda_array_interface__ = array, array.__array_interface__ | {"version": 3, "strides": None}


def tensor(array):
    return array.tensor() if hasattr(array, "tensor") else torch.as_tensor(_OnGpu(array), device="cuda")


@shmem.jit(
    do_not_specialize=["n", "pe"], do_not_specialize_on_alignment=["there", "here", "back"]
)
def copies(there, here, back, n, pe, SCOPE: tl.constexpr, NBI: tl.constexpr):
    if NBI:
        shmem.put_nbi(there, here, n, pe, SCOPE)
    else:
        shmem.put(there, here, n, pe, SCOPE)
    shmem.quiet()
    if NBI:
        shmem.get_nbi(back, there, n, pe, SCOPE)
        shmem.quiet()
    else:
        shmem.get(back, there, n, pe, SCOPE)


def check_copies(me, n):
    """Puts and gets: each scope, type and length, blocking or not."""
    pe = (me + 1) % n
    for dtype in TYPES:
        there, here, back = (symrail.array(70_000, dtype) for _ in range(3))
        source = torch.arange(70_000, device="cuda").add_(31 * me).remainder_(101).to(tensor(here).dtype)
        tensor(here).copy_(source)
        for scope in ("thread", "warp", "block") if dtype in ("uint8", "float32") else ("block",):
            for nbi in (False, True) if dtype in ("uint8", "float32") else (False,):
                for first, count in ((0, 1), (3, 17), (0, 1024), (8, 69_000)):
                    tensor(there).zero_()
                    tensor(back).zero_()
                    torch.cuda.synchronize()
                    symrail.barrier_all()
                    views = [tensor(array)[first:] for array in (there, here, back)]
                    copies[(1,)](*views, count, pe, SCOPE=scope, NBI=nbi, num_warps=4)
                    torch.cuda.synchronize()
                    symrail.barrier_all()
                    seen = torch.arange(70_000, device="cuda").add_(31 * ((me - 1) % n)).remainder_(101)
                    seen = seen.to(source.dtype)
                    wanted = torch.zeros_like(source)
                    wanted[first : first + count] = seen[first : first + count]
                    assert torch.equal(tensor(there), wanted), (dtype, scope, nbi, first, count, "put")
                    wanted[first : first + count] = source[first : first + count]
                    assert torch.equal(tensor(back), wanted), (dtype, scope, nbi, first, count, "get")
                    symrail.barrier_all()


@shmem.jit(do_not_specialize=["n", "lap", "pe"])
def signalled(inbox, outbox, signal, out, n, lap, pe, SCOPE: tl.constexpr, NBI: tl.constexpr):
    if NBI:
        shmem.put_signal_nbi(inbox, outbox, n, signal, lap, shmem.SIGNAL_SET, pe, SCOPE)
    else:
        shmem.put_signal(inbox, outbox, n, signal, 1, shmem.SIGNAL_ADD, pe, SCOPE)
    seen = shmem.signal_wait_until(signal, shmem.CMP_GE, lap)
    tl.store(out, seen)
    shmem.get(out + 1, inbox, n, shmem.my_pe(), SCOPE)
    shmem.quiet()


def check_signals(me, n):
    """Puts with a signal: who observes the signal observes the data."""
    pe, count = (me + 1) % n, 5_000
    inbox, outbox, out = symrail.array(count, "int64"), symrail.array(count, "int64"), symrail.array(count + 1, "int64")
    signal, lap = symrail.array(1, "int64"), 0
    for scope in ("thread", "warp", "block"):
        for nbi in (False, True):
            for length in (1, 7, count):
                lap += 1
                tensor(outbox).copy_(torch.arange(count, device="cuda") * lap + me)
                torch.cuda.synchronize()
                symrail.barrier_all()
                signalled[(1,)](
                    *(tensor(array) for array in (inbox, outbox, signal, out)), length, lap, pe, SCOPE=scope, NBI=nbi
                )
                found = tensor(out).cpu()
                wanted = torch.arange(length) * lap + (me - 1) % n
                assert found[0] == lap, (scope, nbi, length, int(found[0]), lap)
                assert torch.equal(found[1 : length + 1], wanted), (scope, nbi, length)
                symrail.barrier_all()


@shmem.jit(do_not_specialize=["pe"])
def values(word, value, out, pe):
    shmem.p(word, tl.load(value), pe)
    shmem.quiet()
    tl.store(out, shmem.g(word, pe))


def check_values(me, n):
    for dtype in (*TYPES, "uint32", "uint64"):
        word, value, out = (symrail.array(1, dtype) for _ in range(3))
        tensor(value).copy_(torch.tensor([100 + me], device="cuda").to(tensor(value).dtype))
        torch.cuda.synchronize()
        symrail.barrier_all()
        values[(1,)](tensor(word), tensor(value), tensor(out), (me + 1) % n)
        torch.cuda.synchronize()
        symrail.barrier_all()
        assert tensor(out).item() == 100 + me, (dtype, tensor(out).item())
        assert tensor(word).item() == 100 + (me - 1) % n, (dtype, tensor(word).item())


@shmem.jit(do_not_specialize=["pe"])
def atomics(word, out, pe, WHOLE: tl.constexpr):
    shmem.atomic_set(word, 5, pe)
    tl.store(out, shmem.atomic_fetch(word, pe))
    tl.store(out + 1, shmem.atomic_fetch_add(word, 7, pe))
    shmem.atomic_add(word, 2, pe)
    shmem.quiet()
    tl.store(out + 2, shmem.atomic_swap(word, 12, pe))
    tl.store(out + 3, shmem.atomic_fetch(word, pe))
    if WHOLE:
        tl.store(out + 4, shmem.atomic_compare_swap(word, 12, 14, pe))
        tl.store(out + 5, shmem.atomic_compare_swap(word, 12, 99, pe))
        tl.store(out + 6, shmem.atomic_fetch_and(word, 6, pe))
        tl.store(out + 7, shmem.atomic_fetch_or(word, 9, pe))
        tl.store(out + 8, shmem.atomic_fetch_xor(word, 3, pe))
        shmem.atomic_and(word, 12, pe)
        shmem.atomic_or(word, 2, pe)
        shmem.atomic_xor(word, 1, pe)
        shmem.quiet()
        tl.store(out + 9, shmem.atomic_fetch(word, pe))


@shmem.jit(do_not_specialize=["pe"])
def counted(word, pe):
    shmem.atomic_add(word, 1, pe)
    shmem.quiet()


def check_atomics(me, n):
    for dtype in ("int32", "uint32", "int64", "uint64", "float32", "float64"):
        word, out = symrail.array(1, dtype), symrail.array(10, dtype)
        symrail.barrier_all()
        whole = "float" not in dtype
        for warps in (1, 4):
            atomics[(1,)](tensor(word), tensor(out), (me + 1) % n, WHOLE=whole, num_warps=warps)
            found = [int(x) for x in tensor(out).cpu().tolist()]
            wanted = [5, 5, 14, 12, 12, 14, 14, 6, 15, (12 & 12 | 2) ^ 1] if whole else [5, 5, 14, 12, 0, 0, 0, 0, 0, 0]
            assert found == wanted, (dtype, warps, found, wanted)
            torch.cuda.synchronize()
            symrail.barrier_all()
        tensor(word).zero_()
        torch.cuda.synchronize()
        symrail.barrier_all()
        counted[(64,)](tensor(word), 0, num_warps=4)
        torch.cuda.synchronize()
        symrail.barrier_all()
        assert tensor(word).item() == (64 * n if me == 0 else 0), (dtype, tensor(word).item())
        symrail.barrier_all()


@shmem.jit
def meeting(word, out, laps, pe):
    for lap in range(1, laps + 1):
        shmem.p(word, lap, pe)
        shmem.barrier_all()
        tl.store(out, tl.load(out) + (tl.load(word, volatile=True) == lap).to(tl.int64))
        shmem.sync_all()
    tl.store(out + 1, shmem.test(word, shmem.CMP_EQ, laps))
    tl.store(out + 2, shmem.wait_until(word, shmem.CMP_NE, 0))
    tl.store(out + 3, shmem.my_pe() * 1000 + shmem.n_pes())
    shmem.fence()


def check_order(me, n):
    word, out = symrail.array(1, "int64"), symrail.array(4, "int64")
    symrail.barrier_all()
    meeting[(1,)](tensor(word), tensor(out), 50, (me + 1) % n)
    found = tensor(out).cpu().tolist()
    assert found == [50, 1, 50, me * 1000 + n], found
    symrail.barrier_all()


@shmem.jit
def peers(x, out, pe, BLOCK: tl.constexpr):
    there = shmem.peer(x, pe)
    at = tl.arange(0, BLOCK)
    mapped = there.to(tl.int64) != 0
    tl.store(out + at, tl.load(there + at, mask=mapped & (at < BLOCK), other=-1.0))


def check_peers(me, n):
    pe = (me + 1) % n
    x, out = symrail.array(1024, "float32"), symrail.array(1024, "float32")
    tensor(x).fill_(me + 0.5)
    torch.cuda.synchronize()
    symrail.barrier_all()
    peers[(1,)](tensor(x), tensor(out), pe, BLOCK=1024)
    wanted = pe + 0.5 if symrail.is_mapped(pe) else -1.0
    assert (tensor(out) == wanted).all(), (tensor(out)[:4], wanted)
    symrail.barrier_all()


def check_all_reduce(me, n):
    assert triton_all_reduce.all_reduces()
    symrail.barrier_all()


def check_pipeline(me, n):
    assert triton_all_reduce.passed_on()


def check_matmul(me, n):
    assert triton_all_gather_matmul.products()


@shmem.jit
def in_team(word, out, team, pe):
    for lap in range(1, 21):
        shmem.p(word, lap, pe)
        shmem.barrier(team)
        tl.store(out, tl.load(out) + (tl.load(word, volatile=True) == lap).to(tl.int64))
        shmem.team_sync(team)
    tl.store(out + 1, shmem.team_my_pe(team) * 1000 + shmem.team_n_pes(team))
    tl.store(out + 2, shmem.team_translate_pe(team, 0, 0))


@shmem.jit(do_not_specialize=["n", "team", "root"])
def collected(there, here, n, team, root, WHAT: tl.constexpr, SCOPE: tl.constexpr):
    if WHAT == "broadcast":
        shmem.broadcast(team, there, here, n, root, SCOPE)
    elif WHAT == "fcollect":
        shmem.fcollect(team, there, here, n, SCOPE)
    else:
        shmem.alltoall(team, there, here, n, SCOPE)


def check_collectives(me, n):
    """Of all PEs and of a team of one, with lengths around the sizes of pieces."""
    one = symrail.team_world().split_strided(me, 1, 1)
    for dtype in ("int8", "float32"):
        for count in (1, 31, 1024):
            here, there = (tensor(symrail.array(count * n, dtype)) for _ in range(2))
            numbers = (torch.arange(count * n, device="cuda") % 50).to(here.dtype)
            for scope, what in itertools.product(("thread", "warp", "block"), ("broadcast", "fcollect", "alltoall")):
                for team, members in ((0, range(n)), (one.handle, range(me, me + 1))):
                    case, size = (dtype, count, scope, what, team != 0), len(members)
                    here.copy_(numbers + me)
                    there.fill_(-1)
                    torch.cuda.synchronize()
                    symrail.barrier_all()
                    collected[(1,)](there, here, count, team, size - 1, WHAT=what, SCOPE=scope)
                    parts = {
                        "broadcast": [numbers[:count] + members[-1]],
                        "fcollect": [numbers[:count] + pe for pe in members],
                        "alltoall": [numbers[(me - members[0]) * count :][:count] + pe for pe in members],
                    }[what]
                    wanted = torch.full_like(there, -1)
                    wanted[: len(parts) * count] = torch.cat(parts)
                    assert torch.equal(there, wanted), case
                    symrail.barrier_all()
    one.destroy()


def check_teams(me, n):
    """All PEs as a team of their own, a team of one, and the world."""
    world = symrail.team_world()
    whole, one = world.split_strided(0, 1, n), world.split_strided(me, 1, 1)
    for team, first, size in ((0, 0, n), (whole.handle, 0, n), (one.handle, me, 1)):
        word, out = symrail.array(1, "int64"), symrail.array(3, "int64")
        symrail.barrier_all()
        in_team[(1,)](tensor(word), tensor(out), team, first + (me - first + 1) % size)
        found = tensor(out).cpu().tolist()
        assert found == [20, (me - first) * 1000 + size, first], (found, first, size)
        symrail.barrier_all()
    one.destroy()
    whole.destroy()


@nvshmem.requires_nvshmem
@triton.jit
def for_nvshmem(inbox, outbox, back, word, signal, out, n, pe):
    """As kernels that are written for PyTorch's functions on NVSHMEM."""
    nvshmem.put(inbox, outbox, n, pe)
    nvshmem.barrier_all()
    nvshmem.get(back, inbox, n, pe)
    nvshmem.get_nbi(back + n, inbox, n, pe)
    nvshmem.quiet()
    nvshmem.sync_all()
    nvshmem.putmem_signal_block(inbox + n, outbox, n * 4, signal, 7, 9, pe)
    nvshmem.signal_wait_until(signal, 0, 7)
    nvshmem.fence()
    nvshmem.signal_op((signal + 1).to(tl.int64), 5, 10, pe)
    nvshmem.signal_wait_until(signal + 1, 3 + 2, 5)
    nvshmem.put(word, signal.to(tl.pointer_type(tl.int32)), 1, pe)
    nvshmem.wait_until(word, 1, 0)
    nvshmem.barrier_all()
    nvshmem.broadcast(0, back, outbox, n, 0)
    nvshmem.alltoall(0, out + 1, signal, 1)
    tl.store(out, nvshmem.my_pe() * 1000 + nvshmem.n_pes())


def check_nvshmem(me, n):
    pe, last, count = (me + 1) % n, (me - 1) % n, 3000
    inbox, outbox, back = (tensor(symrail.array(2 * count, "float32")) for _ in range(3))
    word, signal, out = (tensor(symrail.array(2 + n, dtype)) for dtype in ("int32", "int64", "int64"))
    numbers = torch.arange(count, device="cuda").float()
    outbox[:count] = numbers + me
    torch.cuda.synchronize()
    symrail.barrier_all()
    for_nvshmem[(1,)](inbox, outbox, back, word, signal, out, count, pe)
    assert torch.equal(inbox.view(2, -1), (numbers + last).expand(2, -1)), "put"
    assert torch.equal(back[count:], numbers + me), "get"
    assert torch.equal(back[:count], numbers), "broadcast"
    assert out[0].item() == me * 1000 + n and word[0].item() == 7 and signal.tolist() == [7, 5] + [0] * n
    assert out[1 : 1 + n].tolist() == [([7, 5] + [0] * n)[me]] * n, "alltoall"
    symrail.barrier_all()


@shmem.jit
def names(out, team):
    tl.store(out, shmem.my_pe())
    tl.store(out + 1, shmem.team_my_pe(0))
    tl.store(out + 2, shmem.team_my_pe(team))
    tl.store(out + 3, shmem.n_pes())
    tl.store(out + 4, shmem.team_n_pes(0))
    tl.store(out + 5, shmem.team_n_pes(team))


@shmem.jit
def rows(data, signals, n, KIND: tl.constexpr, SCOPE: tl.constexpr, NBI: tl.constexpr):
    """Program p exchanges a row with PE p: gets its row, or puts this PE's there, with or without a signal."""
    me, pe = shmem.my_pe(), tl.program_id(0)
    mine = data + me * n
    if pe != me:
        if KIND == "get":
            theirs = data + pe * n
            if NBI:
                shmem.get_nbi(theirs, theirs, n, pe, SCOPE)
            else:
                shmem.get(theirs, theirs, n, pe, SCOPE)
        if KIND == "put":
            if NBI:
                shmem.put_nbi(mine, mine, n, pe, SCOPE)
            else:
                shmem.put(mine, mine, n, pe, SCOPE)
        if KIND == "put_signal":
            if NBI:
                shmem.put_signal_nbi(mine, mine, n, signals + me, 1, shmem.SIGNAL_SET, pe, SCOPE)
            else:
                shmem.put_signal(mine, mine, n, signals + me, 1, shmem.SIGNAL_SET, pe, SCOPE)
            shmem.signal_wait_until(signals + pe, shmem.CMP_EQ, 1)
    shmem.quiet()


def check_rows(me, n):
    """The cases of Triton-distributed's test of NVSHMEM's functions, but its collectives and multicast stores."""
    out = tensor(symrail.array(6, "int64"))
    team = symrail.team_world().split_strided(0, 1, n)
    names[(1,)](out, team.handle)
    assert out.tolist() == [me, me, me, n, n, n], out
    team.destroy()
    for dtype in ("int8", "float16", "float32", "int64"):
        # Both are multiples of 16: one kernel serves them.
        for count in (16, 1 << 16):
            data, signals = tensor(symrail.array((n, count), dtype)), tensor(symrail.array(n, "int64"))
            wanted = torch.arange(1, n + 1, device="cuda").to(data.dtype)[:, None].expand(n, count)
            for kind in ("get", "put", "put_signal"):
                for scope in ("block", "warp", "thread"):
                    for nbi in (True, False):
                        data.fill_(me + 1)
                        signals.zero_()
                        torch.cuda.synchronize()
                        symrail.barrier_all()
                        warps = 1 if scope == "warp" else 4
                        rows[(n,)](data, signals, count, KIND=kind, SCOPE=scope, NBI=nbi, num_warps=warps)
                        torch.cuda.synchronize()
                        symrail.barrier_all()
                        assert torch.equal(data, wanted), (dtype, count, kind, scope, nbi)
                        if kind == "put_signal":
                            assert signals.tolist() == [int(pe != me) for pe in range(n)], (scope, nbi, signals)


@shmem.jit
def lap_of_graph(inbox, outbox, signal, out, lap, n, pe):
    tl.store(lap, tl.load(lap) + 1)
    shmem.put_signal(inbox, outbox, n, signal, 1, shmem.SIGNAL_ADD, pe)
    shmem.signal_wait_until(signal, shmem.CMP_GE, tl.load(lap))
    shmem.get(out, inbox, n, shmem.my_pe())
    shmem.barrier_all()


def check_graph(me, n):
    count = 3000
    inbox, outbox, out = (symrail.array(count, "float32") for _ in range(3))
    signal, lap = symrail.array(1, "int64"), symrail.array(1, "int64")
    symrail.barrier_all()
    args = [*(tensor(array) for array in (inbox, outbox, signal, out, lap)), count, (me + 1) % n]
    lap_of_graph[(1,)](*args)
    torch.cuda.synchronize()
    symrail.barrier_all()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tensor(outbox).add_(1)
        lap_of_graph[(1,)](*args)
    tensor(outbox).fill_(me)
    torch.cuda.synchronize()
    symrail.barrier_all()
    for replay in range(1, 21):
        graph.replay()
        torch.cuda.synchronize()
        assert (tensor(out) == (me - 1) % n + replay).all(), (replay, tensor(out)[:4])
    symrail.barrier_all()


@triton.autotune([triton.Config({"BLOCK": 256}), triton.Config({"BLOCK": 1024}, num_warps=8)], key=["n"])
@shmem.jit
def tuned(x, out, n, pe, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n, other=0.0) + shmem.g(x, pe), mask=at < n)


def check_autotuned(me, n):
    x, out = symrail.array(4096, "float32"), symrail.array(4096, "float32")
    tensor(x).fill_(me + 1)
    torch.cuda.synchronize()
    symrail.barrier_all()
    tuned[lambda meta: (triton.cdiv(4096, meta["BLOCK"]),)](tensor(x), tensor(out), 4096, (me + 1) % n)
    assert (tensor(out) == me + 1 + (me + 1) % n + 1).all(), tensor(out)[:4]
    torch.cuda.synchronize()
    symrail.barrier_all()


@shmem.jit(do_not_specialize=["n", "me"])
def ping_pong(inbox, outbox, signal, n, laps, me, SCOPE: tl.constexpr):
    for lap in range(1, laps + 1):
        if me == 0:
            shmem.put_signal_nbi(inbox, outbox, n, signal, lap, shmem.SIGNAL_SET, 1, SCOPE)
        shmem.signal_wait_until(signal, shmem.CMP_GE, lap)
        if me == 1:
            shmem.put_signal_nbi(inbox, outbox, n, signal, lap, shmem.SIGNAL_SET, 0, SCOPE)
    shmem.quiet()


CUDA_PING_PONG = """
#include <symrail_device.cuh>
template <int SCOPE> __device__ void send(char* to, char* from, size_t n, symrail_u64* signal, symrail_u64 lap, int pe) {
    if (SCOPE == 2) symrailx_putmem_signal_nbi_block(to, from, n, signal, lap, SYMRAIL_SIGNAL_SET, pe);
    if (SCOPE == 1 && threadIdx.x < 32) symrailx_putmem_signal_nbi_warp(to, from, n, signal, lap, SYMRAIL_SIGNAL_SET, pe);
    if (SCOPE == 0 && threadIdx.x == 0) symrail_putmem_signal_nbi(to, from, n, signal, lap, SYMRAIL_SIGNAL_SET, pe);
}
template <int SCOPE> __device__ void run(char* to, char* from, symrail_u64* signal, size_t n, int laps, int me) {
    for (int lap = 1; lap <= laps; lap++) {
        if (me == 0) send<SCOPE>(to, from, n, signal, lap, 1);
        if (threadIdx.x == 0) symrail_signal_wait_until(signal, SYMRAIL_CMP_GE, lap);
        __syncthreads();
        if (me == 1) send<SCOPE>(to, from, n, signal, lap, 0);
    }
    __syncthreads();
    if (threadIdx.x == 0) symrail_quiet();
}
#define ARGS char *to, char *from, symrail_u64 *signal, size_t n, int laps, int me
extern "C" __global__ void thread(ARGS) { run<0>(to, from, signal, n, laps, me); }
extern "C" __global__ void warp(ARGS) { run<1>(to, from, signal, n, laps, me); }
extern "C" __global__ void block(ARGS) { run<2>(to, from, signal, n, laps, me); }
"""


def check_latency(me, n):
    """Half a round trip of put-with-signal in microseconds, beside the CUDA header's; it checks nothing."""
    try:
        import cupy

        include = os.environ["SYMRAIL_INCLUDE"]
        module = cupy.RawModule(code=CUDA_PING_PONG, options=("-std=c++17", f"-I{include}"))
        kernels = {scope: module.get_function(scope) for scope in ("thread", "warp", "block")}
        symrail.current().attach_module(module.module.ptr)
    except Exception as why:  # noqa: BLE001
        print(f"    no CUDA kernels beside: {why!r}"[:300], flush=True)
        kernels = {}
    inbox, outbox = symrail.array(1 << 20, "uint8"), symrail.array(1 << 20, "uint8")
    signal = symrail.array(1, "int64")
    laps = 2000 if symrail.is_mapped((me + 1) % n) else 200
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    cases = (("thread", 1, 8), ("block", 1, 8), ("block", 4, 8), ("block", 8, 65536), ("block", 16, 1 << 20))
    for scope, warps, nbytes in cases:
        line = []
        for kind in ("triton", "cuda") if kernels else ("triton",):
            best = float("inf")
            for _ in range(4):
                tensor(signal).zero_()
                torch.cuda.synchronize()
                symrail.barrier_all()
                start.record()
                if kind == "triton":
                    ping_pong[(1,)](
                        tensor(inbox), tensor(outbox), tensor(signal), nbytes, laps, me, SCOPE=scope, num_warps=warps
                    )
                else:
                    import numpy

                    stream = cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream)
                    pointers = [numpy.uint64(tensor(array).data_ptr()) for array in (inbox, outbox, signal)]
                    sizes = (numpy.uint64(nbytes), numpy.int32(laps), numpy.int32(me))
                    with stream:
                        kernels[scope]((1,), (32 * warps,), (*pointers, *sizes))
                end.record()
                torch.cuda.synchronize()
                best = min(best, start.elapsed_time(end) * 1000 / laps / 2)
                symrail.barrier_all()
            line.append(f"{kind} {best:.2f} us")
        if me == 0:
            print(f"    put_signal {nbytes} B, {scope}, {warps} warps: {', '.join(line)}", flush=True)


# ptxas reads a kernel's parameters anew in each lap, also as addresses: the latter are computed, as most kernels do.
@shmem.jit(do_not_specialize=["n", "laps"])
def stream(there, here, n, laps, WAIT: tl.constexpr):
    there += tl.program_id(0) * n
    here += tl.program_id(0) * n
    for _ in range(laps):
        if WAIT:
            shmem.put(there, here, n, 1)
        else:
            shmem.put_nbi(there, here, n, 1)
    shmem.quiet()


@shmem.jit(do_not_specialize=["laps", "me"])
def signals_only(signal, laps, me):
    for lap in range(1, laps + 1):
        if me == 0:
            shmem.signal_op(signal, lap, shmem.SIGNAL_SET, 1)
        shmem.signal_wait_until(signal, shmem.CMP_GE, lap)
        if me == 1:
            shmem.signal_op(signal, lap, shmem.SIGNAL_SET, 0)
    shmem.quiet()


CUDA_STREAM = """
#include <symrail_device.cuh>
extern "C" __global__ void stream(char* to, char* from, size_t n, int laps) {
    to += blockIdx.x * n, from += blockIdx.x * n;
    for (int lap = 0; lap < laps; lap++) { __syncthreads(); symrailx_putmem_block(to, from, n, 1); __syncthreads(); }
    __syncthreads();
    if (threadIdx.x == 0) symrail_quiet();
}
extern "C" __global__ void signals_only(symrail_u64* signal, int laps, int me) {
    for (int lap = 1; lap <= laps; lap++) {
        if (threadIdx.x == 0) {
            if (me == 0) symrailx_signal_op(signal, lap, SYMRAIL_SIGNAL_SET, 1);
            symrail_signal_wait_until(signal, SYMRAIL_CMP_GE, lap);
            if (me == 1) symrailx_signal_op(signal, lap, SYMRAIL_SIGNAL_SET, 0);
        }
        __syncthreads();
    }
    if (threadIdx.x == 0) symrail_quiet();
}
"""


def check_beside(me, n):
    """Signals there and back, puts of 8 B to 16 MiB and puts with a signal, in turns with the CUDA header's.

    It prints the median of the ratios of neighbours, Triton's time over CUDA's, and checks nothing.
    """
    import statistics

    import cupy
    import numpy

    options = ("-std=c++17", f"-I{os.environ['SYMRAIL_INCLUDE']}")
    modules = [cupy.RawModule(code=code, options=options) for code in (CUDA_STREAM, CUDA_PING_PONG)]
    for module in modules:
        symrail.current().attach_module(module.module.ptr)
    size = 16 << 20
    inbox, outbox, signal = symrail.array(size, "uint8"), symrail.array(size, "uint8"), symrail.array(1, "int64")
    tensors = [tensor(array) for array in (inbox, outbox, signal)]
    to, source, word = (numpy.uint64(tensor.data_ptr()) for tensor in tensors)
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    mapped = symrail.is_mapped((me + 1) % n)

    def cuda_kernel(kernel, warps, *args):
        with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
            kernel((1,), (32 * warps,), args)

    def timed(launch, both):
        tensors[2].zero_()
        torch.cuda.synchronize()
        symrail.barrier_all()
        if both or me == 0:
            start.record()
            launch()
            end.record()
        torch.cuda.synchronize()
        symrail.barrier_all()
        return start.elapsed_time(end) * 1000 if both or me == 0 else 1.0

    i32, u64 = numpy.int32, numpy.uint64
    cases = []
    laps = 2000 if mapped else 100
    cases.append(("signals there and back", laps * 2, True,
        lambda laps=laps: signals_only[(1,)](tensors[2], laps, me, num_warps=4),
        lambda laps=laps: cuda_kernel(modules[0].get_function("signals_only"), 4, word, i32(laps), i32(me))))
    for nbytes in (8, 64, 1024, 16 << 10, 256 << 10, 1 << 20, 16 << 20):
        laps = max(4, min(2000, (64 << 20) // max(nbytes, 32768))) if mapped else max(2, min(100, (32 << 20) // nbytes))
        warps = 4 if nbytes <= 1024 else 16
        cases.append((f"put {nbytes} B", laps, False,
            lambda nbytes=nbytes, laps=laps, warps=warps: stream[(1,)](
                tensors[0], tensors[1], nbytes, laps, WAIT=True, num_warps=warps),
            lambda nbytes=nbytes, laps=laps, warps=warps: cuda_kernel(
                modules[0].get_function("stream"), warps, to, source, u64(nbytes), i32(laps))))
        laps = max(2, laps // 4)
        cases.append((f"put_signal {nbytes} B there and back", laps * 2, True,
            lambda nbytes=nbytes, laps=laps, warps=warps: ping_pong[(1,)](
                *tensors, nbytes, laps, me, SCOPE="block", num_warps=warps),
            lambda nbytes=nbytes, laps=laps, warps=warps: cuda_kernel(
                modules[1].get_function("block"), warps, to, source, word, u64(nbytes), i32(laps), i32(me))))
    for name, count, both, ours, theirs in cases:
        times = []
        for turn in range(8):
            order = (ours, theirs) if turn % 2 == 0 else (theirs, ours)
            pair = [timed(launch, both) for launch in order]
            times.append(pair if turn % 2 == 0 else pair[::-1])
        ratios = [a / b for a, b in times[1:]]
        best = [min(pair[side] for pair in times[1:]) / count for side in (0, 1)]
        if me == 0:
            print(f"    {name}: Triton {best[0]:.3f} us, CUDA {best[1]:.3f} us; ratio {statistics.median(ratios):.3f}",
                flush=True)


def check_errors(me, n):
    x = symrail.array(4, "int64")
    symrail.barrier_all()
    if torch.cuda.device_count() > 1:
        other = (torch.cuda.current_device() + 1) % torch.cuda.device_count()
        with torch.cuda.device(other):
            refused(ArgumentError, f"GPU {other}", counted[(1,)], tensor(x), 0)
    symrail.barrier_all()


def refused(error, text, call, *args):
    try:
        call(*args)
    except error as found:
        assert text in str(found), found
        return
    raise AssertionError("not refused")


CHECKS = {
    name.removeprefix("check_"): check
    for name, check in list(globals().items())
    if name.startswith("check_")
}


def main():
    # The examples are for heaps in GPU memory, whose arrays have tensors.
    left_out = {"all_reduce", "pipeline", "matmul"} if os.environ.get("SYMRAIL_HEAP_KIND") == "pinned" else set()
    wanted = sys.argv[1:] or [name for name in CHECKS if name not in left_out]
    failed = 0
    with symrail.init(heap=os.environ.get("SYMRAIL_HEAP_KIND", "device")):
        me, n = symrail.my_pe(), symrail.n_pes()
        for name in wanted:
            start = time.monotonic()
            try:
                CHECKS[name](me, n)
                torch.cuda.synchronize()
                symrail.quiet()
                said = "right"
            except Exception:  # noqa: BLE001
                failed = 1
                said = "WRONG\n" + traceback.format_exc(limit=4)
            if me == 0 or failed:
                print(f"triton {name}, PE {me}: {said} ({time.monotonic() - start:.1f} s)", flush=True)
            if failed:
                sys.exit(1)
        left = tensor(symrail.array(1, "int64"))
    refused(StateError, "finalized", counted[(1,)], left, 0)
    if me == 0:
        print("triton errors after finalize: right", flush=True)


if __name__ == "__main__":
    main()
