"""symrail.ep.ElasticBuffer: dispatch and combine, expanded or not, again with a handle, against serial code in torch."""

import sys
from typing import Any

import torch

import symrail
import symrail.ep as deep_ep
from symrail.errors import ArgumentError

HIDDEN, EACH, K, MOST = 256, 4, 3, 40
DEVICE = sys.argv[1]


def inputs(rank: int, experts: int) -> tuple[Any, Any, Any]:
    some = torch.Generator().manual_seed(rank)
    tokens = MOST - 3 * rank
    x = torch.randn((tokens, HIDDEN), generator=some).bfloat16()
    topk = torch.rand((tokens, experts), generator=some).argsort(dim=1)[:, :K].contiguous()
    topk[torch.rand(topk.shape, generator=some) < 0.2] = -1
    return x.to(DEVICE), topk.to(DEVICE), torch.rand((tokens, K), generator=some).to(DEVICE)


def check(buffer: deep_ep.ElasticBuffer, me: int, ranks: int, alignment: int, is_async: bool, biases: int) -> None:
    experts = EACH * ranks
    x, topk, weights = inputs(me, experts)
    weights = torch.where(topk >= 0, weights, 0.0)
    stats = torch.zeros(EACH, dtype=torch.int32, device=DEVICE)
    options: dict[str, Any] = {"async_with_compute_stream": is_async}
    of_layout: dict[str, Any] = {"num_experts": experts, "expert_alignment": alignment}

    def made(call: Any, *arguments: Any, **named: Any) -> Any:
        results = call(*arguments, **named, **options)
        if is_async:
            results[-1].current_stream_wait()
        return results

    rows, slots, came, handle, _ = made(
        buffer.dispatch, x, topk, weights, stats, previous_event=buffer.capture(), **of_layout
    )
    wanted, numbers, of_slots, counts, total = [], [], [], [0] * EACH, [0]
    for rank in range(ranks):
        its, its_topk, _ = inputs(rank, experts)
        local = its_topk - me * EACH
        local = torch.where((local < 0) | (local >= EACH), -1, local)
        here = (local >= 0).any(dim=1)
        wanted.append(its[here])
        of_slots.append(local[here])
        numbers.append(rank * MOST + here.nonzero()[:, 0])
        total.append(total[-1] + int(here.sum()))
        counts = [count + int((local == expert).sum()) for expert, count in enumerate(counts)]
    assert torch.equal(rows, torch.cat(wanted)) and torch.equal(slots, torch.cat(of_slots))
    assert torch.equal(handle.recv_src_metadata[:, 0], torch.cat(numbers).int())
    assert handle.psum_num_recv_tokens_per_scaleup_rank.tolist() == total[1:]
    aligned = [-(-count // alignment) * alignment for count in counts]
    assert stats.tolist() == counts and handle.num_recv_tokens_per_expert_list == aligned
    assert handle.psum_num_recv_tokens_per_expert.tolist() == torch.tensor(aligned).cumsum(0).tolist()

    again, _, none, same, _ = made(buffer.dispatch, 2 * x, handle=handle)
    assert torch.equal(again, 2 * rows) and none is None and same is handle
    bias = tuple(torch.full_like(x, 0.5) for _ in range(biases)) if biases else None
    in_ranks = torch.stack([((topk >= 0) & (topk // EACH == rank)).any(dim=1) for rank in range(ranks)]).sum(dim=0)
    combined, sums, _ = made(buffer.combine, rows, handle, came, bias if biases != 1 else bias and bias[0])
    assert torch.allclose(combined.float(), x.float() * in_ranks[:, None] + 0.5 * biases, rtol=0.02, atol=0.02)
    assert torch.equal(sums, weights)

    # A row for each expert and token.
    expanded, none, by_row, wide, _ = made(buffer.dispatch, x, topk, weights, do_expand=True, **of_layout)
    places = wide.recv_src_metadata[:, 2:]
    some = places >= 0
    assert none is None and len(expanded) == sum(aligned) == wide.num_expanded_tokens
    assert torch.equal(some, slots >= 0)
    assert torch.equal(expanded[places[some].long()], rows[:, None].expand(-1, K, -1)[some])
    assert torch.equal(by_row[places[some].long()], came[some])
    first = 0
    for expert, count in enumerate(counts):
        assert int(wide.psum_num_recv_tokens_per_expert[expert]) == first + count
        its = places[slots == expert].sort().values
        assert its.tolist() == list(range(first, first + count))
        assert not expanded[first + count : first + aligned[expert]].any()
        first += aligned[expert]
    twice, _, its_weights, _, _ = made(buffer.dispatch, 2 * x, topk_weights=weights, handle=wide, do_expand=True)
    assert torch.equal(twice, 2 * expanded) and torch.equal(its_weights, by_row)
    combined, sums, _ = made(buffer.combine, expanded, wide, by_row)
    assert torch.allclose(combined.float(), x.float() * (topk >= 0).sum(dim=1, keepdim=True), rtol=0.02, atol=0.02)
    assert torch.equal(sums, weights)


with symrail.init(heap_bytes=128 << 20):
    me, ranks = symrail.my_pe(), symrail.n_pes()
    if DEVICE == "cuda":
        torch.cuda.set_device(symrail.current().device)
    buffer = deep_ep.ElasticBuffer(
        num_max_tokens_per_rank=MOST, hidden=HIDDEN, num_topk=K, deterministic=True, explicitly_destroy=True
    )
    assert (buffer.num_scaleout_ranks * buffer.num_scaleup_ranks, buffer.num_bytes % (2 << 20)) == (ranks, 0)
    for number in range(6):
        check(buffer, me, ranks, (1, 16)[number % 2], number % 3 == 1, number % 3)
    buffer.barrier()
    x, topk, _ = inputs(me, EACH * ranks)
    for wrong in ({"topk_idx": topk}, {"num_experts": EACH * ranks}):
        try:
            buffer.dispatch(x, **wrong)
        except ArgumentError:
            continue
        raise AssertionError(wrong)
    buffer.destroy()
    print(f"PE {me} is well")
