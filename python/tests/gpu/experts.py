"""Checks of symrail.ep on tensors of a GPU, for scripts/gpu.sh: `symrail run -n 2 -- python experts.py`.

Works on device and pinned heaps, mapped or not; the variables SYMRAIL_… choose. With the argument `groups`, and 4 PEs,
Buffers of groups of two PEs, each PE in two of them at once; with `hints` a Buffer that joins the job and has the
memory that DeepEP's programs ask for. Where PEs share a GPU, these checks are fewer: there each
kernel that waits for another PE lasts until that PE's time slice.
"""

import os
import sys
import traceback

import symrail
import symrail.ep as deep_ep
import torch
from symrail.errors import ArgumentError, StateError, UnsupportedError

MOST, HIDDEN, K, EACH = 40, 256, 4, 3
# Added to the seeds of inputs: no two groups have the same.
OF_GROUP = 0


def inputs(rank, call, experts):
    """A rank's tokens, slots and weights of a call, on the host."""
    some = torch.Generator().manual_seed(1000 * call + rank + OF_GROUP)
    tokens = 0 if (rank + call) % 5 == 4 else int(torch.randint(1, MOST + 1, (), generator=some))
    x = torch.randn((tokens, HIDDEN), generator=some).bfloat16()
    topk_idx = torch.randint(-1, experts, (tokens, K), generator=some)
    return x, topk_idx, torch.rand((tokens, K), generator=some)


def sums(x, topk_idx, weights):
    """The results if experts return tokens unchanged: sums of 32 bits, of each rank in the order of the slots, rounded,
    and then of the ranks."""
    total = torch.zeros(x.shape)
    for rank in range(symrail.n_pes()):
        of_rank = torch.zeros(x.shape)
        for slot in range(K):
            here = (topk_idx[:, slot : slot + 1] // EACH == rank) & (topk_idx[:, slot : slot + 1] >= 0)
            of_rank += torch.where(here, x.float() * weights[:, slot : slot + 1], 0)
        total += of_rank.bfloat16()
    return total.bfloat16()


def check_rows(received, counts, call, ranks, me, experts, close):
    """Each expert has the tokens that name it, by rank."""
    for local in range(EACH):
        expert, row = me * EACH + local, 0
        for rank in range(ranks):
            x, topk_idx, _ = inputs(rank, call, experts)
            wanted = x[(topk_idx == expert).any(dim=1)]
            found = received[local, row : row + len(wanted)].cpu()
            assert torch.equal(found, wanted) if not close else torch.allclose(found.float(), wanted.float(), atol=0.3), call
            row += len(wanted)
        assert int(counts[local]) == row, ("count", call, local)


def rounds(buffer, ranks, me):
    experts = EACH * ranks
    for call in range(12):
        x, topk_idx, weights = (part.cuda() for part in inputs(me, call, experts))
        use_fp8, hook = call % 3 == 2, call % 2 == 1
        stats = torch.zeros(EACH, dtype=torch.int32, device="cuda")
        received, counts, handle, event, receive = buffer.low_latency_dispatch(
            x, topk_idx, MOST, experts, stats, use_fp8=use_fp8, async_finish=not hook, return_recv_hook=hook
        )
        if hook:
            receive()
        event.current_stream_wait()
        rows = received
        if use_fp8:
            scales = received[1].repeat_interleave(128, dim=2)[:, :, :HIDDEN]
            rows = (received[0].float() * scales).bfloat16()
        check_rows(rows, counts, call, ranks, me, experts, use_fp8)
        assert torch.equal(stats, counts)
        made = rows
        if call % 4 == 0:
            made = buffer.get_next_low_latency_combine_buffer(handle)
            made.copy_(rows)
        out = torch.empty_like(x) if call % 4 == 1 else None
        combined, event, receive = buffer.low_latency_combine(
            made, topk_idx, weights, handle, zero_copy=call % 4 == 0, return_recv_hook=hook, out=out
        )
        if hook:
            receive()
        torch.cuda.synchronize()
        wanted = sums(x.cpu(), topk_idx.cpu(), weights.cpu())
        if use_fp8:
            assert torch.allclose(combined.cpu().float(), wanted.float(), atol=1.0), call
        else:
            assert torch.equal(combined.cpu(), wanted), call


def must_raise(error, call, *arguments):
    try:
        call(*arguments)
    except error:
        return
    raise AssertionError(f"{call} was not refused")


def least(buffer, ranks, me, x, topk_idx, weights, wanted):
    """Tensors that hold all tokens that come, and no more, are enough; with fewer rows on one rank none gets any."""
    per_rank, _, per_expert, in_rank, _ = buffer.get_dispatch_layout(topk_idx, EACH * ranks)
    layout = dict(num_tokens_per_rank=per_rank, is_token_in_rank=in_rank, num_tokens_per_expert=per_expert)
    come = len(wanted)
    for missing in (1, 0):
        rows = max(1, come - (missing if me == 0 else 0))
        received, _, _, _, handle, event = buffer.dispatch(
            x, **layout, topk_idx=topk_idx, topk_weights=weights, num_worst_tokens=rows, async_finish=True
        )
        if missing:
            try:
                event.synchronize()
            except ArgumentError as error:
                assert error.pe == 0 and f"has room for {rows if me == 0 else ''}" in str(error), error
            else:
                raise AssertionError("more tokens than there are rows were not refused")
            assert (handle.recv_src_idx == -1).all()
        else:
            event.synchronize()
            assert torch.equal(received[:come], wanted)


def many(buffer, ranks, me):
    """High throughput: dispatch, the same routes again, and combine with weights and biases."""
    experts = EACH * ranks
    for call in range(200, 208):
        all_inputs = [inputs(rank, call, experts) for rank in range(ranks)]
        wanted = []
        for x, topk_idx, weights in all_inputs:
            here = ((topk_idx >= me * EACH) & (topk_idx < (me + 1) * EACH)).any(dim=1)
            wanted.append((x[here], topk_idx[here], weights[here], here.nonzero().flatten().int()))
        x, topk_idx, weights = (part.cuda() for part in all_inputs[me])
        scales = x.float()[:, :2].contiguous() if call % 2 else None
        given = x if scales is None else (x, scales)
        per_rank, _, per_expert, in_rank, event = buffer.get_dispatch_layout(topk_idx, experts)
        received, its_idx, its_weights, counts, handle, event = buffer.dispatch(
            given,
            num_tokens_per_rank=per_rank,
            is_token_in_rank=in_rank,
            num_tokens_per_expert=per_expert,
            topk_idx=topk_idx,
            topk_weights=weights,
            previous_event=event,
            async_finish=True,
        )
        event.current_stream_wait()
        if scales is not None:
            received, its_scales = received
            assert torch.equal(its_scales.cpu(), torch.cat([part[0] for part in wanted]).float()[:, :2]), call
        assert torch.equal(received.cpu(), torch.cat([part[0] for part in wanted])), call
        local = torch.cat([part[1] for part in wanted]) - me * EACH
        local = torch.where((local < 0) | (local >= EACH), -1, local)
        assert torch.equal(its_idx.cpu(), local), call
        # Slots of other ranks' experts count for nothing here.
        given = torch.where(local < 0, 0, torch.cat([part[2] for part in wanted]))
        assert torch.equal(its_weights.cpu(), given), call
        assert torch.equal(handle.recv_src_idx.cpu(), torch.cat([part[3] for part in wanted])), call
        assert counts == [int((local == expert).sum()) for expert in range(EACH)], call
        doubled = 2 * x
        again, _, _, _, _, _ = buffer.dispatch(doubled, handle)
        assert torch.equal(again, 2 * received), call
        if call % 3 == 0:
            in_place = buffer.get_next_combine_buffer(handle, HIDDEN, again.dtype)
            in_place.copy_(again)
            again = in_place
        if call % 4 == 0:
            least(buffer, ranks, me, x, topk_idx, weights, received)
        bias = torch.ones_like(x)
        combined, sums_of, _ = buffer.combine(again, handle, topk_weights=its_weights, bias=(bias, doubled))
        torch.cuda.synchronize()
        # Other ranks may still read the rows of that combine.
        must_raise(StateError, buffer.get_next_combine_buffer, handle, HIDDEN, torch.bfloat16)
        total = torch.zeros(x.shape)
        for rank in range(ranks):
            total += torch.where(in_rank[:, rank : rank + 1].cpu(), doubled.cpu().float(), 0)
        own = torch.where(topk_idx < 0, 0, weights).cpu()
        total = (total + 1 + doubled.cpu().float()).bfloat16()
        assert torch.equal(combined.cpu(), total), call
        assert torch.equal(sums_of.cpu(), own), call
    wrong = torch.full((1, K), experts, dtype=torch.int64, device="cuda")
    try:
        buffer.dispatch(
            torch.zeros((1, HIDDEN), dtype=torch.bfloat16, device="cuda"),
            is_token_in_rank=torch.zeros((1, ranks), dtype=torch.bool, device="cuda"),
            num_tokens_per_expert=per_expert,
            topk_idx=wrong,
            topk_weights=torch.ones((1, K), device="cuda"),
        )
    except ArgumentError as error:
        assert str(experts) in str(error), error
    else:
        raise AssertionError("an index without an expert was not refused")


def graph(buffer, ranks, me):
    """A captured round, replayed with other tokens and routing; then without the last rank, and with it again."""
    experts = EACH * ranks
    x = torch.zeros((MOST, HIDDEN), dtype=torch.bfloat16, device="cuda")
    topk_idx = torch.full((MOST, K), -1, dtype=torch.int64, device="cuda")
    weights = torch.zeros((MOST, K), device="cuda")

    def once():
        received, _, handle, _, receive = buffer.low_latency_dispatch(
            x, topk_idx, MOST, experts, use_fp8=False, return_recv_hook=True
        )
        receive()
        return buffer.low_latency_combine(received, topk_idx, weights, handle)[0]

    once()
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        combined = once()

    def replay(calls, last):
        for call in calls:
            own = inputs(me, call, experts)
            for to, part in zip((x, topk_idx, weights), own):
                to[: len(part)] = part.cuda()
            topk_idx[len(own[0]) :] = -1
            captured.replay()
            torch.cuda.synchronize()
            there = torch.where(own[1] < last * EACH, own[1], -1)
            assert torch.equal(combined.cpu()[: len(own[0])], sums(own[0], there, own[2])), (call, last)

    replay(range(100, 150), ranks)
    symrail.barrier_all()
    if ranks > 1 and me < ranks - 1:
        buffer.disconnect_ranks([ranks - 1])
        replay(range(150, 155), ranks - 1)
    buffer.connect_ranks([ranks - 1])
    replay(range(155, 165), ranks)


def refusals(buffer, ranks):
    """Each is reported before anything is sent: the rounds before and after succeed."""
    experts = EACH * ranks
    x = torch.zeros((4, HIDDEN), dtype=torch.bfloat16, device="cuda")
    topk_idx = torch.zeros((4, K), dtype=torch.int64, device="cuda")
    for error, given in (
        (ArgumentError, dict(x=x.float())),
        (ArgumentError, dict(topk_idx=topk_idx.int())),
        (ArgumentError, dict(topk_idx=topk_idx[:3])),
        (ArgumentError, dict(topk_idx=topk_idx.cpu())),
        (ArgumentError, dict(x=x.t().contiguous().t())),
        (ArgumentError, dict(num_max_dispatch_tokens_per_rank=3)),
        (ArgumentError, dict(use_ue8m0=True)),
    ):
        arguments = dict(x=x, topk_idx=topk_idx, num_max_dispatch_tokens_per_rank=MOST, num_experts=experts)
        try:
            buffer.low_latency_dispatch(**{**arguments, **given})
        except error:
            continue
        raise AssertionError(f"not refused: {given.keys()}")


def order(buffer, ranks):
    """Calls of low latency that are out of turn are refused before anything is sent: the rounds around them succeed."""
    experts = EACH * ranks
    x = torch.randn((4, HIDDEN), device="cuda").bfloat16()
    topk_idx = torch.zeros((4, K), dtype=torch.int64, device="cuda")
    topk_idx[:, 1:] = -1
    weights = torch.ones((4, K), device="cuda")
    given = dict(x=x, topk_idx=topk_idx, num_max_dispatch_tokens_per_rank=MOST, num_experts=experts, use_fp8=False)

    def refused(text, call, *args, **kwargs):
        try:
            call(*args, **kwargs)
        except StateError as error:
            assert text in str(error), error
            return
        raise AssertionError(f"not refused: {text}")

    handles = []
    for _ in range(3):
        rows, _, handle, _, receive = buffer.low_latency_dispatch(**given, return_recv_hook=True)
        refused("the hook of the last one", buffer.low_latency_dispatch, **given)
        refused("before the dispatch", buffer.low_latency_combine, rows, topk_idx, weights, handle)
        receive()
        refused("a second", receive)
        handles.append(handle)
        if len(handles) > 2:
            refused("low_latency_combine: the handle", buffer.low_latency_combine, rows, topk_idx, weights, handles[-3])
        # Combines of this dispatch, repeated, and of the one before, with the next one under way.
        for of in (handle, handle, *handles[-2:]):
            found, _, receive = buffer.low_latency_combine(rows, topk_idx, weights, of, return_recv_hook=True)
            refused("the hook of the last one", buffer.low_latency_combine, rows, topk_idx, weights, of)
            if of is not handle:
                refused("would overwrite", buffer.low_latency_dispatch, **given)
            receive()
            refused("a second", receive)
            assert torch.equal(found, x)
    marked = dict(given, x=torch._neg_view(x))
    try:
        buffer.low_latency_dispatch(**marked)
        raise AssertionError("a tensor that is marked as negated was not refused")
    except ArgumentError as error:
        assert "resolve_neg()" in str(error), error


def encoded(buffer, ranks, me):
    """Rows in 10 bits for each element: near the plain sums if all ranks ask for them, and these if only one does. Then in
    a graph, whose replays alternate with plain calls."""
    experts = EACH * ranks

    def check(combined, own, what):
        x, topk_idx, weights = own
        exact, total = sums(x, topk_idx, weights).float(), torch.zeros(x.shape)
        for slot in range(K):
            total += torch.where(topk_idx[:, slot : slot + 1] >= 0, (x.float() * weights[:, slot : slot + 1]).abs(), 0)
        # Half a step between codes, and the rounding of bfloat16, of each rank's sum.
        assert ((combined.cpu().float() - exact).abs() <= 0.035 * total).all(), what

    def once(x, topk_idx, weights, use, hook):
        rows, _, handle, _, _ = buffer.low_latency_dispatch(x, topk_idx, MOST, experts, use_fp8=False)
        combined, _, receive = buffer.low_latency_combine(
            rows, topk_idx, weights, handle, use_logfmt=use, return_recv_hook=hook
        )
        if hook:
            receive()
        return rows, handle, combined

    for call in range(700, 712):
        x, topk_idx, weights = inputs(me, call, experts)
        own = x * 0.1, topk_idx, weights
        of_gpu = [part.cuda() for part in own]
        together = call % 3 != 2
        rows, handle, combined = once(*of_gpu, together or me == 0, call % 2 == 1)
        plain = buffer.low_latency_combine(rows, *of_gpu[1:], handle)[0]
        assert torch.equal(plain.cpu(), sums(*own)), call
        if together:
            check(combined, own, call)
        else:
            assert torch.equal(combined, plain), call
    x = torch.zeros((MOST, HIDDEN), dtype=torch.bfloat16, device="cuda")
    topk_idx = torch.full((MOST, K), -1, dtype=torch.int64, device="cuda")
    weights = torch.zeros((MOST, K), device="cuda")
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        combined = once(x, topk_idx, weights, True, False)[2]
    for call in range(720, 740):
        own = inputs(me, call, experts)
        own = own[0] * 0.1, *own[1:]
        for to, part in zip((x, topk_idx, weights), own):
            to[: len(part)] = part.cuda()
        topk_idx[len(own[0]) :] = -1
        captured.replay()
        torch.cuda.synchronize()
        check(combined[: len(own[0])], own, call)
        if call % 3 == 0:
            plain = once(*(part.cuda() for part in own), False, False)[2]
            assert torch.equal(plain.cpu(), sums(*own)), call


def local(buffer, ranks, me):
    """Memory of rows that return is the caller's between two combines: what is written there changes no result."""
    of_low = dict(use_rdma_buffer=True)
    fresh = deep_ep.Buffer(None, 1 << 20, 1 << 20, low_latency_mode=True, num_max_tokens_per_rank=MOST)
    for given in ({}, of_low):
        must_raise(StateError, lambda: fresh.get_local_buffer_tensor(torch.int8, **given))
    fresh.destroy()
    kinds = [of_low] if ranks == 1 else [{}, of_low]
    try:
        # Every bit is set: a number of each kind of rows that would be found in a sum.
        for given in kinds:
            buffer.get_local_buffer_tensor(torch.uint8, **given).fill_(0xFF)
    except UnsupportedError as error:
        assert "allocate a tensor" in str(error), error
        return
    rounds(buffer, ranks, me)
    many(buffer, ranks, me)
    for given in kinds:
        whole = buffer.get_local_buffer_tensor(torch.uint8, **given)
        part = buffer.get_local_buffer_tensor(torch.float32, torch.Size([2, 3]), offset=128, **given)
        assert part.shape == (2, 3) and part.data_ptr() == whole.data_ptr() + 128 and part.device == whole.device
        part.fill_(1.5)
        assert torch.equal(whole[128:152].view(torch.float32), torch.full((6,), 1.5, device="cuda"))
        size = (len(whole) // 4 + 1,)
        for wrong in (dict(size=size), dict(offset=2), dict(offset=-4), dict(offset=len(whole) + 4), dict(size=(-1,))):
            must_raise(ArgumentError, lambda: buffer.get_local_buffer_tensor(torch.float32, **wrong, **given))
    # Buffers are not freed below it, also if only one rank has such a tensor.
    if me != ranks - 1:
        del whole, part
    must_raise(StateError, buffer.destroy)
    whole = part = None
    # Nor is the memory the caller's while rows may come that nobody waits for.
    if ranks > 1:
        symrail.barrier_all()
        buffer.low_latency_update_mask_buffer((me + 1) % ranks, True)
        must_raise(StateError, lambda: buffer.get_local_buffer_tensor(torch.uint8, **of_low))
        buffer.connect_ranks(list(range(1, ranks)))
        buffer.get_local_buffer_tensor(torch.uint8, **of_low)


def streams(buffer, ranks, me):
    """Calls of one Buffer on two streams, whose events nobody waits for before the end."""
    experts, found = EACH * ranks, []
    for call in range(400, 420):
        x, topk_idx, weights = (part.cuda() for part in inputs(me, call, experts))
        rows, _, handle, _, _ = buffer.low_latency_dispatch(x, topk_idx, MOST, experts, use_fp8=False)
        combined, event, _ = buffer.low_latency_combine(rows, topk_idx, weights, handle, async_finish=True)
        found.append((call, combined, event))
    for call, combined, event in found:
        event.current_stream_wait()
        assert torch.equal(combined.cpu(), sums(*inputs(me, call, experts))), call
    both = dict(async_finish=True, return_recv_hook=True)
    must_raise(ArgumentError, lambda: buffer.low_latency_dispatch(x, topk_idx, MOST, experts, **both))
    must_raise(ArgumentError, lambda: buffer.low_latency_combine(rows, topk_idx, weights, handle, **both))


def joins(size, ranks, me, group=None):
    """The last rank makes no call before `connect_ranks`; the others go on without it after the Buffer's time."""
    last, experts = ranks - 1, EACH * ranks
    # It limits the making of memory, too, for which PEs that share a GPU take seconds.
    timeout = 5 if torch.cuda.device_count() >= symrail.n_pes() else 20
    buffer = deep_ep.Buffer(group, 0, size, low_latency_mode=True, enable_shrink=True, timeout=timeout)
    if me != last:
        x, topk_idx, _ = (part.cuda() for part in inputs(me, 500, experts))
        status = torch.ones(ranks, dtype=torch.int32)
        torch.cuda.synchronize()
        with torch.cuda.stream(torch.cuda.Stream()):
            buffer.low_latency_dispatch(x, topk_idx, MOST, experts, use_fp8=False)
            # The masks are those behind the call, whatever its stream.
            buffer.low_latency_query_mask_buffer(status)
        assert status.tolist() == [int(rank == last) for rank in range(ranks)], status
    buffer.connect_ranks([last])
    rounds(buffer, ranks, me)
    buffer.destroy()


def elastic(group, ranks, me):
    """The same of DeepEP's second generation."""
    buffer, experts = deep_ep.ElasticBuffer(group, num_max_tokens_per_rank=MOST, hidden=HIDDEN, num_topk=K), EACH * ranks
    assert (buffer.rank_idx, buffer.num_ranks) == (me, ranks)
    for call in range(600, 604):
        x, topk_idx, weights = (part.cuda() for part in inputs(me, call, experts))
        rows, _, _, handle, _ = buffer.dispatch(x, topk_idx, weights, num_experts=experts)
        wanted = []
        for rank in range(ranks):
            its_x, its_idx, _ = inputs(rank, call, experts)
            wanted.append(its_x[((its_idx >= 0) & (its_idx // EACH == me)).any(dim=1)])
        assert torch.equal(rows.cpu(), torch.cat(wanted)), call
        combined, _, _ = buffer.combine(rows, handle)
        named = [((topk_idx >= 0) & (topk_idx // EACH == rank)).any(dim=1) for rank in range(ranks)]
        assert torch.allclose(combined.float(), x.float() * torch.stack(named).sum(dim=0)[:, None], rtol=0.02), call
    buffer.destroy()


def groups(me):
    """Each PE in a pair of neighbours, and in a pair of PEs that are two apart, of which the higher one is the first."""
    global OF_GROUP
    world = symrail.team_world()
    near = world.split_strided(me // 2 * 2, 1, 2), me % 2, 100_000 * (1 + me // 2)
    far = world.split_strided(me % 2 + 2, -2, 2), 1 - me // 2, 100_000 * (3 + me % 2)
    size = deep_ep.Buffer.get_low_latency_rdma_size_hint(MOST, HIDDEN, 2, EACH * 2)
    shared = torch.cuda.device_count() < symrail.n_pes()

    def told(what):
        if me == 0:
            print(f"groups: {what}", flush=True)

    held = [0, 0]
    for turn in range(1 if shared else 3):
        buffers = [
            deep_ep.Buffer(team, 1 << 20, size, low_latency_mode=True, num_max_tokens_per_rank=MOST) for team, *_ in (near, far)
        ]
        assert [buffer.rank for buffer in buffers] == [near[1], far[1]]
        for checks in (rounds, many, graph) if shared else (rounds, many, graph, streams, rounds):
            for buffer, (_, rank, OF_GROUP) in zip(buffers, (near, far)):
                checks(buffer, 2, rank)
                told(f"{checks.__name__} of PE 0 as rank {rank}, turn {turn}")
        for buffer in buffers:
            order(buffer, 2)
            buffer.destroy()
            told(f"order, destroy, turn {turn}")
        del buffer, buffers
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        symrail.barrier_all()
        held[turn > 0] = torch.cuda.mem_get_info()[1] - torch.cuda.mem_get_info()[0]
        symrail.barrier_all()
    assert shared or held[1] - held[0] < 64 << 20, held
    for team, rank, OF_GROUP in (near, far):
        joins(size, 2, rank, team)
        told(f"joins of PE 0 as rank {rank}")
        elastic(team, 2, rank)
        told(f"elastic of PE 0 as rank {rank}")
    if me == 0:
        print("well: two groups of each PE at once")
    symrail.finalize()


def hints():
    """As DeepEP's programs make a Buffer: no job before, and as much memory as its hints say."""
    rank, ranks = (int(os.environ[f"SYMRAIL_LAUNCHER_{name}"]) for name in ("PE", "N_PES"))
    hidden, tokens = 7168, 4096
    torch.cuda.set_device(rank % torch.cuda.device_count())
    x = torch.full((tokens, hidden), rank + 1, dtype=torch.bfloat16, device="cuda")
    num_nvl_bytes, num_rdma_bytes = 0, 0
    for config in (deep_ep.Buffer.get_dispatch_config(ranks), deep_ep.Buffer.get_combine_config(ranks)):
        num_nvl_bytes = max(config.get_nvl_buffer_size_hint(2 * hidden, ranks), num_nvl_bytes)
        num_rdma_bytes = max(config.get_rdma_buffer_size_hint(2 * hidden, ranks), num_rdma_bytes)
    buffer = deep_ep.Buffer(None, num_nvl_bytes, num_rdma_bytes)
    topk_idx = torch.arange(8, device="cuda").repeat(tokens, 1) * ranks
    per_rank, _, per_expert, in_rank, _ = buffer.get_dispatch_layout(topk_idx, 8 * ranks)
    received, _, _, _, handle, _ = buffer.dispatch(
        x, None, per_rank, None, in_rank, per_expert, topk_idx, torch.ones((tokens, 8), device="cuda")
    )
    assert len(received) == tokens * ranks and received[:: tokens, 0].tolist() == list(range(1, ranks + 1))
    combined, _, _ = buffer.combine(received, handle)
    assert torch.equal(combined, x * ranks)
    buffer.destroy()
    if rank == 0:
        print(f"well: {num_nvl_bytes + num_rdma_bytes} bytes, as hinted, on {ranks} PEs")


def main():
    if sys.argv[1:] == ["hints"]:
        return hints()
    symrail.init()
    me, ranks = symrail.my_pe(), symrail.n_pes()
    torch.cuda.set_device(symrail.current().device)
    if sys.argv[1:] == ["groups"]:
        return groups(me)
    size = deep_ep.Buffer.get_low_latency_rdma_size_hint(MOST, HIDDEN, ranks, EACH * ranks)
    buffer = deep_ep.Buffer(None, 1 << 20, size, low_latency_mode=True, num_max_tokens_per_rank=MOST)
    rounds(buffer, ranks, me)
    many(buffer, ranks, me)
    refusals(buffer, ranks)
    order(buffer, ranks)
    graph(buffer, ranks, me)
    rounds(buffer, ranks, me)
    streams(buffer, ranks, me)
    local(buffer, ranks, me)
    encoded(buffer, ranks, me)
    if ranks > 1:
        joins(size, ranks, me)
    status = torch.ones(ranks, dtype=torch.int32, device="cuda")
    buffer.low_latency_query_mask_buffer(status)
    assert not status.any()
    buffer.destroy()
    if me == 0:
        print(f"well: both ways on {ranks} PEs")
    symrail.finalize()


try:
    main()
except BaseException:
    traceback.print_exc()
    sys.exit(1)
