"""symrail.collectives on GPUs: tensors of PyTorch, in the order of streams and in graphs, for scripts/gpu.sh. Each
PE compares its results with those computed from all PEs' inputs. Without a GPU it prints SKIPPED."""

import ctypes
import sys


def has_gpu() -> bool:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    count = ctypes.c_int(0)
    return driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0


if not has_gpu():
    print("SKIPPED: there is no CUDA driver or no GPU on this machine")
    sys.exit(0)

import torch  # noqa: E402

import symrail  # noqa: E402
from symrail.collectives import Communicator  # noqa: E402
from symrail.errors import ArgumentError, DifferError  # noqa: E402

TYPES = ["int8", "uint8", "int32", "int64", "float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2"]
REPLAYS = 200


def total(n: int) -> int:
    return n * (n + 1) // 2


def every_type(comm: Communicator) -> None:
    for name in TYPES:
        x, y = symrail.array(4096, name).tensor(), symrail.array(4096, name).tensor()
        x.copy_(torch.full((4096,), comm.rank + 1.0, device=x.device).to(x.dtype))
        comm.all_reduce(x, y)
        assert (y.double() == total(comm.size)).all(), (name, y)
        comm.all_reduce(x, op="max")
        assert (x.double() == comm.size).all(), (name, x)
        comm.check()


def moves(comm: Communicator) -> None:
    n, me = comm.size, comm.rank
    x, y = symrail.array(64 * n, "int32").tensor(), symrail.array(64 * n, "int32").tensor()
    x.fill_(me)
    comm.all_gather_into_tensor(y, x[:64])
    assert torch.equal(y.cpu(), torch.arange(n, dtype=torch.int32).repeat_interleave(64)), y
    x.copy_(torch.arange(n, dtype=torch.int32).repeat_interleave(64) + 100 * me)
    comm.all_to_all_single(y, x)
    assert torch.equal(y.cpu(), 100 * torch.arange(n, dtype=torch.int32).repeat_interleave(64) + me), y
    comm.reduce_scatter_tensor(y[:64], x)
    assert (y[:64] == me * n + 100 * (total(n) - n)).all(), y
    x.fill_(me)
    comm.broadcast(x, n - 1)
    assert (x == n - 1).all(), x
    x.fill_(me)
    with comm.group():
        comm.send(x[:50], (me + 1) % n)
        comm.recv(y[:50], (me - 1) % n)
    assert (y[:50] == (me - 1) % n).all(), y
    comm.check()


def graphs(comm: Communicator) -> None:
    x, y = symrail.array(1000, "float32").tensor(), symrail.array(1000, "float32").tensor()
    x.fill_(1)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        comm.all_reduce(x, y)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            comm.all_reduce(x, y)
            x.copy_(y).div_(comm.size).add_(1)
        for _ in range(REPLAYS):
            graph.replay()
    stream.synchronize()
    comm.check()
    assert (x == REPLAYS + 1).all(), x


def refusals(comm: Communicator) -> None:
    x = symrail.array(64, "float32").tensor()
    for wrong in (lambda: comm.all_reduce(x[:3], x[:4]), lambda: comm.all_reduce(x[::2]), lambda: comm.broadcast(x, 99)):
        try:
            wrong()
        except ArgumentError:
            pass
        else:
            raise AssertionError("a wrong call was not refused")
    if comm.size > 1:
        try:
            comm.all_reduce(x[: 8 + (comm.rank == 0)])
        except DifferError:
            pass
        else:
            raise AssertionError("calls that differ were not refused")


with symrail.init():
    torch.cuda.set_device(symrail.current().device)
    with Communicator(device="cuda", compare=True) as comm:
        refusals(comm)
    with Communicator(device="cuda") as comm:
        every_type(comm)
        moves(comm)
        graphs(comm)
    with Communicator(device="cuda", any_memory=True) as comm:
        private = torch.full((3_000_000,), comm.rank + 1.0, device="cuda")
        comm.all_reduce(private)
        assert (private == total(comm.size)).all(), private
        comm.check()
    if symrail.n_pes() > 1:
        half = symrail.team_world().split_strided(symrail.my_pe() % 2, 2, (symrail.n_pes() + 1 - symrail.my_pe() % 2) // 2)
        with Communicator(half, device="cuda", heap_bytes=64 << 20) as comm:
            moves(comm)
    print(f"PE {symrail.my_pe()} on GPUs: ok\n", end="")
