"""symrail.overlap.cuda: products of all PEs' rows against PyTorch's, for scripts/gpu.sh, eagerly and replayed as graphs.

With `measure` their times, too; `refused`: where peers are not mapped, plans are refused."""

import os
import sys
import traceback

import torch

import symrail
import symrail.overlap.cuda as overlap
from symrail.errors import ArgumentError, UnsupportedError

REPLAYS = int(os.environ.get("REPLAYS", "200"))
LIMITS = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 4e-2}


def near(found: torch.Tensor, wanted: torch.Tensor, what: str) -> None:
    limit = LIMITS[found.dtype]
    scale = float(wanted.abs().max()) if wanted.numel() else 1.0
    worst = float((found.float() - wanted).abs().max()) if wanted.numel() else 0.0
    assert found.shape == wanted.shape and worst <= limit * max(scale, 1.0), f"{what}: off by {worst} of {scale}"


class Case:
    """Both products of a shape; the same numbers on all PEs."""

    def __init__(self, shape: tuple[int, int, int], dtype: torch.dtype, pieces: int | None, seed: int) -> None:
        self.rows, self.inputs, self.outputs = shape
        self.gather = overlap.AllGatherMatmul(self.rows, self.inputs, dtype, pieces=pieces)
        self.reduce = overlap.MatmulReduceScatter(self.rows, self.outputs, dtype, pieces=pieces)
        self.own = self.gather.own
        self.random = torch.Generator(device="cuda").manual_seed(seed)
        self.dtype = dtype
        self.x = torch.empty(self.rows, self.inputs, dtype=dtype, device="cuda")
        self.weights = [self.numbers(self.outputs, self.inputs) for _ in range(symrail.n_pes())]
        self.bias = self.numbers(1, self.outputs)[0]
        self.renew()

    def numbers(self, rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, generator=self.random, device="cuda").to(self.dtype) / 4

    def renew(self) -> None:
        self.x.copy_(self.numbers(self.rows, self.inputs))

    def run(self) -> tuple[torch.Tensor, torch.Tensor]:
        weight = self.weights[symrail.my_pe()]
        return self.gather.run(self.x[self.own], weight, self.bias), self.reduce.run(self.x, weight, self.bias)

    def check(self, results: tuple[torch.Tensor, torch.Tensor], what: str) -> None:
        x, bias = self.x.float(), self.bias.float()
        products = [x @ weight.float().t() for weight in self.weights]
        near(results[0], products[symrail.my_pe()] + bias, f"{what}, gather")
        total = torch.stack(products).sum(dim=0) + bias
        near(results[1], total[self.own], f"{what}, reduce")


def guarded(what: str, work) -> None:
    try:
        work()
        torch.cuda.synchronize()
        symrail.quiet()
    except Exception:
        print(f"PE {symrail.my_pe()} FAILED: {what}\n{traceback.format_exc()}", flush=True)
        raise
    if symrail.my_pe() == 0:
        print(f"well: {what}", flush=True)


def wrong_arguments(case: Case) -> None:
    """Refused before anything is sent: the next round goes on."""
    own, weight = case.x[case.own], case.weights[0]
    for call in (
        lambda: case.gather.run(own.double(), weight),
        lambda: case.gather.run(torch.cat((own, own[:1], own[:1])), weight),
        lambda: case.gather.run(own, weight[:, 1:]),
        lambda: case.gather.run(own, weight, case.bias[1:]),
        lambda: case.reduce.run(case.x[1:], weight),
        lambda: case.reduce.run(case.x, weight.double()),
    ):
        try:
            call()
        except ArgumentError:
            continue
        raise AssertionError("an argument was taken that the plan is not for")


def eager(shape, dtype, pieces) -> None:
    case = Case(shape, dtype, pieces, 1)
    if case.own.stop > case.own.start:
        wrong_arguments(case)
    for round in range(5):
        case.renew()
        case.check(case.run(), f"round {round}")


def replayed(shape, dtype, pieces) -> None:
    case = Case(shape, dtype, pieces, 2)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            case.run()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        results = case.run()
    for replay in range(REPLAYS):
        if replay % 10 == 0:
            case.renew()
            torch.cuda.synchronize()
        graph.replay()
        if replay % 10 == 9:
            torch.cuda.synchronize()
            case.check(results, f"replay {replay}")


def median(work, count: int = 15) -> float:
    times = []
    for _ in range(count):
        symrail.barrier_all()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3)
    return sorted(times)[count // 2]


def times(shape) -> None:
    dtype = torch.bfloat16
    all_pieces = (None, 1, 2, 0)
    cases = [Case(shape, dtype, pieces, 3) for pieces in all_pieces]
    fused = cases[0]
    weight = fused.weights[symrail.my_pe()]
    line = []
    for name in ("gather", "reduce"):
        x = fused.x[fused.own] if name == "gather" else fused.x
        found = [median(lambda: getattr(case, name).run(x, weight)) for case in cases]
        named = zip(("pieces as chosen", "1", "2", "unfused"), found)
        line.append(f"{name} " + ", ".join(f"{who} {took:.0f} us" for who, took in named))
    plain = median(lambda: torch.mm(fused.x, weight.t()))
    if symrail.my_pe() == 0:
        print(f"times {shape}: {'; '.join(line)}; product alone (of each PE) {plain:.0f}", flush=True)


def floor() -> None:
    """A put of 8 bytes with its signal on streams: there and back; of one PE to itself."""
    data, word = symrail.array(8, "uint8"), symrail.array(1, "uint64")
    peer, rounds = (symrail.my_pe() + 1) % symrail.n_pes(), 200
    stream, number = torch.cuda.current_stream(), 0
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    symrail.barrier_all()
    for turn in range(rounds + 50):
        if turn == 50:
            begin.record()
        number += 1
        if symrail.my_pe() == 0:
            symrail.put_signal(data, data, word, number, "set", peer, stream=stream)
            symrail.signal_wait(word, number, ">=", stream=stream)
        else:
            symrail.signal_wait(word, number, ">=", stream=stream)
            symrail.put_signal(data, data, word, number, "set", peer, stream=stream)
    end.record()
    end.synchronize()
    if symrail.my_pe() == 0:
        print(f"8 B, put with signal on streams: {begin.elapsed_time(end) * 1e3 / rounds / symrail.n_pes():.2f} us one way", flush=True)


def refused() -> None:
    try:
        overlap.AllGatherMatmul(8, 8, torch.float32)
    except UnsupportedError:
        return
    raise AssertionError("a plan was made without memory to work in")


def products() -> None:
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        for shape, pieces in (((1, 8, 8), None), ((67, 33, 17), 3), ((300, 256, 120), 2), ((301, 256, 120), 0)):
            if dtype != torch.float32:
                shape = (shape[0], -(-shape[1] // 8) * 8, -(-shape[2] // 8) * 8)
            guarded(f"{shape} {dtype} {pieces} pieces", lambda: eager(shape, dtype, pieces))
    guarded(f"{REPLAYS} replays", lambda: replayed((300, 256, 120), torch.bfloat16, 2))
    if "measure" in sys.argv:
        if symrail.n_pes() <= 2:
            guarded("floor", floor)
        for shape in ((512, 1792, 4096), (8192, 3584, 4096), (16384, 8192, 8192)):
            guarded(f"times {shape}", lambda: times(shape))


torch.cuda.set_device(0)
torch.backends.cuda.matmul.allow_tf32 = False
with symrail.init():
    if "refused" in sys.argv:
        guarded("refused", refused)
    else:
        products()
