"""symrail.ep.Buffer with tensors of torch: results are tensors, and the sums equal torch's."""

import sys
from types import SimpleNamespace

import torch

import symrail
import symrail.ep as deep_ep
from symrail.ep import _local
from symrail.errors import ArgumentError, UnsupportedError

HIDDEN, EXPERTS_EACH, TOP_K, TOKENS = 256, 4, 4, 24


def parts_of_memory() -> None:
    """`get_local_buffer_tensor` with memory of the host in a GPU's place."""
    memory = torch.arange(64, dtype=torch.uint8)

    class Whole:
        def __init__(self, *_: object) -> None:
            pass

        def tensor(self) -> torch.Tensor:
            return memory

    class OfGpu:
        gpu, nbytes = 0, len(memory)

    class OfHost:
        gpu, nbytes = None, len(memory)

    _local._symrail = SimpleNamespace(DeviceArray=Whole)
    whole = _local.part(OfGpu, torch.int32, None, 0)
    assert whole.shape == (16,) and whole.data_ptr() == memory.data_ptr()
    assert torch.equal(_local.part(OfGpu, torch.int32, None, 40), whole[10:])
    assert torch.equal(_local.part(OfGpu, torch.int16, torch.Size([2, 3]), 52), memory[52:].view(torch.int16).reshape(2, 3))
    assert _local.part(OfGpu, torch.int64, (0, 7), 64).shape == (0, 7)
    for error, given in (
        (ArgumentError, (OfGpu, torch.int32, (17,), 0)),
        (ArgumentError, (OfGpu, torch.int32, (2, 2), 52)),
        (ArgumentError, (OfGpu, torch.int32, None, 2)),
        (ArgumentError, (OfGpu, torch.int32, None, -4)),
        (ArgumentError, (OfGpu, torch.int32, None, 68)),
        (ArgumentError, (OfGpu, torch.int32, (-1, -1), 0)),
        (ArgumentError, (OfGpu, "int32", None, 0)),
        (UnsupportedError, (OfHost, torch.int32, None, 0)),
        (UnsupportedError, (None, torch.int32, None, 0)),
    ):
        try:
            _local.part(*given)
        except error:
            continue
        raise AssertionError(given)


parts_of_memory()

with symrail.init(heap_bytes=64 << 20):
    me, ranks = symrail.my_pe(), symrail.n_pes()
    experts = ranks * EXPERTS_EACH
    torch.manual_seed(me)
    x = torch.randn(TOKENS, HIDDEN, dtype=torch.bfloat16)
    topk_idx = torch.rand(TOKENS, experts).argsort(dim=1)[:, :TOP_K].contiguous()
    weights = torch.rand(TOKENS, TOP_K)

    size = deep_ep.Buffer.get_low_latency_rdma_size_hint(TOKENS, HIDDEN, ranks, experts)
    config = deep_ep.Buffer.get_dispatch_config(ranks)
    nvl = config.get_nvl_buffer_size_hint(2 * HIDDEN, ranks)
    buffer = deep_ep.Buffer(None, nvl, size, low_latency_mode=True)

    per_rank, _, per_expert, in_rank, _ = buffer.get_dispatch_layout(topk_idx, experts)
    assert all(isinstance(one, torch.Tensor) for one in (per_rank, per_expert, in_rank))
    assert int(per_expert.sum()) == TOKENS * TOP_K and torch.equal(in_rank.sum(dim=0).to(per_rank.dtype), per_rank)
    came, local_idx, came_weights, counts, handle, event = buffer.dispatch(
        x, num_tokens_per_rank=per_rank, is_token_in_rank=in_rank, num_tokens_per_expert=per_expert,
        topk_idx=topk_idx, topk_weights=weights,
    )
    event.current_stream_wait()
    assert came.dtype == torch.bfloat16 and local_idx.dtype == topk_idx.dtype and came_weights.dtype == torch.float32
    assert counts is not None and sum(counts) == int((local_idx >= 0).sum())
    again, *_ = buffer.dispatch(x, handle=handle)
    assert torch.equal(again, came)
    sums, of_slots, _ = buffer.combine(came, handle, topk_weights=came_weights, bias=(x, x))
    wanted = x.float() * (in_rank.sum(dim=1, keepdim=True) + 2)
    assert torch.allclose(sums.float(), wanted, rtol=0.02, atol=1e-6) and torch.equal(of_slots, weights)

    for hook in (False, True):
        received, row_counts, low, _, receive = buffer.low_latency_dispatch(
            x, topk_idx, TOKENS, experts, use_fp8=False, return_recv_hook=hook
        )
        if receive is not None:
            receive()
        assert received.shape == (EXPERTS_EACH, ranks * TOKENS, HIDDEN) and received.dtype == torch.bfloat16
        into = buffer.get_next_low_latency_combine_buffer(low)
        into.copy_(received)
        out = torch.empty_like(x)
        sums, _, receive = buffer.low_latency_combine(
            into, topk_idx, weights, low, zero_copy=True, return_recv_hook=hook, out=out
        )
        if receive is not None:
            receive()
        assert sums is out
        assert torch.allclose(sums.float(), x.float() * weights.sum(dim=1, keepdim=True), rtol=0.02, atol=0.02)
    if hasattr(torch, "float8_e4m3fn"):
        (cast, scales), *_ = buffer.low_latency_dispatch(x, topk_idx, TOKENS, experts)
        assert cast.dtype == torch.float8_e4m3fn and scales.shape == (EXPERTS_EACH, ranks * TOKENS, HIDDEN // 128)
    mask = torch.zeros(ranks, dtype=torch.int32)
    buffer.low_latency_query_mask_buffer(mask)
    assert not mask.any()
    buffer.destroy()
    symrail.barrier_all()
    print(f"PE {me} is well, torch {torch.__version__}\n", end="")
    sys.stdout.flush()
