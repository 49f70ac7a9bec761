"""The four transposes of an array of complex numbers by torch.distributed's all_to_all_single (NCCL), a rank
for each GPU, packed and unpacked by the kernels of decomp/cu/copy.cuh. Each pencil's own axis is the fastest. The
program measures them in stream order, and in a CUDA graph.

    python3 -m torch.distributed.run --nproc-per-node N torch_all_to_all.py libmoves.so EDGE ...
"""

import ctypes
import json
import os
import statistics
import sys

import torch
import torch.distributed as dist

moves = ctypes.CDLL(sys.argv[1])
moves.moves_wrong.restype = ctypes.c_longlong
WORD = ctypes.c_uint64


class Numbers(ctypes.Structure):
    """`numbers` of numbers.cu."""

    _fields_ = [(name, WORD) for name in ("at", "wrong", "edge")] + [
        (name, WORD * 3) for name in ("first", "own", "stride")
    ] + [(name, WORD) for name in ("halo", "fields", "field", "filled", "periodic")]  # fmt: skip


def stream() -> ctypes.c_void_p:
    return ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)


def copy(source: torch.Tensor, dest: torch.Tensor, *loops: int) -> None:
    """Loops are a number and the distances here and there for each dimension, in elements."""
    at = ctypes.c_void_p(source.data_ptr()), ctypes.c_void_p(dest.data_ptr())
    if moves.moves_copy(*at, len(loops) // 3, (WORD * len(loops))(*loops), stream()):
        raise RuntimeError("moves_copy")


def batch(rounds, work) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    dist.barrier()
    torch.cuda.synchronize()
    start.record()
    for _ in range(rounds):
        work()
    end.record()
    torch.cuda.synchronize()
    took = torch.tensor([start.elapsed_time(end) * 1e3 / rounds], device="cuda")
    dist.all_reduce(took, dist.ReduceOp.MAX)
    return took.item()


def timed(work) -> float:
    """Microseconds of a round on the slowest rank: the median of seven batches."""
    batch(3, work)
    rounds = max(1, min(100, int(5000 / batch(3, work))))
    return statistics.median(batch(rounds, work) for _ in range(7))


def say(what: str, edge: int, us: float, moved: int, wrong: int) -> None:
    all_wrong = torch.tensor([wrong], device="cuda")
    dist.all_reduce(all_wrong, dist.ReduceOp.MAX)
    if dist.get_rank() == 0:
        line = {"system": "torch", "what": what, "edge": edge, "us": round(us, 2), "moved": moved}
        print(json.dumps(line | {"right": all_wrong.item() == 0}), flush=True)


def captured(work):
    """The work as a graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        work()
    return graph


def transposes(n: int) -> None:
    me, ranks = dist.get_rank(), dist.get_world_size()
    h = n // ranks
    elements, block = n * n * h, n * h * h
    peers = [rank for rank in range(ranks) if rank != me]
    a, b = (torch.empty(elements, dtype=torch.complex128, device="cuda") for _ in range(2))
    # A block that stays on its rank is copied straight to its place, and not through NCCL.
    send, receive = (torch.empty(len(peers) * block, dtype=torch.complex128, device="cuda") for _ in range(2))
    send_words, receive_words = (torch.view_as_real(array).view(-1) for array in (send, receive))
    splits = [0 if rank == me else 2 * block for rank in range(ranks)]

    # Pencils are [z/ranks][y][x], [x][z/ranks][y] and [y/ranks][x][z].
    def x_to_y():
        copy(a, b, n, 1, h * n, h, n * n, n, n, n, 1)

    def y_to_x():
        copy(b, a, n, h * n, 1, h, n, n * n, n, 1, n)

    def exchange():
        dist.all_to_all_single(receive_words, send_words, splits, splits)

    def y_to_z():
        for at, peer in enumerate(peers):
            copy(b[peer * h :], send[at * block :], n, h * n, h, h, 1, n * h, h, n, 1)
        copy(b[me * h :], a[me * h :], n, h * n, n, h, 1, n * n, h, n, 1)
        exchange()
        for at, peer in enumerate(peers):
            copy(receive[at * block :], a[peer * h :], n, h, n, h, n * h, n * n, h, 1, 1)

    def z_to_y():
        for at, peer in enumerate(peers):
            copy(a[peer * h :], send[at * block :], n, n, h * h, h, n * n, 1, h, 1, h)
        copy(a[me * h :], b[me * h :], n, n, h * n, h, n * n, 1, h, 1, n)
        exchange()
        for at, peer in enumerate(peers):
            copy(receive[at * block :], b[peer * h :], n, h * h, h * n, h, 1, 1, h, h, n)

    def pencil(array, first, own, stride):
        three = [(WORD * 3)(*numbers) for numbers in (first, own, stride)]
        return Numbers(array.data_ptr(), 0, n, *three, 0, 1, elements, 0, 0)

    x = pencil(a, (0, 0, me * h), (n, n, h), (1, n, n * n))
    y = pencil(b, (0, 0, me * h), (n, n, h), (h * n, 1, n))
    z = pencil(a, (0, me * h, 0), (n, h, n), (n, n * n, 1))

    def wrong(pencil) -> int:
        torch.cuda.synchronize()
        return int(moves.moves_wrong(pencil, 16, stream()) != 0)

    moves.moves_fill(ctypes.byref(x), 16, stream())
    found = 0
    for step, result in ((x_to_y, y), (y_to_z, z), (z_to_y, y), (y_to_x, x)):
        step()
        found += wrong(result)

    def four():
        x_to_y()
        y_to_z()
        z_to_y()
        y_to_x()

    def crossing():
        z_to_y()
        y_to_z()

    took = timed(four)
    moved = len(peers) * block * 16
    say("four transposes", n, took, 2 * moved, found + wrong(x))
    say("the two that cross", n, timed(crossing), 2 * moved, found)
    say("all_to_all_single alone", n, timed(exchange), moved, found)
    moves.moves_fill(ctypes.byref(x), 16, stream())
    for what, work in (("four transposes, graph", four), ("the two that cross, graph", crossing)):
        graph = captured(work)
        took = timed(graph.replay)
        say(what, n, took, 2 * moved, found + (wrong(x) if work is four else 0))
        del graph


def main() -> None:
    rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    for edge in map(int, sys.argv[2:]):
        transposes(edge)
        torch.cuda.empty_cache()
    torch.cuda.synchronize()
    dist.destroy_process_group()


main()
