"""symrail.ep.Buffer as a program written for DeepEP uses it, compared with NumPy. Argument: high, low, shrink, refuse."""

import itertools
import sys
from typing import Any

import ml_dtypes
import numpy as np
from refused import refused

import symrail
import symrail.ep as deep_ep

HIDDEN, EXPERTS_EACH, TOP_K, TOKENS = 200, 4, 6, 12


def inputs(rank: int, ranks: int, dtype: Any, seed: int = 0) -> tuple[Any, Any, Any]:
    """A rank's tokens, top-k indices (some -1) and weights; rank 1 has no tokens in odd seeds."""
    rng = np.random.default_rng([seed, rank])
    tokens = 0 if rank == 1 and seed % 2 else TOKENS - rank
    x = rng.standard_normal((tokens, HIDDEN)).astype(dtype)
    scores = rng.random((tokens, ranks * EXPERTS_EACH))
    indices = np.argsort(scores, axis=1)[:, :TOP_K].copy()
    indices[rng.random(indices.shape) < 0.2] = -1
    return x, indices, rng.random((tokens, TOP_K), dtype=np.float32)


def expert(x: Any, number: int) -> Any:
    return (x.astype(np.float32) * (number + 1)).astype(x.dtype)


def high(me: int, ranks: int) -> None:
    token_bytes = HIDDEN * 4
    configs = (deep_ep.Buffer.get_dispatch_config(ranks), deep_ep.Buffer.get_combine_config(ranks))
    # Small blocks, so that tokens need several.
    assert all(config.get_nvl_buffer_size_hint(token_bytes, ranks) > 1 << 20 for config in configs)
    nvl = deep_ep.Config(20, 6, 2).get_nvl_buffer_size_hint(token_bytes, ranks)
    buffer = deep_ep.Buffer(None, nvl, 0)
    for seed, dtype, with_topk in itertools.product((0, 1), ("float32", ml_dtypes.bfloat16, "fp8"), (True, False)):
        of_bytes = dtype == "fp8"
        everybody = [inputs(rank, ranks, "float32" if of_bytes else dtype, seed) for rank in range(ranks)]
        x, indices, weights = everybody[me]
        scales = [np.repeat(part[0][:, :1], 2, axis=1) + 1 for part in everybody]
        if of_bytes:
            x = (x.astype(ml_dtypes.float8_e4m3fn), scales[me])
        per_rank, none, per_expert, in_rank, _ = buffer.get_dispatch_layout(indices, ranks * EXPERTS_EACH)
        assert none is None
        owners = [np.where(part[1] < 0, -1, part[1] // EXPERTS_EACH) for part in everybody]
        for rank in range(ranks):
            assert np.array_equal(in_rank[:, rank], (owners[me] == rank).any(axis=1))
        assert np.array_equal(per_rank, in_rank.sum(axis=0))
        assert per_expert.tolist() == [(indices == e).sum() for e in range(ranks * EXPERTS_EACH)]
        layout = {"num_tokens_per_rank": per_rank, "is_token_in_rank": in_rank, "num_tokens_per_expert": per_expert}
        topk = {"topk_idx": indices, "topk_weights": weights} if with_topk else {}
        aligned = 3 if seed else 1
        received = buffer.dispatch(
            x, **layout, **topk, expert_alignment=aligned, config=configs[0], previous_event=buffer.capture(),
            async_finish=True,
        )
        got, got_indices, got_weights, counts, handle, event = received
        event.current_stream_wait()
        comes = [(owner == me).any(axis=1) for owner in owners]
        wanted = np.concatenate([part[0][come] for part, come in zip(everybody, comes)])
        if of_bytes:
            assert got[0].dtype == ml_dtypes.float8_e4m3fn
            assert np.array_equal(got[0].view("uint8"), wanted.astype(ml_dtypes.float8_e4m3fn).view("uint8"))
            assert np.array_equal(got[1], np.concatenate([s[come] for s, come in zip(scales, comes)]))
        else:
            assert got.dtype == x.dtype and np.array_equal(got, wanted)
        ends = np.cumsum([[(owner == rank).any(axis=1).sum() for rank in range(ranks)] for owner in owners], axis=0)
        assert np.array_equal(handle[0], ends) and len(got_indices if with_topk else wanted) == ends[-1][me]
        assert np.array_equal(handle.recv_src_idx, np.concatenate([np.flatnonzero(come) for come in comes]))
        named = [sum((part[1] == me * EXPERTS_EACH + e).sum() for part in everybody) for e in range(EXPERTS_EACH)]
        assert counts == [-(-count // aligned) * aligned for count in named]
        if with_topk:
            own = np.concatenate([owner[come] == me for owner, come in zip(owners, comes)])
            all_indices = np.concatenate([part[1][come] for part, come in zip(everybody, comes)])
            all_weights = np.concatenate([part[2][come] for part, come in zip(everybody, comes)])
            assert got_indices.dtype == indices.dtype
            assert np.array_equal(got_indices, np.where(own, all_indices - me * EXPERTS_EACH, -1))
            assert np.array_equal(got_weights, np.where(own, all_weights, 0))
            worst = TOKENS * ranks
            dispatched = buffer.dispatch(x, **layout, **topk, num_worst_tokens=worst)
            more, more_indices, more_weights, empty, of_worst, _ = dispatched
            parts = zip(more, got) if of_bytes else [(more, got)]
            assert all(len(a) == worst and np.array_equal(a[: len(b)].view("uint8"), b.view("uint8")) for a, b in parts)
            assert empty == [] and (more_indices[len(wanted) :] == -1).all() and len(more_weights) == worst
            if not of_bytes:
                exact, of_slots, _ = buffer.combine(expert(got, me), handle, topk_weights=got_weights)
                sums, of_more, _ = buffer.combine(expert(more, me), of_worst, topk_weights=more_weights)
                assert np.array_equal(sums, exact) and np.array_equal(of_more, of_slots)
        else:
            again, _, _, _, _, _ = buffer.dispatch(x, handle=handle)
            parts = zip(again, got) if of_bytes else [(again, got)]
            assert all(np.array_equal(a.view("uint8"), b.view("uint8")) for a, b in parts)
        if of_bytes:
            continue
        mine = expert(got, me)
        for biases in (None, x, (x, expert(x, 5))):
            sums, of_slots, _ = buffer.combine(mine, handle, topk_weights=got_weights, bias=biases, config=configs[1])
            statistics = buffer.statistics()["high_throughput"]
            assert statistics is not None and statistics["call"] == "combine"
            assert [name for name, _ in statistics["phases"]] == ["headers", "within the host", "between hosts", "adding"]
            total = np.zeros(x.shape, np.float32)
            # By host; the hosts are two.
            here = [rank for rank in range(ranks) if symrail.is_mapped(rank)]
            elsewhere = [rank for rank in range(ranks) if rank not in here]
            for host in sorted((here, elsewhere)):
                of_host = np.zeros(x.shape, np.float32)
                for rank in host:
                    of_host += np.where(in_rank[:, rank : rank + 1], expert(x, rank).astype(np.float32), 0)
                total += of_host
            for bias in (biases if isinstance(biases, tuple) else (biases,)) if biases is not None else ():
                total += bias.astype(np.float32)
            assert sums.dtype == x.dtype and np.array_equal(sums, total.astype(x.dtype))
            if with_topk:
                assert np.array_equal(of_slots, np.where(indices < 0, 0, weights))
            else:
                assert of_slots is None
    buffer.destroy()
    refused(symrail.errors.StateError, buffer.combine, np.zeros((1, 4), np.float32), handle)


def low(me: int, ranks: int) -> None:
    experts = ranks * EXPERTS_EACH
    size = deep_ep.Buffer.get_low_latency_rdma_size_hint(TOKENS, HIDDEN * 2, ranks, experts)
    buffer = deep_ep.Buffer(None, 0, size, low_latency_mode=True, num_qps_per_rank=EXPERTS_EACH)
    buffer.clean_low_latency_buffer(TOKENS, HIDDEN, experts)
    options = itertools.product((ml_dtypes.bfloat16, "float32"), (False, True), (False, True), (False, True))
    for seed, (dtype, hook, fp8, round_scale) in enumerate(options):
        everybody = [inputs(rank, ranks, dtype, seed) for rank in range(ranks)]
        x, indices, weights = everybody[me]
        stats = np.ones(EXPERTS_EACH, np.int32)
        received, counts, handle, event, receive = buffer.low_latency_dispatch(
            x, indices, TOKENS, experts, use_fp8=fp8, round_scale=round_scale, async_finish=not hook,
            return_recv_hook=hook, cumulative_local_expert_recv_stats=stats,
        )
        if receive is not None:
            assert not counts.any()
            receive()
        event.current_stream_wait()
        tokens, scales = received if fp8 else (received, None)
        assert tokens.shape == (EXPERTS_EACH, ranks * TOKENS, HIDDEN) and np.array_equal(stats, counts + 1)
        values = tokens.astype(np.float32)
        if scales is not None:
            assert tokens.dtype == ml_dtypes.float8_e4m3fn
            values *= np.repeat(scales, 128, axis=2)[:, :, :HIDDEN]
            assert not round_scale or (np.log2(scales[scales > 0]) % 1 == 0).all()
        made = np.zeros(tokens.shape, dtype)
        for local in range(EXPERTS_EACH):
            number, row = me * EXPERTS_EACH + local, 0
            for source, part in enumerate(everybody):
                named = np.flatnonzero((part[1] == number).any(axis=1))
                assert handle[1][local, source] == row << 32 | len(named)
                assert np.array_equal(handle[0][local, row : row + len(named)], named)
                got, wanted = values[local, row : row + len(named)], part[0][named].astype(np.float32)
                if fp8:
                    assert np.allclose(got, wanted, rtol=0.07, atol=0.02)
                else:
                    assert np.array_equal(got, wanted)
                # Treated as exact from here on, so that sums can be compared.
                made[local, row : row + len(named)] = expert(part[0][named], number)
                row += len(named)
            assert counts[local] == row
        out = np.zeros_like(x) if seed % 3 == 0 else None
        zero_copy = seed % 2 == 1
        if zero_copy:
            buffer.get_next_low_latency_combine_buffer(handle)[...] = made
        sums, event, receive = buffer.low_latency_combine(
            np.zeros_like(made) if zero_copy else made, indices, weights, handle, zero_copy=zero_copy,
            return_recv_hook=hook, out=out,
        )
        if receive is not None:
            receive()
        total = np.zeros(x.shape, np.float32)
        for rank in range(ranks):
            of_rank = np.zeros(x.shape, np.float32)
            for slot in range(TOP_K):
                for token in np.flatnonzero((indices[:, slot] >= 0) & (indices[:, slot] // EXPERTS_EACH == rank)):
                    of_rank[token] += weights[token, slot] * expert(x[token], indices[token, slot]).astype(np.float32)
            total += of_rank.astype(x.dtype).astype(np.float32)
        assert out is None or sums is out
        statistics = buffer.statistics()["low_latency_dispatch"]
        assert statistics is not None and statistics["call"] == "low-latency dispatch"
        assert statistics["per_expert"] == counts.tolist()
        assert sum(statistics[f"{way}_rows"] for way in ("own", "mapped", "wire")) == sum(statistics["to_ranks"])
        assert np.array_equal(sums, total.astype(x.dtype))
    encoded(buffer, me, ranks)
    buffer.destroy()


def encoded(buffer: Any, me: int, ranks: int) -> None:
    """Rows in LogFMT: as near as DeepEP's test wants it, in fewer bytes; groups with large values cross as they are."""
    experts = ranks * EXPERTS_EACH
    for dtype, least, most, large in ((ml_dtypes.bfloat16, 0.6, 0.72, 0), ("float32", 0.3, 0.4, 0), ("float32", 0.75, 0.8, 1)):
        x, indices, weights = inputs(me, ranks, "float32", 2)
        x = (x / 8).astype(dtype)
        x[:, :128] *= 1 + 40 * large
        came, _, handle, _, _ = buffer.low_latency_dispatch(x, indices, TOKENS, experts, use_fp8=False)
        found, crossed = [], []
        for use_logfmt in (False, True):
            sums, _, _ = buffer.low_latency_combine(came, indices, weights, handle, use_logfmt=use_logfmt)
            statistics = buffer.statistics()["low_latency_combine"]
            assert statistics is not None
            found.append(sums.astype("float64"))
            crossed.append(statistics["mapped_bytes"] + statistics["wire_bytes"])
        exact, near = found
        assert not np.array_equal(exact, near) and (not large or np.array_equal(exact[:, :128], near[:, :128]))
        assert 1 - 2 * (exact * near).sum() / (exact**2 + near**2).sum() < 9e-4
        assert least < crossed[1] / crossed[0] < most, crossed
    # Ranks need not agree: each one's choice holds for the rows that it returns. Here those of odd ranks are encoded.
    of_odd = np.where(indices >= 0, indices // EXPERTS_EACH, 0) % 2
    for parity in (0, 1):
        some = np.where(of_odd == parity, weights, 0).astype("float32")
        choices = (parity == 1, me % 2 == 1)
        wanted, mixed = (
            buffer.low_latency_combine(came, indices, some, handle, use_logfmt=use_logfmt)[0] for use_logfmt in choices
        )
        assert wanted.any() and np.array_equal(mixed, wanted), parity


def casts() -> None:
    """FP8 as ml_dtypes rounds."""
    rng = np.random.default_rng(5)
    x = (rng.standard_normal((50, 300)) * 10.0 ** rng.integers(-6, 4, (50, 1))).astype(np.float32)
    data, scales = symrail._symrail.ep_cast_fp8(x.reshape(-1).view("uint8"), 1200, "float32", False)
    padded = np.zeros((50, 384), np.float32)
    padded[:, :300] = x
    most = np.maximum(np.abs(padded.reshape(50, 3, 128)).max(axis=2), np.float32(1e-4))
    assert np.array_equal(scales.reshape(50, 3), most / np.float32(448))
    scaled = padded * np.repeat(np.float32(448) / most, 128, axis=1)
    assert np.array_equal(data.reshape(50, 300), scaled[:, :300].astype(ml_dtypes.float8_e4m3fn).view("uint8"))


def refuse(me: int, ranks: int) -> None:
    errors = symrail.errors
    experts = ranks * EXPERTS_EACH
    refused(errors.DifferError, deep_ep.Buffer, None, (1 << 20) + 4096 * me)
    refused(errors.ArgumentError, deep_ep.Buffer, None, 100)
    for one in (-1, 1 << 50):
        refused(errors.ArgumentError, deep_ep.Buffer, None, one, text=f"num_nvl_bytes={one}")
    refused(errors.ArgumentError, deep_ep.Buffer, "ranks", 1 << 20, text="group is 'ranks'")
    buffer = deep_ep.Buffer(None, 1 << 20, 1 << 20, low_latency_mode=True)
    x, indices, weights = inputs(me, ranks, "float32")
    far = indices.copy()
    far[2, 3] = experts
    refused(errors.ArgumentError, buffer.get_dispatch_layout, far, experts, text="token 2, slot 3")
    refused(errors.ArgumentError, buffer.get_dispatch_layout, indices, experts + 1)
    refused(errors.ArgumentError, buffer.get_dispatch_layout, indices.astype("float32"), experts)
    per_rank, _, per_expert, in_rank, _ = buffer.get_dispatch_layout(indices, experts)
    layout = {"num_tokens_per_rank": per_rank, "is_token_in_rank": in_rank, "num_tokens_per_expert": per_expert}
    for wrong in (
        {"x": x[1:], **layout},
        {"x": x, **layout, "topk_idx": indices},
        {"x": x, **layout, "topk_idx": far, "topk_weights": weights},
        {"x": x, **layout, "num_tokens_per_rank": per_rank + 1},
        {"x": x},
        {"x": [1, 2]},
        {"x": (x, x.astype("float64")), **layout},
    ):
        refused(errors.ArgumentError, buffer.dispatch, **wrong)
    error = refused(errors.DifferError, buffer.dispatch, x.astype("float64") if me == 0 else x, **layout)
    assert error.pe == (1 if me == 0 else 0)
    # As many bytes of another type.
    halves = x.astype("float16" if me == 0 else ml_dtypes.bfloat16)
    error = refused(errors.DifferError, buffer.dispatch, halves, **layout, text="float16")
    assert error.pe == (1 if me == 0 else 0) and "bfloat16" in str(error), str(error)
    _, _, _, _, handle, _ = buffer.dispatch(x, **layout)
    refused(errors.DifferError, buffer.dispatch, x.view("int32") if me == 0 else x, handle=handle, text="int32")
    received = np.zeros((len(handle.recv_src_idx), HIDDEN), "float32")
    for wrong in (received[1:], received.astype("int32")):
        refused(errors.ArgumentError, buffer.combine, wrong, handle)
    refused(errors.ArgumentError, buffer.combine, received, handle, bias=x.astype(ml_dtypes.bfloat16))
    refused(errors.UnsupportedError, buffer.get_next_combine_buffer, handle, x.shape[1], x.dtype)
    local = buffer.get_local_buffer_tensor
    refused(errors.UnsupportedError, local, "float32", (2, 3), use_rdma_buffer=True, text="on the host")
    other = deep_ep.Buffer(None, 1 << 20)
    refused(errors.ArgumentError, other.get_local_buffer_tensor, "float32", use_rdma_buffer=True, text="num_rdma_bytes=0")
    other.destroy()
    refused(errors.StateError, other.get_local_buffer_tensor, "float32", text="destroyed")
    combined = received if me == 0 else np.zeros((len(received), 2 * HIDDEN), ml_dtypes.bfloat16)
    refused(errors.DifferError, buffer.combine, combined, handle, text="bfloat16")
    buffer.combine(received, handle)
    low = (x, indices, TOKENS, experts)
    refused(errors.ArgumentError, buffer.low_latency_dispatch, np.zeros((4, 1 << 16), "float32"), indices[:4], *low[2:])
    refused(errors.UnsupportedError, buffer.low_latency_dispatch, *low, round_scale=True, use_ue8m0=True)
    refused(errors.ArgumentError, buffer.low_latency_dispatch, *low, use_ue8m0=True)
    _, _, handle, _, _ = buffer.low_latency_dispatch(*low, use_fp8=False)
    other = np.zeros((len(x), 128), ml_dtypes.bfloat16) if me == 0 else np.zeros((len(x), 64), "float32")
    refused(errors.DifferError, buffer.low_latency_dispatch, other, *low[1:], use_fp8=False, text="bfloat16")
    many = np.zeros((TOKENS + 1, HIDDEN), "float32")
    refused(errors.ArgumentError, buffer.low_latency_dispatch, many, np.zeros((len(many), TOP_K), "int64"), *low[2:])
    refused(errors.ArgumentError, buffer.low_latency_dispatch, x, far, *low[2:])
    refused(errors.ArgumentError, buffer.low_latency_combine, received, indices, weights, handle)
    refused(errors.StateError, deep_ep.Buffer(None, 1 << 20).low_latency_dispatch, *low)


def shrink(me: int, ranks: int) -> None:
    """The last rank stops; the others mask it and continue."""
    experts = ranks * EXPERTS_EACH
    buffer = deep_ep.Buffer(None, 0, 4 << 20, low_latency_mode=True, enable_shrink=True, timeout=6)
    strict = deep_ep.Buffer(None, 0, 4 << 20, low_latency_mode=True, timeout=2.5)
    x, indices, weights = inputs(me, ranks, "float32")
    low = (x, indices, TOKENS, experts)
    for dispatching in (buffer, strict):
        dispatching.low_latency_dispatch(*low, use_fp8=False)
    if me < ranks - 1:
        masked = np.zeros(ranks, np.int32)
        buffer.low_latency_query_mask_buffer(masked)
        assert not masked.any()
        error = refused(symrail.errors.TimeoutError, strict.low_latency_dispatch, *low)
        assert error.pes == (ranks - 1,), error.pes
        for _ in range(50):
            received, counts, handle, _, _ = buffer.low_latency_dispatch(*low, use_fp8=False)
            assert (handle[1][:, -1] == 0).all()
            sums, _, _ = buffer.low_latency_combine(received, indices, weights, handle)
            share = np.where((indices < 0) | (indices // EXPERTS_EACH == ranks - 1), 0, weights)
            assert np.allclose(sums, x * share.sum(axis=1, keepdims=True), rtol=1e-4, atol=1e-5)
        buffer.low_latency_query_mask_buffer(masked)
        assert masked.tolist() == [0] * (ranks - 1) + [1]
        refused(symrail.errors.StateError, buffer.low_latency_clean_mask_buffer)
    symrail.barrier_all()


with symrail.init(heap_bytes=64 << 20):
    rank, size = symrail.my_pe(), symrail.n_pes()
    casts()
    {"high": high, "low": low, "shrink": shrink, "refuse": refuse}[sys.argv[1]](rank, size)
    symrail.barrier_all()
    print(f"PE {rank} is well")
