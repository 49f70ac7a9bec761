"""All ranks' rows and a residual, added up and normalised in one launch, beside NCCL's all-reduce and PyTorch's
compiled addition and RMS norm:

    symrail run -n 2 -- python3 norms.py [ROWSxELEMENTS …] [--dtype bfloat16] [--only-checks]

Each PE has its own GPU, and the heap is in its memory (SYMRAIL_HEAP_KIND=device). First results are compared: sums with
all ranks' rows, added in the order of ranks, bit by bit; norms with PyTorch's; and all results among ranks, bit by bit.
Times are those of graphs of 20 calls, medians of rounds in turns, of the PE for which they are longest. Without NCCL in
PyTorch its column is missing.
"""

import os
import statistics
import sys

os.environ.setdefault("NCCL_NVLS_ENABLE", "0")

import torch
import torch.distributed as dist

import symrail
from symrail.collectives import Communicator

SHAPES = ["1x4096", "16x8192", "32x8192", "64x4096", "128x4096", "256x4096", "512x4096", "128x8192", "512x8192"]
# Rows of any length, fewer rows than ranks, rows that need several slots, and several chunks of a row.
ODD = ["1x8192", "3x7", "67x129", "300x1000", "130x65536", "5x300000"]
CALLS, ROUNDS, EPSILON = 20, 9, 1e-6
# How long the stream is busy while the host gets ahead, in cycles.
AHEAD = 2_000_000
WAYS = ("packets", "pushed")


class Rows:
    """The memory of a call, `shift` elements behind an aligned address."""

    def __init__(self, rows: int, hidden: int, dtype: torch.dtype, shift: int = 0) -> None:
        self.rows, self.hidden, self.dtype, self.shift = rows, hidden, dtype, shift
        me = symrail.my_pe()
        self.input, self.residual = self.numbers(rows, me), self.numbers(rows, 100)
        self.weight = self.numbers(1, 200)[0]
        self.output, self.sum = self.numbers(rows, 300), self.numbers(rows, 301)
        self.codes = torch.zeros(rows, hidden, device="cuda", dtype=torch.float8_e4m3fn)
        self.scale = torch.full((1,), 0.05, device="cuda")
        self.scales = torch.zeros(rows, max(hidden // 128, 1), device="cuda")

    def numbers(self, rows: int, seed: int) -> torch.Tensor:
        random = torch.Generator(device="cuda").manual_seed(seed)
        all_of = torch.randn(rows * self.hidden + self.shift, generator=random, device="cuda", dtype=self.dtype)
        return all_of[self.shift :].view(rows, self.hidden)

    def expected(self, has_residual: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
        total = self.numbers(self.rows, 0).float()
        for pe in range(1, symrail.n_pes()):
            total += self.numbers(self.rows, pe).float()
        total = (total + self.residual.float() if has_residual else total).to(self.dtype)
        return total, torch.nn.functional.rms_norm(total.float(), (self.hidden,), self.weight.float(), EPSILON)

    def call(self, all_of: Communicator, way: str | None, form: str = "plain", has_residual: bool = True) -> None:
        more = {"plain": {"out": self.output}, "tensor": {"out": self.codes, "scale": self.scale}}
        more["groups"] = {"out": self.codes, "scales": self.scales}
        residual = self.residual if has_residual else None
        all_of.all_reduce_rms_norm(
            self.input, residual, self.weight, EPSILON, residual_out=self.sum, algorithm=way, **more[form]
        )

    def in_place(self, all_of: Communicator, way: str | None) -> None:
        all_of.all_reduce_rms_norm(self.input, self.residual, self.weight, EPSILON, algorithm=way)


def largest(value: float, box: symrail.DeviceArray) -> float:
    """The largest number of all PEs, exchanged by the host."""
    me, n = symrail.my_pe(), symrail.n_pes()
    for pe in range(n):
        symrail.put(box[me : me + 1], [value], pe)
    symrail.barrier_all()
    found = max(float(each) for each in (box.numpy() if isinstance(box, symrail.DeviceArray) else box))
    symrail.barrier_all()
    return found


def say(text: str) -> None:
    if symrail.my_pe() == 0:
        print(text, flush=True)


def bits(tensor: torch.Tensor) -> float:
    """A number that depends on all bits and their places."""
    words = tensor.contiguous().view(torch.uint8).flatten().to(torch.int64)
    return float((words * (torch.arange(len(words), device="cuda") % 8191 + 1)).sum() % (1 << 50))


def fits(rows: int, hidden: int, dtype: torch.dtype) -> bool:
    """Whether packets carry the rows."""
    return rows * -(-hidden * dtype.itemsize // 16) * 16 <= (2 << 20) // (symrail.n_pes() - 1)


def check(all_of: Communicator, shape: str, dtype: torch.dtype, box: symrail.DeviceArray) -> int:
    """The number of ways and forms that were wrong."""
    rows, hidden = (int(number) for number in shape.split("x"))
    wrong = 0
    for shift in (0, 1):
        memory = Rows(rows, hidden, dtype, shift)
        total, norm = memory.expected()
        forms = ["plain", "tensor"] + (["groups"] if hidden % 128 == 0 and dtype.itemsize == 2 else [])
        for way in WAYS:
            for form in forms:
                if way == "packets" and not fits(rows, hidden, dtype):
                    continue
                memory.sum.fill_(7)
                memory.call(all_of, way, form)
                torch.cuda.synchronize()
                all_of.check()
                found = memory.output.float()
                if form == "tensor":
                    found = memory.codes.float() * memory.scale
                elif form == "groups":
                    found = (memory.codes.float().view(rows, -1, 128) * memory.scales[..., None]).view(rows, hidden)
                limit = 0.07 if form != "plain" else 2e-5 if dtype == torch.float32 else 0.01
                # What is beyond 448 scales is cut off.
                counts = norm.abs() < (440 * 0.05 if form == "tensor" else float("inf"))
                off = float((((found - norm).abs() - limit * norm.abs()) * counts).max())
                same_sum = torch.equal(memory.sum, total)
                mine = bits(memory.sum) + bits(memory.output if form == "plain" else memory.codes)
                same = largest(mine, box) == -largest(-mine, box)
                if largest(0.0 if same_sum and same and off <= 1e-3 else 1.0, box) != 0:
                    wrong += 1
                    what = f"{shape} {dtype} {way} {form}, shift {shift}: sum {same_sum}, same {same}, off by {off}"
                    print(f"PE {symrail.my_pe()} WRONG: {what}", flush=True)
        for way in WAYS:
            if way == "packets" and not fits(rows, hidden, dtype):
                continue
            memory = Rows(rows, hidden, dtype, shift)
            # A NaN whose bits are all set, in the middle and at the end of PE 0's rows.
            if symrail.my_pe() == 0:
                memory.input.view(torch.int16)[[rows // 2, -1], -1] = -1
            if symrail.my_pe() == 0 and dtype.itemsize == 4:
                memory.input.view(torch.int32)[-1, -1] = -1
            memory.call(all_of, way)
            torch.cuda.synchronize()
            is_nan = memory.sum.isnan()
            if largest(0.0 if bool(is_nan[-1, -1]) and int(is_nan.sum()) <= 2 else 1.0, box) != 0:
                wrong += 1
                say(f"WRONG: a NaN's bits: {shape} {dtype} {way}")
            memory = Rows(rows, hidden, dtype, shift)
            memory.call(all_of, way, has_residual=False)
            torch.cuda.synchronize()
            if largest(0.0 if torch.equal(memory.sum, memory.expected(False)[0]) else 1.0, box) != 0:
                wrong += 1
                say(f"WRONG without a residual: {shape} {dtype} {way}")
            memory.in_place(all_of, way)
            torch.cuda.synchronize()
            same_sum = torch.equal(memory.residual, total)
            off = float(((memory.input.float() - norm).abs() - 0.01 * norm.abs()).max())
            if largest(0.0 if same_sum and off <= 1e-3 else 1.0, box) != 0:
                wrong += 1
                print(f"PE {symrail.my_pe()} WRONG in place: {shape} {dtype} {way}: {same_sum}, {off}", flush=True)
    return wrong


def mixed(all_of: Communicator, box: symrail.DeviceArray) -> int:
    """Norms among other collectives that use the same slots, in chunks of one, two and four: the wrong rounds."""
    me, n, kind = symrail.my_pe(), symrail.n_pes(), {"device": "cuda", "dtype": torch.float32}
    shapes = [(200, 4096), (96, 30000), (67, 60000), (640, 1024)]
    rows = [Rows(*shape, torch.bfloat16) for shape in shapes]
    wanted = [memory.expected()[0] for memory in rows]
    large, small = torch.full((3 << 20,), 1.0 + me, **kind), torch.full((300_000,), 1.0 + me, **kind)
    total, gathered = torch.zeros_like(large), torch.zeros(n * len(small), **kind)

    def work() -> None:
        for memory in rows:
            memory.call(all_of, "pushed")
            all_of.all_gather(gathered, small, algorithm="pushed")
            all_of.all_reduce(large, total, algorithm="pushed")
            all_of.all_gather(gathered, small, algorithm="pushed")

    def wrong() -> bool:
        torch.cuda.synchronize()
        all_of.check()
        good = all(torch.equal(memory.sum, sums) for memory, sums in zip(rows, wanted, strict=True))
        ranks = 1 + torch.arange(n, **kind)
        good &= bool((total == ranks.sum()).all()) and bool((gathered.view(n, -1) == ranks[:, None]).all())
        for memory in rows:
            memory.sum.zero_()
        total.zero_(), gathered.zero_()
        return largest(0.0 if good else 1.0, box) != 0

    count = 0
    for _ in range(5):
        work()
        count += wrong()
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        work()
    for _ in range(5):
        graph.replay()
        work()
        count += wrong()
    if count:
        say(f"WRONG: {count} of 10 rounds of norms among other collectives")
    return count


def graphed(work) -> torch.cuda.CUDAGraph:
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        work()
        work()
        stream.synchronize()
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            for _ in range(CALLS):
                work()
    torch.cuda.synchronize()
    return graph


def measure(all_of: Communicator, shape: str, dtype: torch.dtype, box: symrail.DeviceArray) -> None:
    rows, hidden = (int(number) for number in shape.split("x"))
    memory, works = Rows(rows, hidden, dtype), {}
    if dist.is_initialized():

        @torch.compile(dynamic=False)
        def finish(summed, residual, weight):
            total = summed + residual
            return total, torch.nn.functional.rms_norm(total, (hidden,), weight, EPSILON)

        def beside():
            dist.all_reduce(memory.input)
            return finish(memory.input, memory.residual, memory.weight)

        # Sums of sums would not be finite.
        memory.input.zero_()
        works["NCCL"] = beside
    works["chosen"] = lambda: memory.call(all_of, None)
    works["pushed"] = lambda: memory.call(all_of, "pushed")
    works["pushed FP8"] = lambda: memory.call(all_of, "pushed", "tensor")
    if fits(rows, hidden, dtype):
        other = Rows(rows, hidden, dtype)
        works["packets"] = lambda: memory.call(all_of, "packets")
        works["packets FP8"] = lambda: memory.call(all_of, "packets", "tensor")
        works["packets in place"] = lambda: other.in_place(all_of, "packets")
    graphs = {name: graphed(work) for name, work in works.items()}
    times: dict[str, list[float]] = {name: [] for name in graphs}
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for lap in range(ROUNDS + 1):
        for name, graph in graphs.items():
            torch.cuda._sleep(AHEAD)
            symrail.barrier_all(stream=torch.cuda.current_stream())
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            if lap > 0:
                times[name].append(begin.elapsed_time(end) * 1e3 / CALLS)
    all_of.check()
    of_all = {name: largest(statistics.median(taken), box) for name, taken in times.items()}
    ratio = f", chosen / NCCL {of_all['chosen'] / of_all['NCCL']:.2f}" if "NCCL" in of_all else ""
    say(f"{shape:>10}: " + ", ".join(f"{name} {time:.2f}" for name, time in of_all.items()) + ratio)


def main() -> None:
    arguments = sys.argv[1:]
    name = arguments[arguments.index("--dtype") + 1] if "--dtype" in arguments else "bfloat16"
    dtype = getattr(torch, name)
    shapes = [each for each in arguments if each[0].isdigit()] or SHAPES
    device = int(os.environ.get("SYMRAIL_LAUNCHER_PE", "0")) % torch.cuda.device_count()
    torch.cuda.set_device(device)
    with symrail.init(device=device), torch.cuda.stream(torch.cuda.Stream()):
        me, n = symrail.my_pe(), symrail.n_pes()
        box = symrail.array(n, "float64")
        all_of = Communicator(device="cuda", any_memory=True)
        types = dict.fromkeys((dtype, torch.float16, torch.float32))
        wrong = sum(check(all_of, shape, each, box) for shape in shapes + ODD for each in types)
        wrong += mixed(all_of, box)
        say(f"{n} PEs, {torch.cuda.get_device_name()}, {name}: {wrong} wrong")
        if "--only-checks" not in arguments:
            if dist.is_nccl_available():
                port = 0
                if me == 0:
                    store = dist.TCPStore("127.0.0.1", 0, n, is_master=True, wait_for_workers=False)
                    port = store.port
                port = int(largest(float(port), box))
                if me != 0:
                    store = dist.TCPStore("127.0.0.1", port, n, is_master=False)
                of_gpu = torch.device("cuda", device)
                dist.init_process_group("nccl", store=store, rank=me, world_size=n, device_id=of_gpu)
            say("rows x elements, us:")
            for shape in shapes:
                measure(all_of, shape, dtype, box)
            torch.cuda.synchronize()
            if dist.is_initialized():
                dist.destroy_process_group()
        all_of.free()
    sys.exit(1 if wrong else 0)


main()
