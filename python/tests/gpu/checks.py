"""Checks of the Python package on GPUs, for scripts/gpu.sh: `symrail run -n 2 -- python checks.py [NAME ...]`.

Works on device and pinned heaps, mapped or not; the variables SYMRAIL_… choose.
"""

import gc
import os
import sys
import traceback

import cupy
import ml_dtypes
import numpy as np
import symrail
import torch
from symrail.errors import ArgumentError, OperationError, StateError, SymrailError

WAIT = 60


def host(array):
    """A NumPy array with the present elements."""
    torch.cuda.synchronize()
    return array.numpy() if isinstance(array, symrail.DeviceArray) else array.copy()


def pattern(count, pe, lap):
    return ((np.arange(count) * 7 + lap * 101 + pe * 31) % 251).astype("uint8")


def fill(array, values):
    array[...] = values


def source(values):
    """The values in memory of the symmetric heap, which streams can read on any path to the peer."""
    array = symrail.array(values.shape, values.dtype)
    fill(array, values)
    return array


def refused(error, text, call, *args, **kwargs):
    try:
        call(*args, **kwargs)
    except error as found:
        assert text in str(found), found
        return found
    raise AssertionError(f"{call} was not refused")


def others(me, n):
    return (me + 1) % n, (me - 1) % n


def interop(me, n):
    a = symrail.array((4, 6), "float32")
    fill(a, np.arange(24, dtype="float32").reshape(4, 6))
    if not isinstance(a, symrail.DeviceArray):
        t = torch.from_numpy(a)
        t += 1
        assert a[0, 1] == 2
        return
    assert a.device == torch.cuda.current_device() == symrail.current().device
    t = a.tensor()
    assert t.data_ptr() == a.data_ptr and t.is_cuda and t.shape == (4, 6) and t.dtype == torch.float32
    t += 1
    assert np.array_equal(host(a), np.arange(24).reshape(4, 6) + 1)
    part = a[1:, ::2].tensor()
    assert part.stride() == (6, 2) and part.sum().item() == host(a)[1:, ::2].sum()
    for name in ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int64", "bool", "complex64"):
        b = symrail.array(16, name)
        t = b.tensor()
        assert t.dtype == getattr(torch, name) and t.data_ptr() == b.data_ptr
        t.copy_((torch.arange(16, device=t.device) % 2).to(t.dtype))
        numbers = (np.arange(16) % 2).astype(getattr(ml_dtypes, name, name))
        assert host(b).tobytes() == numbers.tobytes(), name
        assert torch.from_dlpack(b.view("uint8")).data_ptr() == b.data_ptr
    assert torch.float16 == symrail.array(3, torch.float16).tensor().dtype
    for seen in (cupy.from_dlpack(a), cupy.asarray(a), torch.as_tensor(a, device="cuda")):
        pointer = seen.data_ptr() if isinstance(seen, torch.Tensor) else seen.data.ptr
        assert pointer == a.data_ptr and seen.shape == (4, 6)
        seen[0, 0] = 77
        assert host(a)[0, 0] == 77
        seen[0, 0] = 1
    transposed = cupy.asarray(a.T)
    assert transposed.shape == (6, 4) and float(transposed[2, 3]) == host(a)[3, 2]


def lifetimes(me, n):
    def blocks():
        gc.collect()
        torch.cuda.synchronize()
        symrail.reclaim()
        return symrail.current().blocks()[0]

    before = blocks()
    for take in (
        lambda a: a.tensor() if isinstance(a, symrail.DeviceArray) else torch.from_numpy(a),
        lambda a: a[10:].tensor() if isinstance(a, symrail.DeviceArray) else a[10:],
        lambda a: cupy.from_dlpack(a) if isinstance(a, symrail.DeviceArray) else np.from_dlpack(a),
        lambda a: cupy.asarray(a) if isinstance(a, symrail.DeviceArray) else np.asarray(a),
    ):
        a = symrail.array(1000)
        view = take(a)
        del a
        assert blocks() == before + 1
        view += 1
        del view
        assert blocks() == before
    a = symrail.array(1000)
    there = symrail.get_peer_array(a, (me + 1) % n)
    if there is not None:
        del a
        assert blocks() == before + 1
        del there
    else:
        del a
    assert blocks() == before


def on_streams(me, n):
    right, left = others(me, n)
    word = symrail.array(4, "uint64")
    stream = torch.cuda.Stream()
    of_cupy = cupy.cuda.Stream(non_blocking=True)
    lap = 0
    for bytes in (1, 8, 1000, 4096, 300_001, 4 << 20):
        there, back = symrail.array(bytes, "uint8"), symrail.array(bytes, "uint8")
        for one in (stream, stream.cuda_stream, of_cupy, torch.cuda.current_stream(), 0):
            lap += 1
            mine = source(pattern(bytes, me, lap))
            torch.cuda.synchronize()
            if lap % 3 == 0:
                symrail.put_signal(there, mine, word, lap, "set", right, stream=one)
            else:
                symrail.put(there, mine, right, stream=one)
                symrail.signal_op(word, lap, "set", right, stream=one)
            comparison, value = ((">=", lap), ("==", lap), (">", lap - 1))[lap % 3]
            symrail.signal_wait(word, value, comparison, stream=one)
            symrail.fence(stream=one)
            symrail.quiet(stream=one)
            symrail.barrier_all(stream=one)
            symrail.get(back, there, right, stream=one)
            symrail.sync_all(stream=one)
            assert np.array_equal(host(there), pattern(bytes, left, lap)), (bytes, lap)
            assert np.array_equal(host(back), pattern(bytes, me, lap)), (bytes, lap)
            symrail.quiet()
            symrail.barrier_all()
    symrail.signal_op(word, 5, "add", right, offset=2, stream=stream)
    symrail.signal_op(word, 6, "add", right, offset=2, stream=stream)
    symrail.signal_wait(word, 11, "==", offset=2, stream=stream)
    stream.synchronize()
    symrail.barrier_all()
    assert host(word)[2] == 11


def gets(me, n):
    right, _ = others(me, n)
    stream = torch.cuda.Stream()
    for bytes in (1, 8, 1000, 70_000, 3 << 20):
        mine, back = source(pattern(bytes, me, 3)), symrail.array(bytes, "uint8")
        symrail.barrier_all()
        symrail.get(back, mine, right, stream=stream)
        stream.synchronize()
        assert np.array_equal(host(back), pattern(bytes, right, 3)), bytes
        symrail.barrier_all()


def order(me, n):
    """A put is ordered behind a producer on another stream by an event, though that producer is slow."""
    right, left = others(me, n)
    there, word = symrail.array(1 << 20, "float32"), symrail.array(1, "uint64")
    mine = symrail.array(1 << 20, "float32")
    view = mine.tensor() if isinstance(mine, symrail.DeviceArray) else None
    slow, fast = torch.cuda.Stream(), torch.cuda.Stream()
    made = torch.full((1 << 20,), 0.0, device="cuda")
    pinned = None if view is not None else mine
    torch.cuda.synchronize()
    symrail.barrier_all()
    for lap in range(1, 4):
        event = torch.cuda.Event()
        with torch.cuda.stream(slow):
            torch.cuda._sleep(200_000_000)
            made.fill_(me * 10 + lap)
            if view is not None:
                view.copy_(made)
            event.record()
        if view is not None:
            fast.wait_event(event)
            symrail.put_signal(there, mine, word, lap, "set", right, stream=fast)
            assert not fast.query(), "the put did not wait for its producer"
        elif symrail.is_mapped(right):
            fast.wait_event(event)
            symrail.put(there, made, right, stream=fast)
            symrail.signal_op(word, lap, "set", right, stream=fast)
            assert not fast.query(), "the put did not wait for its producer"
        else:
            event.synchronize()
            pinned[...] = me * 10 + lap
            symrail.put_signal(there, mine, word, lap, "set", right, stream=fast)
        symrail.signal_wait(word, lap, ">=", stream=fast)
        fast.synchronize()
        assert (host(there) == left * 10 + lap).all(), (lap, host(there))
        symrail.quiet()
        symrail.barrier_all()


def graphs(me, n):
    right, left = others(me, n)
    count = 50_000
    mine, there, back = (symrail.array(count, "uint8") for _ in range(3))
    word = symrail.array(2, "uint64")
    fill(mine, pattern(count, me, 0))
    torch.cuda.synchronize()
    symrail.barrier_all()
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        symrail.barrier_all(stream=stream)
        symrail.put(there, mine, right, stream=stream)
        symrail.signal_op(word, 1, "add", right, stream=stream)
        symrail.put_signal(there[:100], mine[:100], word, 1, "add", right, offset=1, stream=stream)
        symrail.quiet(stream=stream)
        symrail.barrier_all(stream=stream)
        symrail.signal_wait(word, 1, ">=", stream=stream)
        symrail.get(back, there, right, stream=stream)
        symrail.fence(stream=stream)
    for lap in range(1, 6):
        fill(mine, pattern(count, me, lap))
        symrail.quiet()
        torch.cuda.synchronize()
        graph.replay()
        torch.cuda.synchronize()
        assert np.array_equal(host(there), pattern(count, left, lap)), lap
        assert np.array_equal(host(back), pattern(count, me, lap)), lap
        assert list(host(word)) == [lap, lap]
        symrail.quiet()
        symrail.barrier_all()


def teams(me, n):
    stream = torch.cuda.Stream()
    world = symrail.team_world()
    for _ in range(3):
        symrail.barrier(world, stream=stream)
        symrail.sync(world, stream=stream)
    alone = world.split_strided(me, 1, 1) if n == 2 else None
    both = world.split_strided(0, 1, n)
    for team in filter(None, (alone, both)):
        for _ in range(5):
            symrail.barrier(team, stream=stream)
            symrail.sync(team, stream=stream)
        stream.synchronize()
    symrail.quiet()
    symrail.barrier_all()
    both.destroy()


def scattered(me, n):
    right, left = others(me, n)
    there, mine = symrail.array((6, 8), "int32"), symrail.array((6, 8), "int32")
    numbers = np.arange(48, dtype="int32").reshape(6, 8) + me * 100
    fill(mine, numbers)
    stream = torch.cuda.Stream()
    symrail.barrier_all()
    symrail.put(there[::2, 1:5], mine[1:4, ::2], right, stream=stream)
    symrail.quiet(stream=stream)
    symrail.barrier_all(stream=stream)
    wanted = np.zeros((6, 8), "int32")
    wanted[::2, 1:5] = numbers[1:4, ::2] + (left - me) * 100
    assert np.array_equal(host(there), wanted), host(there)
    symrail.quiet()
    symrail.barrier_all()


def without_streams(me, n):
    """Tensors outside of the heap, on both sides; the call waits."""
    right, left = others(me, n)
    there = symrail.array(5000, "float32")
    mapped = symrail.is_mapped(right)
    for make in (lambda: torch.full((5000,), me + 0.5, device="cuda"), lambda: cupy.full(5000, me + 0.5, "float32")):
        if mapped:
            symrail.put(there, make(), right)
            symrail.barrier_all()
            assert (host(there) == left + 0.5).all()
            back = make()
            back += 9
            symrail.get(back, there, right)
            assert float(back.min()) == me + 0.5
        else:
            refused(ArgumentError, "proxy", symrail.put, there, make(), right)
        symrail.barrier_all()
    symrail.put(there, torch.full((5000,), me + 7.0), right)
    symrail.barrier_all()
    assert (host(there) == left + 7).all()
    symrail.barrier_all()


def peers(me, n):
    right, left = others(me, n)
    a = symrail.array((3, 4), "int64")
    fill(a, me)
    symrail.barrier_all()
    there = symrail.get_peer_array(a[::-1, 1:3] if not isinstance(a, symrail.DeviceArray) else a[1:, 1:3], right)
    assert (there is not None) == symrail.is_mapped(right)
    if isinstance(there, symrail.DeviceArray):
        assert (there.tensor() == right).all()
        t = symrail.get_peer_tensor(a[1:, 1:3], right)
        t[0, 0] = me + 100
        torch.cuda.synchronize()
        symrail.barrier_all()
        assert host(a)[1, 1] == left + 100
    symrail.barrier_all()


def misuse(me, n):
    right, _ = others(me, n)
    a, stream = symrail.array(100, "float32"), torch.cuda.Stream()
    refused(ArgumentError, "symmetric", symrail.put, torch.zeros(100, device="cuda"), a, right, stream=stream)
    mapped = symrail.is_mapped(right)
    why = "no GPU reaches" if mapped else "proxy"
    refused(ArgumentError, why, symrail.put, a, np.zeros(100, "float32"), right, stream=stream)
    refused(ArgumentError, "shapes differ", symrail.put, a, torch.zeros(99, device="cuda"), right, stream=stream)
    refused(ArgumentError, "dtypes differ", symrail.put, a, torch.zeros(100, device="cuda").half(), right, stream=stream)
    refused(SymrailError, "PE", symrail.put, a, a, n, stream=stream)
    elsewhere = 1 - torch.cuda.current_device()
    if torch.cuda.device_count() == 2:
        wrong = torch.zeros(100, device=f"cuda:{elsewhere}")
        refused(ArgumentError, f"GPU {elsewhere}", symrail.put, a, wrong, right, stream=stream)
    if not mapped:
        return
    registered = torch.full((100,), me + 3.0).pin_memory()
    symrail.put(a, registered, right, stream=stream)
    symrail.quiet(stream=stream)
    stream.synchronize()
    symrail.barrier_all()
    assert (host(a) == (me - 1) % n + 3).all()
    symrail.barrier_all()


def marks(me, n):
    """Tensors that are only marked as conjugated or negated: no bytes without the mark are sent."""
    right, left = others(me, n)
    stream = torch.cuda.current_stream()
    numbers = torch.arange(16.0, device="cuda").to(torch.complex64).reshape(4, 4) * (1 + 2j)
    for tensor, remedy in (
        (numbers.conj(), "resolve_conj()"),
        (torch._neg_view(numbers.real.contiguous()), "resolve_neg()"),
        (numbers.conj().imag, "resolve_neg()"),
    ):
        there = symrail.array((4, 4), tensor.dtype)
        plain = tensor.resolve_conj().resolve_neg()
        there_too = plain.cpu()
        on_host = torch.conj_physical(there_too).conj() if tensor.is_conj() else torch._neg_view(-there_too)
        torch.cuda.synchronize()
        for given in ({}, dict(stream=stream)):
            refused(ArgumentError, remedy, symrail.put, there, tensor, right, **given)
            refused(ArgumentError, remedy, symrail.get, tensor, there, right, **given)
        refused(ArgumentError, "src", symrail.put, there, on_host, right, stream=stream)
        refused(ArgumentError, remedy, symrail.get, on_host, there, right)
        symrail.put(there, on_host, right)
        symrail.quiet()
        symrail.barrier_all()
        assert np.array_equal(host(there), plain.cpu().numpy())
        symrail.barrier_all()
    if isinstance(there, symrail.DeviceArray):
        own = torch._neg_view(there.tensor())
        team = symrail.team_world()
        refused(ArgumentError, "resolve_neg()", team.reduce, there, own, "sum", stream=stream)
        refused(ArgumentError, "resolve_neg()", team.reduce, own, there, "sum", stream=stream)
    there = symrail.array((4, 4), "float32")
    for text, tensor in (("layout", torch.eye(4, device="cuda").to_sparse()), ("meta", torch.eye(4, device="meta"))):
        refused(ArgumentError, text, symrail.put, there, tensor, right)


def captures(me, n):
    """Memory that is made and dropped during a capture, which goes on; and so do all later calls."""
    right, left = others(me, n)
    array, dropped = symrail.array(1000, "float32"), symrail.array(1000, "float32")
    team, mine = symrail.team_world(), source(np.full(1000, me + 1, "float32"))
    graph = torch.cuda.CUDAGraph()
    symrail.put(array, mine, right, stream=torch.cuda.current_stream())
    torch.cuda.synchronize()
    symrail.barrier_all()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        symrail.put(array, mine, right, stream=torch.cuda.current_stream())
        refused(StateError, "captures a CUDA graph", symrail.array, 10)
        del dropped
        gc.collect()
        symrail.reclaim()
        team.barrier(stream=torch.cuda.current_stream())
    for lap in range(3):
        fill(array, 0)
        torch.cuda.synchronize()
        symrail.barrier_all()
        graph.replay()
        torch.cuda.synchronize()
        symrail.barrier_all()
        assert (host(array) == left + 1).all()
    before = symrail.current().blocks()[0]
    symrail.reclaim()
    assert symrail.current().blocks()[0] == before - 1
    later = symrail.array(1000)
    symrail.put(later, source(np.full(1000, 2.0, "float32")), right)
    symrail.barrier_all()


def late(me, n):
    """A wait of another kind than the stream's ends after SYMRAIL_TIMEOUT_S, and raises. What stands behind it does
    nothing, on whatever stream; what is enqueued later goes on."""
    right, left = others(me, n)
    word, told = symrail.array(1, "uint64"), symrail.array(1, "uint64")
    small, large, total = symrail.array(100, "uint8"), symrail.array(4 << 20, "uint8"), symrail.array(9, "int32")
    mine, numbers = source(pattern(4 << 20, me, 1)), source(np.full(9, me + 1, "int32"))
    stream, other, team = torch.cuda.Stream(), torch.cuda.Stream(), symrail.team_world()

    def work(one):
        symrail.put(large, mine, right, stream=one)
        symrail.put_signal(large, mine, told, 1, "add", right, stream=one)
        symrail.put_signal(small, mine[:100], told, 1, "add", right, stream=one)
        symrail.signal_op(told, 1, "add", right, stream=one)
        symrail.barrier_all(stream=one)
        symrail.reduce(team, total, numbers, "sum", stream=one)

    torch.cuda.synchronize()
    symrail.barrier_all()
    symrail.signal_wait(word, 0, "!=", stream=stream)
    work(stream)
    stream.synchronize()
    other.wait_stream(stream)
    work(other)
    other.synchronize()
    error = refused(OperationError, "SYMRAIL_TIMEOUT_S", symrail.quiet)
    assert error.pe == me and "wait" in error.operation
    symrail.barrier_all()
    assert not host(large).any() and not host(small).any() and not host(told).any() and not host(total).any()
    symrail.barrier_all()
    work(stream)
    stream.synchronize()
    symrail.quiet()
    symrail.barrier_all()
    assert np.array_equal(host(large), pattern(4 << 20, left, 1)) and host(told)[0] == 3
    assert np.array_equal(host(small), pattern(4 << 20, left, 1)[:100])
    assert (host(total) == n * (n + 1) // 2).all()
    symrail.barrier_all()


CHECKS = [
    *(interop, lifetimes, on_streams, gets, order, graphs, teams, scattered, without_streams, peers, misuse, marks),
    captures,
]


def main():
    named = {check.__name__: check for check in (*CHECKS, late)}
    chosen = [named[name] for name in sys.argv[1:]] or CHECKS
    with symrail.init() as runtime:
        me, n = symrail.my_pe(), symrail.n_pes()
        torch.cuda.set_device(runtime.device)
        cupy.cuda.Device(runtime.device).use()
        for check in chosen:
            try:
                check(me, n)
            except BaseException:
                print(f"PE {me}: FAILED {check.__name__}\n{traceback.format_exc()}", flush=True)
                os._exit(1)
        torch.cuda.synchronize()
        print(f"PE {me}: {', '.join(check.__name__ for check in chosen)}: well\n", end="", flush=True)


main()
