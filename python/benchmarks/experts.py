"""Expert parallelism on GPUs beside other ways to do it: `symrail run -n 2 -- python experts.py`, or torchrun.

One run measures alternately, with the same tokens and routes: dispatch and combine of many tokens (4,096) and of few
(128) by symrail.ep; the same by all_to_all_single of torch.distributed (NCCL) and a permutation in torch; and copies of
as many bytes to a peer. Results are compared first. Times are the GPU's, by events around batches of calls or around
replays of a graph of them: medians, of the slowest rank. A case that fails is printed, and the others continue. Other
forms measure symrail.ep only, and the time of each of its kernels: `experts.py sms 16 24 64` many tokens with these
numbers of multiprocessors, `experts.py few` few tokens, and `experts.py proxied` these with a pinned heap, for
SYMRAIL_DISABLE_P2P=1.
"""

import os
import statistics
import sys
import time
import traceback
from datetime import timedelta

os.environ.setdefault("CUDA_MODULE_LOADING", "EAGER")
os.environ.setdefault("NCCL_NVLS_ENABLE", "0")

import symrail
import symrail.ep as deep_ep
import torch
import torch.distributed as dist

HIDDEN, K, EXPERTS, MANY, FEW, GROUP = 7168, 8, 256, 4096, 128, 128
CALLS, BATCHES = 10, 15
SMS = 24


def show(*parts):
    if symrail.my_pe() == 0:
        print(*parts, flush=True)


def slowest(value):
    """The largest of all ranks."""
    if not dist.is_initialized():
        return value
    both = torch.tensor([value], dtype=torch.float64, device="cuda")
    dist.all_reduce(both, op=dist.ReduceOp.MAX)
    return float(both)


def device_time(go, calls, batches=BATCHES):
    """Microseconds of the stream for each of the calls that `go` makes."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    taken = []
    for batch in range(batches + 2):
        torch.cuda.synchronize()
        symrail.barrier_all()
        begin.record()
        go()
        end.record()
        end.synchronize()
        if batch >= 2:
            taken.append(begin.elapsed_time(end) * 1000 / calls)
    return slowest(statistics.median(taken))


def captured(call, calls=CALLS):
    """A graph of several calls, as a function that replays it."""
    for _ in range(2):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for _ in range(calls):
            call()
    return graph.replay


def in_graph(call):
    replay = captured(call)
    return device_time(replay, CALLS)


def eager(call):
    def go():
        for _ in range(CALLS):
            call()

    for _ in range(3):
        call()
    return device_time(go, CALLS)


def attempt(name, measure):
    """The result of a case, or None if it fails."""
    began = time.monotonic()
    try:
        found = measure()
    except Exception as error:
        traceback.print_exc()
        print(f"FAILED on PE {symrail.my_pe()}: {name}: {error}", flush=True)
        return None
    if os.environ.get("EXPERTS_VERBOSE"):
        show(f"  ({name}: {time.monotonic() - began:.1f} s)")
    return found


class Tokens:
    """A rank's tokens: each names `K` different experts."""

    def __init__(self, count, rank, device="cuda"):
        some = torch.Generator().manual_seed(1000 * count + rank)
        self.x = torch.randn((count, HIDDEN), generator=some).bfloat16().to(device)
        self.topk = torch.rand((count, EXPERTS), generator=some).topk(K, dim=1).indices.to(device)
        self.weights = torch.rand((count, K), generator=some).to(device)

    def in_rank(self, ranks):
        found = torch.zeros((len(self.x), ranks), dtype=torch.bool, device=self.x.device)
        return found.scatter_(1, self.topk // (EXPERTS // ranks), True)


def cast(x):
    """FP8 with a scale for each 128 elements."""
    grouped = x.float().reshape(len(x), -1, GROUP)
    most = grouped.abs().amax(dim=2).clamp(min=1e-4)
    # torch divides by multiplying with a rounded reciprocal.
    largest = torch.full_like(most, 448)
    return (grouped * (largest / most)[:, :, None]).to(torch.float8_e4m3fn).reshape(x.shape), most / largest


def uncast(rows, scales):
    return (rows.float() * scales.repeat_interleave(GROUP, dim=-1)).bfloat16()


def weighted(tokens, ranks, x=None):
    """The result of a combine if each expert returns its tokens unchanged: the sum of each rank's slots is of FP32, and
    rounded; then these are added."""
    x = (tokens.x if x is None else x).float()
    of, total = tokens.topk // (EXPERTS // ranks), torch.zeros_like(x)
    for rank in range(ranks):
        of_rank = torch.zeros_like(x)
        for slot in range(K):
            of_rank += torch.where(of[:, slot : slot + 1] == rank, x * tokens.weights[:, slot : slot + 1], 0)
        total += of_rank.bfloat16()
    return total.bfloat16()


def close(found, wanted, what, part=0.02):
    """Equal up to a part of the largest value."""
    apart = float((found.float() - wanted.float()).abs().max())
    assert apart <= part * float(wanted.float().abs().max()), f"{what}: apart by {apart}"


# Programs without a library use all_to_all_single, and torch's indexing.


class PerSlot:
    """A row for each token and slot, ordered by expert, as permuting dispatchers of training programs do it."""

    def __init__(self, tokens, ranks):
        self.tokens, self.ranks, self.share = tokens, ranks, EXPERTS // ranks
        self.splits = None

    def dispatch(self, known=False):
        flat = self.tokens.topk.reshape(-1)
        self.order = torch.argsort(flat, stable=True)
        if not known:
            counts = torch.bincount(flat, minlength=EXPERTS)
            come = torch.empty_like(counts)
            dist.all_to_all_single(come, counts)
            sends = counts.reshape(self.ranks, self.share).sum(dim=1).tolist()
            comes = come.reshape(self.ranks, self.share).sum(dim=1).tolist()
            of_experts = torch.arange(self.share, device=flat.device).repeat(self.ranks)
            self.by_expert = torch.argsort(torch.repeat_interleave(of_experts, come), stable=True)
            self.splits = (sends, comes)
        sends, comes = self.splits
        rows = self.tokens.x.index_select(0, self.order // K)
        received = rows.new_empty((sum(comes), HIDDEN))
        dist.all_to_all_single(received, rows, comes, sends)
        return received.index_select(0, self.by_expert)

    def combine(self, made):
        sends, comes = self.splits
        back = torch.empty_like(made)
        back[self.by_expert] = made
        rows = made.new_empty((sum(sends), HIDDEN))
        dist.all_to_all_single(rows, back, sends, comes)
        by_slot = torch.empty_like(rows)
        by_slot[self.order] = rows
        return (by_slot.reshape(-1, K, HIDDEN) * self.tokens.weights[:, :, None]).sum(dim=1).bfloat16()


class PerRank:
    """A row for each token and rank, with its slots and weights: fewer bytes, as in a dispatch of many tokens."""

    def __init__(self, tokens, ranks):
        self.tokens, self.ranks = tokens, ranks
        self.splits = None

    def dispatch(self, known=False):
        in_rank = self.tokens.in_rank(self.ranks)
        if not known:
            _, self.token = in_rank.t().nonzero(as_tuple=True)
            counts = in_rank.sum(dim=0)
            come = torch.empty_like(counts)
            dist.all_to_all_single(come, counts)
            self.splits = (counts.tolist(), come.tolist())
        sends, comes = self.splits
        received = []
        for part in (self.tokens.x, self.tokens.topk, self.tokens.weights):
            rows = part.index_select(0, self.token)
            received.append(rows.new_empty((sum(comes), rows.shape[1])))
            dist.all_to_all_single(received[-1], rows, comes, sends)
        return received[0]

    def combine(self, made):
        sends, comes = self.splits
        rows = made.new_empty((sum(sends), HIDDEN))
        dist.all_to_all_single(rows, made, sends, comes)
        total = torch.zeros((len(self.tokens.x), HIDDEN), device=rows.device)
        return total.index_add_(0, self.token, rows.float()).bfloat16()


def by_nccl(kind, tokens, ranks, wanted):
    """Times of dispatch and combine: eager, and in a graph with the numbers of rows known."""
    plain = kind(tokens, ranks)
    made = plain.dispatch()
    close(plain.combine(made), wanted, kind.__name__)
    found = {"eager": (eager(plain.dispatch), eager(lambda: plain.combine(made)))}
    graphs = attempt(
        f"NCCL {kind.__name__} in a graph",
        lambda: (in_graph(lambda: plain.dispatch(known=True)), in_graph(lambda: plain.combine(made))),
    )
    return {**found, "graph": graphs}


# symrail.ep


def many_by_symrail(buffer, tokens, ranks, graphs_only=False):
    """Times of dispatch and combine of many tokens, for each way of calling them."""
    data, in_rank = cast(tokens.x), tokens.in_rank(ranks)
    _, _, per_expert, of_tokens, _ = buffer.get_dispatch_layout(tokens.topk, EXPERTS)
    routes = dict(
        is_token_in_rank=of_tokens,
        num_tokens_per_expert=per_expert,
        topk_idx=tokens.topk,
        topk_weights=tokens.weights,
    )
    (rows, scales), _, _, _, handle, _ = buffer.dispatch(data, **routes)
    me = symrail.my_pe()
    wanted = torch.cat([cast(one.x)[0][one.in_rank(ranks)[:, me]] for one in (Tokens(MANY, r) for r in range(ranks))])
    assert torch.equal(rows.view(torch.uint8), wanted.view(torch.uint8)), "rows of a dispatch"
    del wanted
    made = uncast(rows, scales)
    # It may be written now only. Later combines have the same rows.
    in_place = buffer.get_next_combine_buffer(handle, HIDDEN, made.dtype)
    in_place.copy_(made)
    combined = buffer.combine(made, handle)[0]
    torch.cuda.synchronize()

    def both(rows):
        buffer.dispatch(data, handle=handle)
        buffer.combine(rows, handle)

    # Each rank returns the token.
    times = in_rank.sum(dim=1, keepdim=True).float()
    assert torch.equal(combined, (uncast(*data).float() * times).bfloat16()), "sums of a combine"
    found = {}
    worst = ranks * MANY
    cases = {
        "dispatch, handle, graph": lambda: in_graph(lambda: buffer.dispatch(data, handle=handle)),
        "dispatch, new routes, graph": lambda: in_graph(
            lambda: buffer.dispatch(data, num_worst_tokens=worst, **routes)
        ),
        "dispatch, new routes, host waits": lambda: eager(lambda: buffer.dispatch(data, **routes)),
        "combine, graph": lambda: in_graph(lambda: buffer.combine(made, handle)),
        "both, graph": lambda: in_graph(lambda: both(made)),
        "both, graph, rows in place": lambda: in_graph(lambda: both(in_place)),
        "combine, eager": lambda: eager(lambda: buffer.combine(made, handle)),
    }
    for name, measure in cases.items():
        if not graphs_only or "graph" in name:
            found[name] = attempt(name, measure)
    for name, call in (
        ("dispatch by a handle", lambda: buffer.dispatch(data, handle=handle)),
        ("combine", lambda: buffer.combine(made, handle)),
    ):
        text = attempt(f"kernels, {name}", lambda call=call: kernels_of(captured(call)))
        if text:
            show(f"  kernels of calls, {name}\n{text}")
    return found


class Few:
    """A round of few tokens by symrail.ep."""

    def __init__(self, buffer, tokens, ranks, fp8):
        self.buffer, self.tokens, self.ranks, self.fp8 = buffer, tokens, ranks, fp8
        shape = (EXPERTS // ranks, ranks * FEW, HIDDEN)
        self.made = torch.zeros(shape, dtype=torch.bfloat16, device="cuda")
        self.out = torch.empty_like(tokens.x)
        self.handle = None

    def dispatch(self):
        received, counts, self.handle, _, _ = self.buffer.low_latency_dispatch(
            self.tokens.x, self.tokens.topk, FEW, EXPERTS, use_fp8=self.fp8
        )
        return received, counts

    def combine(self):
        given = (self.made, self.tokens.topk, self.tokens.weights, self.handle)
        return self.buffer.low_latency_combine(*given, out=self.out)[0]

    def round(self):
        self.dispatch()
        self.combine()

    def check(self):
        received, counts = self.dispatch()
        rows = uncast(*received) if self.fp8 else received
        for expert, count in enumerate(counts.tolist()):
            self.made[expert, :count] = rows[expert, :count]
        found = self.combine()
        torch.cuda.synchronize()
        x = self.tokens.x
        if self.fp8:
            close(found, weighted(self.tokens, self.ranks), "a sum of FP8", 0.08)
            wanted = weighted(self.tokens, self.ranks, uncast(*cast(x)))
            assert torch.equal(found, wanted), "a sum of FP8, cast by torch"
        else:
            assert torch.equal(found, weighted(self.tokens, self.ranks)), "a sum of bfloat16"

    def split(self):
        """Dispatch and combine separately: as two graphs, replayed alternately, with events between."""
        def graph_of(call):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                call()
            return graph

        graphs = [graph_of(self.dispatch), graph_of(self.combine)]
        rounds = 50
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(2 * rounds + 1)]
        torch.cuda.synchronize()
        symrail.barrier_all()
        marks[0].record()
        for i in range(2 * rounds):
            graphs[i % 2].replay()
            marks[i + 1].record()
        torch.cuda.synchronize()
        times = [marks[i].elapsed_time(marks[i + 1]) * 1000 for i in range(2 * rounds)]
        return tuple(slowest(statistics.median(times[part + rounds // 2 * 2 :: 2])) for part in (0, 1))


def kernels_of(go):
    """Median and extreme microseconds and number of launches of each kernel, from the driver's records."""
    from torch.profiler import ProfilerActivity, profile

    go()
    torch.cuda.synchronize()
    symrail.barrier_all()
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as found:
        for _ in range(3):
            go()
        torch.cuda.synchronize()
    times = {}
    for event in found.events():
        took = event.device_time
        if took:
            times.setdefault(event.name, []).append(took)
    return "\n".join(
        f"    {name[:60]:<60} {len(took):>4} x {statistics.median(took):8.2f} us ({min(took):.2f} to {max(took):.2f})"
        for name, took in times.items()
    )


def peer_copies(ranks, sizes):
    """GB/s of copies to the peer by a kernel of torch (all SMs), by symrail.put on the stream, and by copy engine."""
    peer, found = (symrail.my_pe() + 1) % ranks, {}
    there = symrail.array(max(sizes), "uint8")
    mapped = symrail.get_peer_tensor(there, peer)
    here = torch.zeros(max(sizes), dtype=torch.uint8, device="cuda")
    for size in sizes:
        to, of = mapped[:size].view(torch.float32), here[:size].view(torch.float32)
        array, stream = there[:size], torch.cuda.current_stream()
        ways = {
            "kernel of torch": lambda to=to, of=of: torch.add(of, 0, out=to),
            "copy_ of torch": lambda to=to, of=of: to.copy_(of),
            "symrail.put": lambda array=array, size=size: symrail.put(array, here[:size], peer, stream=stream),
        }
        found[size] = {}
        for name, call in ways.items():
            took = attempt(f"{name} of {size} B", lambda call=call: eager(call))
            found[size][name] = took and size / took / 1e3
    symrail.barrier_all()
    return found


def number(value, form="7.1f"):
    return f"{value:{form}}" if value else f"{'-':>{form.split('.')[0]}}"


def pair(times):
    return f"{number(times[0])} / {number(times[1])}" if times else f"{'-':>7} / {'-':>7}"


def ratio(other, own):
    return f"{other / own:5.2f}x" if other and own else "    -"


def tell_many(found, plain, copies, crossing, all_rows):
    show(f"\n{MANY} tokens, FP8 dispatch, bfloat16 combine, {SMS} SMs; {crossing} of {all_rows} rows cross")
    show(f"{'symrail.ep':<34} {'us':>8} {'GB/s crossing':>14} {'GB/s of all rows':>17} {'of a copy':>10}")
    row = {"dispatch": HIDDEN + HIDDEN // GROUP * 4, "combine": 2 * HIDDEN}
    row["both"] = sum(row.values())
    for name, took in found.items():
        bytes_each = row[name.split(",")[0]]
        if not took:
            show(f"{name:<34} {'-':>8}")
            continue
        rate, of_all = (rows * bytes_each / took / 1e3 for rows in (crossing, all_rows))
        best = max((rate or 0 for rate in (copies or {}).get(copy_size(crossing * bytes_each), {}).values()), default=0)
        share = f"{rate / best:9.2f}" if best else f"{'-':>9}"
        show(f"{name:<34} {took:8.1f} {rate:14.1f} {of_all:17.1f} {share:>10}")
    show(f"{'NCCL, bfloat16: dispatch / combine':<34} {'us':>18} {'ours is faster by':>28}")
    own = (found.get("dispatch, new routes, host waits"), found.get("combine, eager"))
    own_graph = (found.get("dispatch, new routes, graph"), found.get("combine, graph"))
    for name, times in plain.items():
        for how, both in (times or {}).items():
            of = own if how == "eager" else own_graph
            if both:
                show(f"{name + ', ' + how:<34} {pair(both):>18} {ratio(both[0], of[0]):>18} / {ratio(both[1], of[1])}")


def copy_size(size):
    return -(-size // 512) * 512


def tell_few(found, plain):
    show(f"\n{FEW} tokens, us: dispatch / combine")
    for name, times in found.items():
        if times:
            show(f"{name:<34} {pair(times['split'])}   a round {number(times['round'])}   eager {number(times['eager'])}")
    own = found.get("symrail.ep, FP8") or found.get("symrail.ep, bfloat16") or {}
    for name, times in plain.items():
        for how, both in (times or {}).items():
            if both:
                of = own.get("round" if how == "graph" else "eager")
                show(f"{'NCCL, ' + name + ', ' + how:<34} {pair(both)}   a round {number(sum(both))}   {ratio(sum(both), of)}")


def few(buffer, ranks):
    tokens, found = Tokens(FEW, symrail.my_pe()), {}
    for name, fp8 in (("symrail.ep, FP8", True), ("symrail.ep, bfloat16", False)):

        def measure(fp8=fp8):
            case = Few(buffer, tokens, ranks, fp8)
            case.check()
            times = {"split": case.split(), "round": in_graph(case.round), "eager": eager(case.round)}
            replay = captured(case.round)
            text = attempt(f"kernels, fp8 {fp8}", lambda: kernels_of(replay))
            if text:
                show(f"  kernels of rounds, FP8 {fp8}\n{text}")
            return times

        found[name] = attempt(name, measure)
    return tokens, found


def join():
    """NCCL beside the job of symrail: a GPU for each rank, and a file for the ranks' rendezvous."""
    me, ranks = symrail.my_pe(), symrail.n_pes()
    if "MASTER_ADDR" in os.environ:
        where = "env://"
    else:
        where = f"file:///tmp/symrail-experts-{os.getppid()}"
    dist.init_process_group(
        "nccl",
        init_method=where,
        rank=me,
        world_size=ranks,
        timeout=timedelta(seconds=60),
        device_id=torch.device("cuda", torch.cuda.current_device()),
    )


def many_by_multiprocessors(ranks, numbers):
    """Many tokens with several numbers of multiprocessors."""
    tokens = Tokens(MANY, symrail.my_pe())
    found = {}
    for sms in numbers:
        deep_ep.Buffer.set_num_sms(int(sms))
        buffer = deep_ep.Buffer(None, 1 << 20, num_max_tokens_per_rank=MANY)
        show(f"{sms} multiprocessors")
        found[sms] = attempt(f"{sms} multiprocessors", lambda: many_by_symrail(buffer, tokens, ranks, True)) or {}
        buffer.destroy()
    names = list(next(iter(found.values()), {}))
    for name in names:
        show(f"{name:<34} " + "  ".join(f"{sms}: {number(times.get(name))}" for sms, times in found.items()))


def main():
    form, *rest = sys.argv[1:] or ["beside"]
    proxied = form == "proxied"
    symrail.init(heap="pinned" if proxied else "device", heap_bytes=(1 << 30) if proxied else (3 << 30))
    me, ranks = symrail.my_pe(), symrail.n_pes()
    torch.cuda.set_device(symrail.current().device)
    mapped = all(symrail.is_mapped(pe) for pe in range(ranks))
    show(f"{ranks} PEs, {torch.cuda.get_device_name()}, torch {torch.__version__}, peers {'mapped' if mapped else 'through the proxy'}")
    if form == "sms":
        many_by_multiprocessors(ranks, rest or [str(SMS)])
        symrail.finalize()
        return
    deep_ep.Buffer.set_num_sms(SMS)
    size = deep_ep.Buffer.get_low_latency_rdma_size_hint(FEW, HIDDEN, ranks, EXPERTS)
    buffer = deep_ep.Buffer(None, 1 << 20, size, low_latency_mode=True, num_max_tokens_per_rank=MANY)
    if form in ("few", "proxied"):
        tell_few(few(buffer, ranks)[1], {})
        buffer.destroy()
        symrail.finalize()
        return
    join()
    tokens, of_few = few(buffer, ranks)
    plain = {
        kind.__name__: attempt(
            kind.__name__,
            lambda kind=kind, wanted=wanted: by_nccl(kind, tokens, ranks, wanted),
        )
        for kind, wanted in (
            (PerSlot, weighted(tokens, ranks)),
            (PerRank, (tokens.x.float() * tokens.in_rank(ranks).sum(dim=1, keepdim=True)).bfloat16()),
        )
    }
    tell_few(of_few, plain)
    tokens = Tokens(MANY, me)
    in_rank = tokens.in_rank(ranks)
    per_rank = in_rank.sum(dim=0).tolist()
    crossing = int(slowest(sum(per_rank) - per_rank[me]))
    sizes = [copy_size(crossing * each) for each in (HIDDEN + HIDDEN // GROUP * 4, 2 * HIDDEN)]
    copies = attempt("copies", lambda: peer_copies(ranks, sizes)) if ranks > 1 and mapped else None
    for size, ways in (copies or {}).items():
        show(f"a copy of {size} B to the peer, GB/s: " + ", ".join(f"{name} {number(rate)}" for name, rate in ways.items()))
    of_many = attempt("many", lambda: many_by_symrail(buffer, tokens, ranks)) or {}
    plain = {}
    for kind, times in ((PerSlot, None), (PerRank, in_rank.sum(dim=1, keepdim=True))):
        wanted = weighted(tokens, ranks) if times is None else (tokens.x.float() * times).bfloat16()
        plain[kind.__name__] = attempt(kind.__name__, lambda kind=kind, w=wanted: by_nccl(kind, tokens, ranks, w))
    tell_many(of_many, plain, copies, crossing, sum(per_rank))
    buffer.destroy()
    dist.destroy_process_group()
    symrail.finalize()


try:
    main()
except BaseException:
    traceback.print_exc()
    sys.stdout.flush()
    os._exit(1)
