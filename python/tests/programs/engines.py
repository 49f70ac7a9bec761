"""The calls of vLLM and SGLang on two Buffers at once, in their order: arguments are the steps, and cpu or cuda.

A step is a layer of prefill (get_dispatch_layout, dispatch, experts, combine) and one of decode (low latency), on a
Buffer each, as two engines in a process hold them; each engine's options alternate. On a GPU decode is also replayed
from a graph. Sums are compared in every step, and memory does not grow.
"""

import resource
import sys
from typing import Any

import torch

import symrail
import symrail.ep as deep_ep

HIDDEN, EACH, K, MOST, BATCH = 512, 4, 4, 32, 8
Buffer = deep_ep.Buffer


def weights_of_experts(x: Any, me: int) -> Any:
    """Each local expert multiplies by its number, a power of two, so that sums are exact enough for bfloat16."""
    return 2.0 ** ((torch.arange(EACH, device=x.device) + me) % 3)


def factors(topk: Any) -> Any:
    """What the experts of slots multiply by."""
    return torch.where(topk >= 0, 2.0 ** ((topk % EACH + topk // EACH) % 3).float(), 0.0)


def close(found: Any, wanted: Any, what: str) -> None:
    assert found.shape == wanted.shape, (what, found.shape, wanted.shape)
    if not wanted.numel():
        return
    apart = (found.float() - wanted).abs().max().item()
    assert apart <= 0.03 * wanted.abs().max().clamp(min=1).item(), (what, apart)


def prefill(buffer: Any, x: Any, topk: Any, weights: Any, experts: int, me: int, sglang: bool) -> None:
    before = Buffer.capture() if sglang else None
    per_rank, of_rdma, per_expert, in_rank, event = buffer.get_dispatch_layout(
        topk_idx=topk, num_experts=experts, previous_event=before, async_finish=sglang, allocate_on_comm_stream=sglang
    )
    came, slots, of_slots, counts, handle, event = buffer.dispatch(
        x=x, handle=None, num_tokens_per_rank=per_rank, num_tokens_per_rdma_rank=of_rdma, is_token_in_rank=in_rank,
        num_tokens_per_expert=per_expert, topk_idx=topk, topk_weights=weights, expert_alignment=128 if sglang else 1,
        config=Buffer.get_dispatch_config(buffer.group_size), previous_event=event if sglang else before,
        async_finish=True, allocate_on_comm_stream=sglang,
    )
    event.current_stream_wait()
    scale = torch.where(slots >= 0, of_slots * weights_of_experts(x, me)[slots.clamp(min=0)], 0.0).sum(dim=1)
    made = (came.float() * scale[:, None]).bfloat16()
    before = Buffer.capture()
    combined, _, event = buffer.combine(
        x=made, handle=handle, topk_weights=None, config=Buffer.get_combine_config(buffer.group_size),
        previous_event=before, async_finish=True, allocate_on_comm_stream=sglang,
    )
    event.current_stream_wait()
    close(combined, x.float() * (weights * factors(topk)).sum(dim=1)[:, None], "prefill")


def decode(buffer: Any, x: Any, topk: Any, weights: Any, experts: int, me: int, sglang: bool, out: Any) -> None:
    rows, counts, handle, event, hook = buffer.low_latency_dispatch(
        x, topk, MOST, experts, use_fp8=False, async_finish=sglang, return_recv_hook=not sglang
    )
    event.current_stream_wait() if sglang else hook()
    made = (rows.float() * weights_of_experts(x, me)[:, None, None]).bfloat16()
    _, event, hook = buffer.low_latency_combine(
        made, topk, weights, handle, async_finish=sglang, return_recv_hook=not sglang, out=out
    )
    event.current_stream_wait() if sglang else hook()


def inputs(step: int, me: int, experts: int, most: int, device: str) -> tuple[Any, Any, Any]:
    some = torch.Generator().manual_seed(1000 * step + me)
    tokens = most if most == BATCH else int(torch.randint(0, most + 1, (), generator=some))
    x = torch.randn((tokens, HIDDEN), generator=some).bfloat16()
    topk = torch.rand((tokens, experts), generator=some).argsort(dim=1)[:, :K].contiguous()
    topk[torch.rand(topk.shape, generator=some) < 0.1] = -1
    return x.to(device), topk.to(device), torch.rand((tokens, K), generator=some).to(device)


def main(steps: int, device: str) -> None:
    with symrail.init(heap_bytes=192 << 20):
        me, ranks = symrail.my_pe(), symrail.n_pes()
        if device == "cuda":
            torch.cuda.set_device(symrail.current().device)
        experts = ranks * EACH
        nvl = Buffer.get_dispatch_config(ranks).get_nvl_buffer_size_hint(2 * HIDDEN, ranks)
        rdma = Buffer.get_low_latency_rdma_size_hint(MOST, HIDDEN, ranks, experts)
        first, second = (
            Buffer(None, nvl, rdma, low_latency_mode=True, num_qps_per_rank=EACH, num_max_tokens_per_rank=64)
            for _ in range(2)
        )
        fixed = inputs(0, me, experts, BATCH, device)
        out, graph, held = torch.empty_like(fixed[0]), None, 0
        for step in range(steps):
            sglang = step % 2 == 1
            prefill(first, *inputs(step, me, experts, 64, device), experts, me, sglang)
            given = inputs(step, me, experts, BATCH, device)
            for to, of in zip(fixed, given):
                to.copy_(of)
            if graph is None:
                decode(second, *fixed, experts, me, sglang, out)
            else:
                graph.replay()
            if step == 3 and device == "cuda":
                torch.cuda.synchronize()
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                    decode(second, *fixed, experts, me, False, out)
                graph.replay()
            close(out, fixed[0].float() * (fixed[2] * factors(fixed[1])).sum(dim=1)[:, None], "decode")
            # Both Buffers do both.
            prefill(second, *inputs(step + 1, me, experts, 64, device), experts, me, not sglang)
            if step == steps // 2:
                held = memory(device)
        # What allocators keep for later may still grow a little.
        assert memory(device) - held <= 8 << 20, (held, memory(device))
        del graph
        first.destroy()
        second.destroy()
        print(f"PE {me} is well after {steps} steps")


def memory(device: str) -> int:
    if device == "cuda":
        torch.cuda.synchronize()
        return int(torch.cuda.mem_get_info()[1] - torch.cuda.mem_get_info()[0])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


main(int(sys.argv[1]), sys.argv[2])
