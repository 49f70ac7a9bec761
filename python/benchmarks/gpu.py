"""The cost of calls on streams for the host, and their bandwidth: `symrail run -n 2 -- python gpu.py`
(SYMRAIL_HEAP_KIND).

With nvshmem4py installed, `mpirun -n 2 python gpu.py nvshmem` measures the same there. Medians of batches.
"""

import statistics
import sys
import time

import torch

CALLS, BATCHES = 200, 15


def host_time(call, stream, calls=CALLS):
    """Microseconds of host time for a call, with the queue never full."""
    taken = []
    for _ in range(BATCHES):
        stream.synchronize()
        began = time.perf_counter_ns()
        for _ in range(calls):
            call()
        taken.append((time.perf_counter_ns() - began) / calls / 1000)
    stream.synchronize()
    return statistics.median(taken)


def stream_time(call, stream, calls):
    """Microseconds of the stream's time for a call."""
    taken = []
    for _ in range(5):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        stream.synchronize()
        start.record(stream)
        for _ in range(calls):
            call()
        end.record(stream)
        end.synchronize()
        taken.append(start.elapsed_time(end) * 1000 / calls)
    return statistics.median(taken)


def measure(name, me, sizes, array, put, get, barrier, quiet, stream):
    rows = []
    for size in sizes:
        there, here = array(size), array(size)
        barrier()
        calls = max(10, min(200, (256 << 20) // size))
        for what, call in (("put", lambda: put(there, here)), ("get", lambda: get(there, here))):
            call()
            spent = host_time(call, stream) if size <= 4096 else float("nan")
            took = stream_time(call, stream, calls)
            speed = f"stream {took:9.2f} us, {size / took / 1e3:7.1f} GB/s"
            rows.append(f"{name:10} {what} {size:>10} B: host {spent:6.2f} us, {speed}")
        quiet()
        barrier()
    for _ in range(10):
        barrier()
    stream.synchronize()
    spent, took = host_time(barrier, stream), stream_time(barrier, stream, 200)
    rows.append(f"{name:10} barrier: host {spent:6.2f} us, stream {took:6.2f} us")
    if me == 0:
        print("\n".join(rows), flush=True)


def by_symrail():
    import symrail

    with symrail.init() as runtime:
        me, n = symrail.my_pe(), symrail.n_pes()
        torch.cuda.set_device(runtime.device)
        stream, peer = torch.cuda.Stream(), (me + 1) % n

        measure(
            "symrail",
            me,
            SIZES,
            lambda size: symrail.array(size, "uint8"),
            lambda there, here: symrail.put(there, here, peer, stream=stream),
            lambda there, here: symrail.get(here, there, peer, stream=stream),
            lambda: symrail.barrier_all(stream=stream),
            lambda: symrail.quiet(stream=stream),
            stream,
        )
        there, word = symrail.array(1024, "float32"), symrail.array(1, "uint64")
        tensor, handle = torch.zeros(1024, device="cuda"), stream.cuda_stream
        extra = {
            "put of a tensor": lambda: symrail.put(there, tensor, peer, stream=stream),
            "put, stream a number": lambda: symrail.put(there, there, peer, stream=handle),
            "put by the method": lambda put=runtime.put: put(there, there, peer, stream=handle),
            "put_signal": lambda: symrail.put_signal(there, there, word, 1, "set", peer, stream=stream),
            "signal_op": lambda: symrail.signal_op(word, 1, "set", peer, stream=stream),
            "signal_wait": lambda: symrail.signal_wait(word, 0, ">=", stream=stream),
            "copy_ of torch": lambda: tensor.copy_(tensor2),
        }
        tensor2 = torch.zeros(1024, device="cuda")
        try:
            from cuda.bindings import driver

            to, of = there.data_ptr, tensor.data_ptr()
            extra["cuMemcpyAsync by cuda.bindings"] = lambda: driver.cuMemcpyAsync(to, of, 4096, handle)
        except (ImportError, AttributeError):  # a heap in host memory has no GPU's address
            pass
        for name, call in extra.items():
            if name == "put of a tensor" and not symrail.is_mapped(peer):
                continue
            with torch.cuda.stream(stream):
                spent = host_time(call, stream)
            if me == 0:
                print(f"symrail    {name}: host {spent:6.2f} us", flush=True)
        symrail.quiet()
        symrail.barrier_all()
        collectives(symrail, me, n, stream)


def collectives(symrail, me, n, stream):
    """Host and stream time of collectives; the size is that of the source, or of a reduce's whole array."""
    team = symrail.team_world()
    for size in (8, 4096, 64 << 10, 1 << 20, 16 << 20):
        there, here = symrail.array(size * n // 4), symrail.array(size * n // 4)
        part = here[: size // 4]
        calls = {
            "broadcast": lambda: symrail.broadcast(team, there[: size // 4], part, stream=stream),
            "fcollect": lambda: symrail.fcollect(team, there, part, stream=stream),
            "alltoall": lambda: symrail.alltoall(team, there, here, stream=stream),
            "collect": lambda: symrail.collect(team, there, part, stream=stream),
            "reduce": lambda: symrail.reduce(team, there[: size // 4], part, "sum", stream=stream),
            "reducescatter": lambda: symrail.reducescatter(team, there[: size // 4], here, "sum", stream=stream),
        }
        for name, call in calls.items():
            call()
            spent, took = host_time(call, stream, 50), stream_time(call, stream, 20)
            if me == 0:
                print(f"symrail    {name:13} {size:>9} B: host {spent:6.2f} us, stream {took:9.2f} us", flush=True)
        symrail.quiet()
        symrail.barrier_all()


def by_nvshmem():
    import nvshmem.core
    from cuda.core.experimental import Device
    from mpi4py import MPI

    me, n = MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()
    torch.cuda.set_device(me % torch.cuda.device_count())
    device = Device(torch.cuda.current_device())
    device.set_current()
    nvshmem.core.init(device=device, mpi_comm=MPI.COMM_WORLD, initializer_method="mpi")
    stream = torch.cuda.Stream()
    peer = (me + 1) % n
    measure(
        "nvshmem4py",
        me,
        SIZES,
        lambda size: nvshmem.core.tensor((size,), dtype=torch.uint8),
        lambda there, here: nvshmem.core.put(there, here, remote_pe=peer, stream=stream),
        lambda there, here: nvshmem.core.get(here, there, remote_pe=peer, stream=stream),
        lambda: nvshmem.core.barrier(nvshmem.core.Teams.TEAM_WORLD, stream=stream),
        lambda: nvshmem.core.quiet(stream=stream),
        stream,
    )


SIZES = [8, 4096, 64 << 10, 1 << 20, 16 << 20, 128 << 20]
by_nvshmem() if sys.argv[1:] == ["nvshmem"] else by_symrail()
