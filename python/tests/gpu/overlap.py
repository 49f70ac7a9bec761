"""symrail.overlap: products of tensors in GPU memory against PyTorch's, for scripts/gpu.sh, eagerly and replayed as
graphs; gradients; 8-bit floats. With `measure` also their times. With `late` in place of these: a rank that does not
receive."""

import os
import sys
import traceback

import torch

import symrail
import symrail.overlap as overlap
from symrail.errors import ArgumentError, HeapExhaustedError, SymrailError, TimeoutError

REPLAYS = int(os.environ.get("REPLAYS", "200"))
# Bytes of the symmetric heap for each group; and for the largest measured shape.
HEAP, LARGE_HEAP = 64 << 20, 1 << 30
LIMITS = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 4e-2}


def near(found: torch.Tensor, wanted: torch.Tensor, what: str) -> None:
    limit = LIMITS[found.dtype]
    scale = float(wanted.abs().max()) if wanted.numel() else 1.0
    worst = float((found.float() - wanted).abs().max()) if wanted.numel() else 0.0
    assert found.shape == wanted.shape and worst <= limit * max(scale, 1.0), f"{what}: off by {worst} of {scale}"


class Case:
    """All products of a shape; the same numbers on all PEs."""

    def __init__(self, group: overlap.Group, shape: tuple[int, int, int], dtype: torch.dtype, seed: int) -> None:
        self.group, self.dtype = group, dtype
        self.rows, self.inputs, self.outputs = shape
        self.own = group.share(self.rows)
        self.random = torch.Generator(device="cuda").manual_seed(seed)
        self.x = torch.empty(self.rows, self.inputs, dtype=dtype, device="cuda")
        self.weights = [self.numbers(self.outputs, self.inputs) for _ in range(symrail.n_pes())]
        self.bias = self.numbers(1, self.outputs)[0]
        self.renew()

    def numbers(self, rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, generator=self.random, device="cuda").to(self.dtype) / 4

    def renew(self) -> None:
        self.x.copy_(self.numbers(self.rows, self.inputs))

    def run(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        weight, bias, group = self.weights[symrail.my_pe()], self.bias, self.group
        return (
            overlap.all_gather_matmul(self.x[self.own], weight, bias, group=group),
            overlap.matmul_reduce_scatter(self.x, weight, bias, group=group),
            overlap.matmul_all_reduce(self.x, weight, bias, group=group),
        )

    def check(self, results: tuple[torch.Tensor, torch.Tensor, torch.Tensor], what: str) -> None:
        x, bias = self.x.float(), self.bias.float()
        products = [x @ weight.float().t() for weight in self.weights]
        near(results[0], products[symrail.my_pe()] + bias, f"{what}, gather")
        total = torch.stack(products).sum(dim=0) + bias
        near(results[1], total[self.own], f"{what}, reduce-scatter")
        near(results[2], total, f"{what}, all-reduce")
        self.group.check()


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
    """Refused before anything is sent: the next round succeeds."""
    own, weight, group = case.x[case.own], case.weights[0], case.group
    for call in (
        lambda: overlap.all_gather_matmul(own, weight.cpu(), group=group),
        lambda: overlap.all_gather_matmul(own, weight[:, 1:], group=group),
        lambda: overlap.all_gather_matmul(own, weight, case.bias[1:], group=group),
        lambda: overlap.all_gather_matmul(own, weight, case.bias.double(), group=group),
        lambda: overlap.matmul_reduce_scatter(case.x[0], weight, group=group),
    ):
        try:
            call()
        except ArgumentError:
            continue
        raise AssertionError("an argument was taken that does not go with the others")


def eager(group: overlap.Group, shape, dtype) -> None:
    case = Case(group, shape, dtype, 1)
    wrong_arguments(case)
    for round in range(5):
        case.renew()
        case.check(case.run(), f"round {round}")


def gradients(group: overlap.Group) -> None:
    """Gradients of a layer of columns and one of rows, beside those of one process."""
    torch.manual_seed(1)
    whole = [torch.randn(*shape, device="cuda") / 4 for shape in ((96, 64), (128, 64), (64, 128))]
    x, first, second = (tensor.clone().requires_grad_() for tensor in whole)
    wanted = torch.autograd.grad(((x @ first.t()).relu() @ second.t()).square().sum(), (x, first, second))
    own, part = group.share(96), group.share(128)
    mine = [tensor.clone().requires_grad_() for tensor in (whole[0][own], whole[1][part], whole[2][:, part])]
    hidden = overlap.all_gather_matmul(mine[0], mine[1], group=group).relu()
    loss = overlap.matmul_reduce_scatter(hidden, mine[2], group=group).square().sum()
    found = torch.autograd.grad(loss, mine)
    for one, other in zip(found, (wanted[0][own], wanted[1][part], wanted[2][:, part])):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)


def short(group: overlap.Group) -> None:
    """8-bit floats, with a scale for each factor."""
    if torch.cuda.get_device_capability() < (8, 9):
        return
    random = torch.Generator(device="cuda").manual_seed(2)
    x, weight = (torch.randn(64, 32, generator=random, device="cuda").to(torch.float8_e4m3fn) for _ in range(2))
    scales = torch.tensor(2.0, device="cuda"), torch.tensor(0.25, device="cuda")
    found = overlap.all_gather_matmul(x[group.share(64)], weight, group=group, scales=scales)
    assert found.dtype == torch.bfloat16
    near(found, x.float() @ weight.float().t() * 0.5, "8-bit floats")


def replayed(group: overlap.Group, shape, dtype) -> None:
    case = Case(group, shape, dtype, 2)
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


def kept() -> None:
    """When the heap is full, plans of captured rounds stay, also those that one rank alone has captured. Others make
    room."""
    stream, dtype = torch.cuda.Stream(), torch.bfloat16

    def gather(group: overlap.Group, case: Case) -> torch.Tensor:
        weight = case.weights[symrail.my_pe()]
        return overlap.all_gather_matmul(case.x[case.own], weight, group=group, all_rows=case.rows)

    def check(case: Case, result: torch.Tensor, what: str) -> None:
        torch.cuda.synchronize()
        case.group.check()
        near(result, case.x.float() @ case.weights[symrail.my_pe()].float().t(), what)

    for captures_on in (range(symrail.n_pes()), range(1)):
        with overlap.Group(heap_bytes=1 << 20, pieces=2) as group:
            # All rows take 512, 384, 400 and 1000 KiB.
            first, second, third, large = (Case(group, (rows, 256, 64), dtype, 4) for rows in (1024, 768, 800, 2000))
            with torch.cuda.stream(stream):
                for case in (first, second):
                    check(case, gather(group, case), f"{case.rows} rows")
            symrail.barrier_all()
            graph = torch.cuda.CUDAGraph()
            if symrail.my_pe() in captures_on:
                with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                    replayed = gather(group, first)
            for case in (third, second, third):
                with torch.cuda.stream(stream):
                    result = gather(group, case)
                try:
                    with torch.cuda.stream(stream):
                        gather(group, large)
                except HeapExhaustedError as error:
                    assert "heap_bytes" in str(error), error
                else:
                    raise AssertionError("a plan was made in the memory of a captured one")
                if len(captures_on) == symrail.n_pes():
                    first.renew()
                    torch.cuda.synchronize()
                    graph.replay()
                    check(first, replayed, "a replay beside new plans")
                check(case, result, f"{case.rows} rows beside a captured plan")


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
    line = []
    for pieces in (None, 1, 2, 0):
        with overlap.Group(heap_bytes=LARGE_HEAP, pieces=pieces) as group:
            case = Case(group, shape, torch.bfloat16, 3)
            weight, rows = case.weights[symrail.my_pe()], case.x[case.own]
            gather = median(lambda: overlap.all_gather_matmul(rows, weight, group=group))
            reduce = median(lambda: overlap.matmul_reduce_scatter(case.x, weight, group=group))
            line.append(f"pieces {pieces}: gather {gather:.0f} us, reduce {reduce:.0f} us")
            plain = median(lambda: torch.mm(case.x, weight.t()))
    if symrail.my_pe() == 0:
        print(f"times {shape}: {'; '.join(line)}; product alone (of each PE) {plain:.0f}", flush=True)


def copies() -> None:
    """Between the first two PEs, by puts and gets, in both directions, eagerly and replayed: each copy has other
    bytes."""
    me, stream = symrail.my_pe(), torch.cuda.Stream()
    with overlap.PointToPoint(tags=2) as between:
        for size in (1, 8, 1000, (64 << 10) + 3, (9 << 20) + 5):
            to, of = symrail.array(size, "uint8"), symrail.array(size, "uint8")
            seen, given = (torch.as_tensor(array, device="cuda") for array in (to, of))

            def both() -> None:
                if me == 0:
                    between.send(to, of, 1, stream=stream)
                    between.fetch(to, of, 1, tag=1, stream=stream)
                elif me == 1:
                    between.receive(0, stream=stream)
                    between.offer(0, tag=1, stream=stream)

            def check(turn: int) -> None:
                if me < 2:
                    stream.synchronize()
                    wanted = (torch.arange(size, dtype=torch.int64, device="cuda") * 3 + turn + 1 - me).to(torch.uint8)
                    assert torch.equal(seen, wanted), f"{size} bytes, turn {turn}"
                symrail.barrier_all()

            def renew(turn: int) -> None:
                given.copy_(torch.arange(size, dtype=torch.int64, device="cuda") * 3 + turn + me)
                seen.zero_()
                torch.cuda.synchronize()
                symrail.barrier_all()

            for turn in range(3):
                renew(turn)
                both()
                check(turn)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                both()
            for turn in range(3, 6):
                renew(turn)
                with torch.cuda.stream(stream):
                    graph.replay()
                check(turn)
            del graph
            between.check()
            symrail.free(to)
            symrail.free(of)


def late() -> None:
    """PE 1 does not receive: what PE 0 sends does not change its array, and both learn of it."""
    me, stream, kept = symrail.my_pe(), torch.cuda.Stream(), []
    for size in ((64 << 10) + 3, (9 << 20) + 5, (40 << 20) + 1):
        between = overlap.PointToPoint()
        kept.append(between)
        to, of = symrail.array(size, "uint8"), symrail.array(size, "uint8")
        torch.as_tensor(of, device="cuda").fill_(7)
        torch.cuda.synchronize()
        symrail.barrier_all()
        if me == 0:
            between.send(to, of, 1, stream=stream)
            stream.synchronize()
            try:
                between.check()
                raise AssertionError("a send to a rank that does not receive")
            except TimeoutError as error:
                assert error.pes == (1,), error
        symrail.barrier_all()
        assert not torch.as_tensor(to, device="cuda").any(), f"{size} bytes: some have come"
        if me == 1:
            try:
                between.check()
                raise AssertionError("nobody has told that a send failed")
            except SymrailError as error:
                print(error, flush=True)
        symrail.barrier_all()


def products() -> None:
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        for shape, pieces in (((1, 8, 8), None), ((67, 40, 24), 3), ((300, 256, 120), 2), ((301, 256, 120), 0)):
            with overlap.Group(heap_bytes=HEAP, pieces=pieces) as group:
                guarded(f"{shape} {dtype} {pieces} pieces", lambda: eager(group, shape, dtype))
    with overlap.Group(heap_bytes=HEAP, pieces=2) as group:
        guarded(f"{REPLAYS} replays", lambda: replayed(group, (300, 256, 120), torch.bfloat16))
        guarded("plans that graphs keep", kept)
        guarded("gradients", lambda: gradients(group))
        guarded("8-bit floats", lambda: short(group))
    if symrail.n_pes() > 1 and symrail.current().in_gpus:
        guarded("copies between two PEs", copies)
    if "measure" in sys.argv:
        for shape in ((512, 1792, 4096), (8192, 3584, 4096), (16384, 8192, 8192)):
            guarded(f"times {shape}", lambda: times(shape))


# A GPU for each PE, if there are enough.
torch.cuda.set_device(int(os.environ.get("SYMRAIL_LAUNCHER_PE", "0")) % torch.cuda.device_count())
torch.backends.cuda.matmul.allow_tf32 = False
with symrail.init():
    guarded("a rank that does not receive", late) if "late" in sys.argv else products()
