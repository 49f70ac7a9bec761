"""High throughput on two hosts, with the calls of DeepEP's tests/test_internode.py in their order, on tensors of the
host: the layout; for each way of waiting and kind of rows a dispatch without and with slots, one by its handle, and a
combine with two biases. Counts, rows, slots, weights and sums are compared with those of all ranks' inputs."""

import sys
from typing import Any

import torch

import symrail
import symrail.ep as deep_ep

TOKENS, HIDDEN, TOP_K, EXPERTS_EACH = 37, 256, 4, 3
FP8 = getattr(torch, "float8_e4m3fn", None)


def routes(rank: int, experts: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Slots, some of them empty, and weights of a rank."""
    some = torch.Generator().manual_seed(rank)
    slots = torch.rand((TOKENS, experts), generator=some).argsort(dim=1)[:, :TOP_K].contiguous()
    slots[torch.rand((TOKENS, TOP_K), generator=some) < 0.1] = -1
    return slots, torch.rand((TOKENS, TOP_K), generator=some)


def rows_of(rank: int, kind: str) -> torch.Tensor:
    if kind == "of ranks":
        return torch.full((TOKENS, HIDDEN), rank, dtype=torch.bfloat16)
    return torch.randn((TOKENS, HIDDEN), generator=torch.Generator().manual_seed(100 + rank)).bfloat16()


def cast(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    groups = x.float().view(len(x), -1, 128)
    most = groups.abs().amax(dim=2).clamp(1e-4)
    return (groups * (448.0 / most).unsqueeze(2)).to(FP8).view(x.shape), most / 448.0


def plain(x: Any) -> torch.Tensor:
    """The rows that were sent, of bfloat16."""
    if isinstance(x, torch.Tensor):
        return x
    data, scales = x
    return (data.float().view(len(data), -1, 128) * scales.unsqueeze(2)).view(data.shape).bfloat16()


def is_near(one: torch.Tensor, other: torch.Tensor) -> bool:
    """By DeepEP's measure."""
    a, b = one.double() + 1, other.double() + 1
    return bool(1 - 2 * (a * b).sum() / (a * a + b * b).sum() < 5e-5)


def all_calls(buffer: Any, me: int, ranks: int) -> int:
    experts, config = ranks * EXPERTS_EACH, deep_ep.Buffer.get_dispatch_config(ranks)
    all_slots, all_weights = zip(*(routes(rank, experts) for rank in range(ranks)))
    slots, weights = all_slots[me], all_weights[me]
    owners = [torch.where(one >= 0, one // EXPERTS_EACH, -1) for one in all_slots]
    per_rank, per_host, per_expert, in_rank, _ = buffer.get_dispatch_layout(slots, experts)
    wanted = torch.stack([(owners[me] == rank).any(dim=1) for rank in range(ranks)], dim=1)
    assert torch.equal(in_rank, wanted) and torch.equal(per_rank, wanted.sum(dim=0).to(per_rank.dtype))
    if ranks == 16:
        assert per_host.tolist() == [int(one.any(dim=1).sum()) for one in wanted.split(8, dim=1)]
    else:
        assert per_host is None
    assert per_expert.tolist() == [int((slots == expert).sum()) for expert in range(experts)]
    layout = dict(num_tokens_per_rank=per_rank, num_tokens_per_rdma_rank=per_host, is_token_in_rank=in_rank)
    # The tokens of each rank that come here, in their order.
    mine = [(one == me).any(dim=1) for one in owners]
    ends = torch.tensor([int(one.sum()) for one in mine]).cumsum(0)
    here = range(me * EXPERTS_EACH, (me + 1) * EXPERTS_EACH)
    counts_here = [sum(int((one == expert).sum()) for one in all_slots) for expert in here]
    calls = 0
    for has_previous in (False, True):
        for is_async in (False, True):
            common: dict[str, Any] = dict(config=config, async_finish=is_async)

            def previous() -> dict[str, Any]:
                return dict(previous_event=buffer.capture()) if has_previous else {}

            for kind, is_fp8 in (("of ranks", False), ("random", False), ("of ranks", True), ("random", True)):
                if is_fp8 and FP8 is None:
                    continue
                sent = [cast(rows_of(rank, kind)) if is_fp8 else rows_of(rank, kind) for rank in range(ranks)]
                expected = torch.cat([plain(one)[some] for one, some in zip(sent, mine)])
                for with_slots in (False, True):
                    of_slots = dict(topk_idx=slots, topk_weights=weights) if with_slots else {}
                    rows, local, came_weights, counts, handle, event = buffer.dispatch(
                        sent[me], num_tokens_per_expert=per_expert, **layout, **of_slots, **common, **previous()
                    )
                    event.current_stream_wait()
                    assert torch.equal(plain(rows), expected) and counts == counts_here
                    assert torch.equal(handle[0][:, me].long(), ends) and torch.equal(handle[-4].long(), ends)
                    if with_slots:
                        worst, _, _, none, _, event = buffer.dispatch(
                            sent[me],
                            num_tokens_per_expert=per_expert,
                            num_worst_tokens=TOKENS * ranks,
                            **layout,
                            **of_slots,
                            **common,
                            **previous(),
                        )
                        event.current_stream_wait()
                        assert none == [] and torch.equal(plain(worst)[: len(expected)], expected)
                        named = torch.cat([one[some] for one, some in zip(all_slots, mine)])
                        is_here = (named >= here.start) & (named < here.stop)
                        assert torch.equal(local, torch.where(is_here, named - here.start, -1))
                        its = torch.cat([one[some] for one, some in zip(all_weights, mine)])
                        assert torch.equal(came_weights, torch.where(is_here, its, 0))
                    else:
                        again, _, _, _, _, event = buffer.dispatch(sent[me], handle=handle, **common, **previous())
                        event.current_stream_wait()
                        assert torch.equal(plain(again), expected)
                    biases = torch.ones((TOKENS, HIDDEN)).bfloat16(), rows_of(50 + me, "random")
                    named_weights = dict(topk_weights=came_weights) if with_slots else {}
                    sums, of_weights, event = buffer.combine(
                        plain(rows), handle, bias=biases, **named_weights, **common, **previous()
                    )
                    event.current_stream_wait()
                    total = plain(sent[me]).float() * in_rank.sum(dim=1, keepdim=True) + biases[0] + biases[1]
                    assert is_near(sums, total), (kind, is_fp8, with_slots)
                    assert not with_slots or torch.equal(of_weights, torch.where(slots >= 0, weights, 0))
                    calls += 1
    return calls


with symrail.init(heap_bytes=64 << 20):
    me, ranks = symrail.my_pe(), symrail.n_pes()
    config = deep_ep.Buffer.get_dispatch_config(ranks)
    buffer = deep_ep.Buffer(
        None,
        config.get_nvl_buffer_size_hint(2 * HIDDEN, ranks),
        config.get_rdma_buffer_size_hint(2 * HIDDEN, ranks),
        explicitly_destroy=True,
    )
    calls = all_calls(buffer, me, ranks)
    buffer.destroy()
    print(f"PE {me} is well after {calls} rounds\n", end="")
    sys.stdout.flush()
