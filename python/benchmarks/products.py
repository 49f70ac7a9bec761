"""Copies on streams, and products that hide their communication, beside NCCL's and PyTorch's, on GPUs of one host:

    symrail run -n 2 -- python3 products.py [copies] [gather] [reduce] [all-reduce] [FILE.json]
    symrail run -n 2 --hosts 2 -- python3 products.py rails [FILE.json]         (SYMRAIL_HEAP_KIND=pinned)

Each PE has its own GPU. The candidates alternate in one run; each time is between two CUDA events, behind a barrier of
all PEs on the stream, with the host ahead. Figures are medians, of the PE for which they are longest. Results are
compared with PyTorch's. A candidate that fails is left out, with a message. PE 0 prints tables, and adds a line for
each figure to the file.

Overlap efficiency: (product alone + moves alone - both) / the shorter of them. The product alone is torch.mm of the
same shape, the moves alone are the faster of NCCL's collective and Symrail's copies on streams.
"""

import json
import os
import statistics
import sys
import time
import traceback

os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")

import torch
import torch.distributed as dist

import symrail
import symrail.overlap as overlap

# Rows of all ranks, inputs and outputs of all ranks: in an all-gather each rank has a part of the outputs, in a
# reduction one of the inputs.
SHAPES = [(32768, 16384, 8192), (32768, 32768, 8192), (8192, 8192, 3584), (2048, 8192, 3584)]
SMALL_SHAPES = [(512, 8192, 3584), (64, 8192, 3584)]
# Shapes whose moves take about as long as the product even through a proxy, and, last, half as long.
RAIL_GATHERS = [(2048, 4096, 262144), (4096, 4096, 262144), (2048, 3584, 524288)]
# Other outputs than the others have, since products whose rows are alike share a plan, and so its pieces.
RAIL_REDUCTIONS = [(2048, 262144, 2048), (2048, 262144, 4096), (2048, 524288, 1536)]
PIECES = [0, 1, 2, 4]
SIZES = [8, 512, 4 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20, 1 << 30]
# How long the stream is busy while the host gets ahead, in cycles.
AHEAD = 4_000_000
DTYPE = torch.bfloat16


def say(text: str) -> None:
    if symrail.my_pe() == 0:
        print(text, flush=True)


class Bench:
    """The job, and the recorded figures."""

    def __init__(self, file: str | None) -> None:
        self.me, self.n = symrail.my_pe(), symrail.n_pes()
        self.file = file
        self.world = symrail.team_world()
        self.groups: dict[int | None, overlap.Group] = {}
        # On the host, independent of the GPU.
        self.box = symrail.array(self.n, "float64")
        self.has_nccl = False

    def join_nccl(self) -> None:
        port = torch.zeros(1)
        if self.me == 0:
            store = dist.TCPStore("127.0.0.1", 0, self.n, is_master=True, wait_for_workers=False)
            port[0] = store.port
        number = int(self.largest(float(port[0])))
        if self.me != 0:
            store = dist.TCPStore("127.0.0.1", number, self.n, is_master=False)
        device = torch.device("cuda", torch.cuda.current_device())
        dist.init_process_group("nccl", store=store, rank=self.me, world_size=self.n, device_id=device)
        self.has_nccl = True

    def all(self, value: float) -> list[float]:
        """A number of each PE, exchanged by the host."""
        for pe in range(self.n):
            symrail.put(self.box[self.me : self.me + 1], [value], pe)
        symrail.barrier_all()
        found = self.box.numpy() if isinstance(self.box, symrail.DeviceArray) else self.box.copy()
        symrail.barrier_all()
        return [float(each) for each in found]

    def largest(self, value: float) -> float:
        return max(self.all(value))

    def write(self, **figure) -> None:
        if self.me == 0 and self.file:
            with open(self.file, "a", encoding="utf-8") as out:
                gpu = torch.cuda.get_device_name()
                out.write(json.dumps({"gpu": gpu, "pes": self.n, "date": time.strftime("%Y-%m-%d"), **figure}) + "\n")

    def group(self, pieces: int | None, heap: int) -> overlap.Group:
        """One group for all shapes, so that it compiles each kernel once."""
        if pieces not in self.groups:
            self.groups[pieces] = overlap.Group(heap_bytes=heap, pieces=pieces)
        return self.groups[pieces]

    def free(self) -> None:
        for group in self.groups.values():
            group.free()

    def tried(self, works: dict) -> dict:
        """The candidates that work on all PEs: calls each once, and keeps its result for the comparison."""
        good = {}
        for name, work in works.items():
            error, result = None, None
            try:
                result = work()
                torch.cuda.synchronize()
            except Exception as found:
                error = found
                if os.environ.get("VERBOSE"):
                    traceback.print_exc()
            if self.largest(float(error is not None)):
                if error is not None:
                    print(f"PE {self.me} FAILED: {name}: {type(error).__name__}: {str(error)[:300]}", flush=True)
                continue
            good[name] = (work, result)
        return good

    def in_turns(self, works: dict, rounds: int, calls: int = 1) -> dict[str, float]:
        """Microseconds of a call, by name."""
        times: dict[str, list[float]] = {name: [] for name in works}
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        stream, names = torch.cuda.current_stream(), list(works)
        for turn in range(rounds + 1):
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                torch.cuda._sleep(AHEAD)
                symrail.barrier_all(stream=stream)
                begin.record()
                for _ in range(calls):
                    works[name]()
                end.record()
                end.synchronize()
                if turn > 0:
                    times[name].append(begin.elapsed_time(end) * 1e3 / calls)
        return {name: self.largest(statistics.median(taken)) for name, taken in times.items()}

    def host_time(self, work, calls: int = 20) -> float:
        """Microseconds of host time for a call while the stream is busy."""
        torch.cuda.synchronize()
        symrail.barrier_all()
        taken = []
        for _ in range(3):
            torch.cuda._sleep(AHEAD)
            began = time.perf_counter_ns()
            for _ in range(calls):
                work()
            taken.append((time.perf_counter_ns() - began) / calls / 1e3)
            torch.cuda.synchronize()
        return self.largest(statistics.median(taken))

    def graphed(self, work):
        """The work as a graph, or None."""
        graph, error, result = torch.cuda.CUDAGraph(), None, None
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        try:
            with torch.cuda.stream(stream):
                work()
            stream.synchronize()
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                result = work()
        except Exception as found:
            error = found
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        if self.largest(float(error is not None)):
            return None

        def replay():
            graph.replay()
            return result

        return replay


def numbers(rows: int, columns: int, seed: int) -> torch.Tensor:
    random = torch.Generator(device="cuda").manual_seed(seed)
    return torch.randn(rows, columns, generator=random, device="cuda", dtype=DTYPE)


def near(found: torch.Tensor, wanted: torch.Tensor, what: str) -> str | None:
    """The difference, if it is more than rounding."""
    if found.shape != wanted.shape:
        return f"{what}: {tuple(found.shape)}, not {tuple(wanted.shape)}"
    worst, scale = float((found - wanted).abs().max()), float(wanted.abs().max())
    return None if worst <= 0.02 * scale else f"{what}: off by {worst} of {scale}"


def first(result) -> torch.Tensor:
    """The product in the result of a call."""
    while isinstance(result, (tuple, list)):
        result = result[-1]
    return result


class Product:
    """One shape of one kind, and the candidates for it."""

    def __init__(self, bench: Bench, kind: str, shape: tuple[int, int, int], heap: int, pieces: list, peers: bool):
        self.bench, self.kind, self.shape = bench, kind, shape
        rows, inputs, outputs = shape
        me, n = bench.me, bench.n
        if kind == "gather":
            x, self.weight = numbers(rows // n, inputs, 1 + me), numbers(outputs // n, inputs, 11 + me)
            self.moved = (rows // n, inputs)
            self.flops = 2 * rows * inputs * (outputs // n)
        else:
            x, self.weight = numbers(rows, inputs // n, 1 + me), numbers(outputs, inputs // n, 11 + me)
            self.moved = (rows // n, outputs)
            self.flops = 2 * rows * (inputs // n) * outputs
        self.x = x
        self.works = {"symrail": self.ours(bench.group(None, heap))}
        for count in pieces:
            self.works[f"{count} pieces"] = self.ours(bench.group(count, heap))
        if peers:
            self.works.update(self.peers())

    def ours(self, group):
        x, weight = self.x, self.weight
        if self.kind == "gather":
            return lambda: overlap.all_gather_matmul(x, weight, group=group, all_rows=self.shape[0])
        if self.kind == "reduce":
            return lambda: overlap.matmul_reduce_scatter(x, weight, group=group)
        return lambda: overlap.matmul_all_reduce(x, weight, group=group)

    def peers(self) -> dict:
        """PyTorch with NCCL, and its asynchronous tensor parallelism."""
        x, weight, n = self.x, self.weight, self.bench.n
        name = dist.group.WORLD.group_name
        if self.kind == "gather":

            def eager():
                rows = torch.empty(x.shape[0] * n, x.shape[1], dtype=DTYPE, device="cuda")
                dist.all_gather_into_tensor(rows, x)
                return torch.mm(rows, weight.t())

            fused = torch.ops.symm_mem.fused_all_gather_matmul
            return {"torch": eager, "torch async": lambda: fused(x, [weight.t()], 0, name, return_A=False)}

        def eager():
            product = torch.mm(x, weight.t())
            if self.kind == "all-reduce":
                dist.all_reduce(product)
                return product
            result = torch.empty(product.shape[0] // n, product.shape[1], dtype=DTYPE, device="cuda")
            dist.reduce_scatter_tensor(result, product)
            return result

        fused = torch.ops.symm_mem.fused_matmul_reduce_scatter
        works = {"torch": eager}
        if self.kind == "reduce":
            works["torch async"] = lambda: fused(x, weight.t(), "sum", 0, name)
        return works

    def alone(self) -> dict:
        """The product, and the moves."""
        bench, n, (rows, width) = self.bench, self.bench.n, self.moved
        factor = self.x
        if self.kind == "gather":
            factor = numbers(self.shape[0], self.x.shape[1], 5)
        product = torch.empty(factor.shape[0], self.weight.shape[0], dtype=DTYPE, device="cuda")
        works = {"product alone": lambda: torch.mm(factor, self.weight.t(), out=product)}
        peer, stream = (bench.me + 1) % n, torch.cuda.current_stream()
        there = symrail.array(rows * width * 2, "uint8")
        # The proxy reads from the heap.
        source = there
        if symrail.is_mapped(peer):
            source = torch.zeros(rows * width * 2, dtype=torch.uint8, device="cuda")
        words, state = symrail.array(2, "uint64"), [0]
        self.taken = [there, words]

        def copies():
            # Sends a shard to each other rank, behind that rank's word that it has space.
            state[0] += 1
            for distance in range(1, n):
                peer = (bench.me + distance) % n
                symrail.signal_op(words, 1, "add", peer, stream=stream)
            symrail.signal_wait(words, state[0] * (n - 1), ">=", stream=stream)
            for distance in range(1, n):
                peer = (bench.me + distance) % n
                symrail.put_signal(there, source, words, 1, "add", peer, offset=1, stream=stream)
            symrail.signal_wait(words, state[0] * (n - 1), ">=", offset=1, stream=stream)

        works["copies alone"] = copies
        if bench.has_nccl:
            shard = torch.zeros(rows, width, dtype=DTYPE, device="cuda")
            whole = torch.zeros(rows * n, width, dtype=DTYPE, device="cuda")
            works["nccl alone"] = {
                "gather": lambda: dist.all_gather_into_tensor(whole, shard),
                "reduce": lambda: dist.reduce_scatter_tensor(shard, whole),
                "all-reduce": lambda: dist.all_reduce(whole),
            }[self.kind]
        return works

    def measure(self, rounds: int, in_graphs: bool) -> None:
        bench, wrong = self.bench, []
        good = bench.tried(self.works)
        reference = next((first(good[name][1]) for name in ("torch", "torch async") if name in good), None)
        if reference is None and "symrail" in good:
            reference = self.checked_by_parts()
        for name, (_, result) in list(good.items()):
            error = None if reference is None else near(first(result), reference, name)
            if bench.largest(float(error is not None)):
                wrong.append(name)
                if error:
                    print(f"PE {bench.me} WRONG: {self.kind} {self.shape}: {error}", flush=True)
        works = {name: work for name, (work, _) in good.items() if name not in wrong}
        good.clear()
        graphs = {}
        if in_graphs:
            for name, work in works.items():
                graph = bench.graphed(work)
                if graph is None:
                    say(f"  no graph of {name}")
                    continue
                error = None if reference is None else near(first(graph()), reference, name)
                if bench.largest(float(error is not None)):
                    say(f"  WRONG in a graph: {name}")
                    continue
                graphs[f"{name}, graph"] = graph
        del reference
        alone = {name: work for name, (work, _) in bench.tried(self.alone()).items()}
        times = bench.in_turns({**works, **graphs, **alone}, rounds)
        hosts = {name: bench.host_time(work) for name, work in works.items() if "pieces" not in name}
        self.report(times, hosts)
        for group in bench.groups.values():
            group.check()
        graphs.clear()
        torch.cuda.synchronize()
        symrail.barrier_all()
        for array in self.taken:
            symrail.free(array)

    def checked_by_parts(self) -> torch.Tensor | None:
        """The result if there is no NCCL: all PEs make all factors from their seeds."""
        rows, n = self.shape[0], self.bench.n
        if self.kind == "gather":
            shards = (numbers(*self.x.shape, 1 + pe) for pe in range(n))
            return torch.cat([torch.mm(shard, self.weight.t()) for shard in shards])
        total = torch.zeros(rows, self.weight.shape[0], device="cuda")
        for pe in range(n):
            total += torch.mm(numbers(*self.x.shape, 1 + pe), numbers(*self.weight.shape, 11 + pe).t())
        own = total[self.bench.me * rows // n : (self.bench.me + 1) * rows // n]
        return (own if self.kind == "reduce" else total).to(DTYPE)

    def report(self, times: dict, hosts: dict) -> None:
        moves = [times[name] for name in ("copies alone", "nccl alone") if name in times]
        product, moves = times.get("product alone"), min(moves, default=None)
        shape = " x ".join(map(str, self.shape))
        say(f"\n{self.kind} {shape}: microseconds, TFLOP/s, efficiency, host's microseconds of a call")
        for name, us in times.items():
            is_alone = name.endswith("alone")
            rate = self.flops / us / 1e6
            hidden = None
            if product and moves and not is_alone:
                hidden = (product + moves - us) / min(product, moves)
            line = f"  {name:22} {us:9.1f}"
            line += f" {rate:7.1f}" if not is_alone or name == "product alone" else " " * 8
            line += f" {hidden:6.2f}" if hidden is not None else " " * 7
            line += f" {hosts[name]:7.1f}" if name in hosts else ""
            say(line)
            figure = {"kind": self.kind, "shape": self.shape, "name": name, "us": us, "tflops": rate}
            self.bench.write(**figure, efficiency=hidden, host_us=hosts.get(name))


def copies(bench: Bench) -> None:
    """From PE 0 to PE 1, each behind the other's word: by a put, by a get, the same in a graph, and by NCCL."""
    me, stream = bench.me, torch.cuda.current_stream()
    largest = SIZES[-1]
    to, of = symrail.array(largest, "uint8"), symrail.array(largest, "uint8")
    seen = torch.as_tensor(to, device="cuda")
    torch.as_tensor(of, device="cuda").copy_(torch.arange(largest, dtype=torch.int32, device="cuda") * 7 + me)
    between = overlap.PointToPoint(tags=2)
    torch.cuda.synchronize()
    symrail.barrier_all()
    say("\none copy behind its handshake, microseconds (GB/s)")

    def put(size: int):
        if me == 0:
            return lambda: between.send(to[:size], of[:size], 1, stream=torch.cuda.current_stream())
        return lambda: between.receive(0, stream=torch.cuda.current_stream())

    def get(size: int):
        if me == 0:
            return lambda: between.offer(1, tag=1, stream=torch.cuda.current_stream())
        return lambda: between.fetch(to[:size], of[:size], 0, tag=1, stream=torch.cuda.current_stream())

    def by_nccl(size: int):
        source, target = (torch.zeros(size, dtype=torch.uint8, device="cuda") for _ in range(2))
        return lambda: dist.send(source, 1) if me == 0 else dist.recv(target, 0)

    for size in SIZES:
        works = {"put": put(size), "get": get(size)}
        if bench.has_nccl:
            works["nccl"] = by_nccl(size)
        calls = max(1, min(40, (1 << 30) // size))
        seen[:size].zero_()
        torch.cuda.synchronize()
        symrail.barrier_all()
        rounds = 5 if size > 1 << 26 else 9
        times = bench.in_turns(works, rounds, calls)

        def several(work):
            return lambda: [work() for _ in range(calls)]

        graphs = {name: bench.graphed(several(work)) for name, work in works.items()}
        graphs = {f"{name}, graph": graph for name, graph in graphs.items() if graph is not None}
        times.update({name: us / calls for name, us in bench.in_turns(graphs, rounds).items()})
        torch.cuda.synchronize()
        right = True
        if me == 1:
            wanted = (torch.arange(size, dtype=torch.int32, device="cuda") * 7).to(torch.uint8)
            right = torch.equal(seen[:size], wanted)
        right = not bench.largest(float(not right))
        each = "".join(f"  {name} {us:8.2f} ({size / us / 1e3:5.1f})" for name, us in times.items())
        line = f"  {size:>10} B:" + each
        say(line + ("" if right else "  WRONG BYTES"))
        for name, us in times.items():
            bench.write(kind="copy", bytes=size, name=name, us=us, right=right)
    between.check()
    between.free()
    symrail.barrier_all()
    for array in (to, of):
        symrail.free(array)


def products(bench: Bench, kind: str, shapes: list, peers: bool, pieces: list) -> None:
    # The rows of the largest plan; a reduction has its products, and those of the others for its shard.
    if kind == "gather":
        heap = max(rows * inputs for rows, inputs, _ in shapes)
    else:
        heap = max((3 if kind == "all-reduce" else 2) * rows * outputs for rows, _, outputs in shapes)
    for shape in shapes:
        began = time.monotonic()
        try:
            large = 2 * shape[0] * shape[1] * shape[2] > 1 << 42
            Product(bench, kind, shape, heap * 2 + (8 << 20), pieces, peers).measure(7 if large else 25, peers)
        except Exception:
            print(f"PE {bench.me} FAILED: {kind} {shape}\n{traceback.format_exc()}", flush=True)
            raise
        torch.cuda.empty_cache()
        say(f"  ({time.monotonic() - began:.1f} s)")
    bench.free()
    bench.groups.clear()


def main() -> None:
    parts = [argument for argument in sys.argv[1:] if not argument.endswith(".json")] or ["copies", "gather", "reduce"]
    file = next((argument for argument in sys.argv[1:] if argument.endswith(".json")), None)
    # PEs of simulated hosts are on the same machine: each uses another GPU.
    pe = int(os.environ.get("SYMRAIL_LAUNCHER_PE", os.environ.get("RANK", "0")))
    device = pe % torch.cuda.device_count()
    torch.cuda.set_device(device)
    with symrail.init(device=device) as runtime, torch.cuda.stream(torch.cuda.Stream()):
        assert runtime.device == device, f"PE {pe} is on GPU {runtime.device}, not {device}"
        bench = Bench(file)
        say(f"{bench.n} PEs, {torch.cuda.get_device_name()}, torch {torch.__version__}")
        if torch.cuda.device_count() < bench.n:
            say("SKIPPED: each PE needs a GPU of its own")
            return
        if any(part != "rails" for part in parts):
            bench.join_nccl()
            try:
                from torch.distributed._symmetric_memory import enable_symm_mem_for_group

                enable_symm_mem_for_group(dist.group.WORLD.group_name)
            except Exception as error:
                say(f"no symmetric memory of torch: {error}")
        for part in parts:
            if part == "copies":
                copies(bench)
            elif part == "rails":
                products(bench, "gather", RAIL_GATHERS, False, PIECES)
                products(bench, "reduce", RAIL_REDUCTIONS, False, PIECES)
            else:
                products(bench, part, SHAPES + SMALL_SHAPES, True, PIECES)
        torch.cuda.synchronize()
        symrail.barrier_all()
    if bench.has_nccl:
        dist.destroy_process_group()


main()
