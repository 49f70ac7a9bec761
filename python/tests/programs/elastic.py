"""Ranks that leave low-latency calls and take part again: plans of phases, replayed by 4 ranks. Argument: a plan's name.

A phase names the ranks that take part, and how the others went: by disconnect_ranks, or late. Before a phase with more
ranks all call connect_ranks. Sums are compared with NumPy in every round.
"""

import sys
from typing import Any

import numpy as np

import symrail
import symrail.ep as deep_ep
from symrail.errors import StateError

HIDDEN, EACH, K, TOKENS, ROUNDS = 64, 2, 3, 5, 3
ALL = {0, 1, 2, 3}
PLANS: dict[str, list[tuple[str, set[int]]]] = {
    "no_expansion": [("start", ALL), ("same", ALL)],
    "expansion": [("disconnect", {0, 1}), ("connect", {0, 1, 2}), ("connect", ALL)],
    "contraction": [("start", ALL), ("disconnect", {0, 1, 3}), ("disconnect", {0, 3}), ("connect", ALL)],
    "fault": [("start", ALL), ("late", {0, 1, 3}), ("connect", ALL), ("late", {1, 2, 3}), ("connect", ALL)],
}


def inputs(rank: int, ranks: int, call: int) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng([call, rank])
    x = rng.integers(-8, 8, (TOKENS, HIDDEN)).astype("float32")
    indices = np.argsort(rng.random((TOKENS, ranks * EACH)), axis=1)[:, :K].astype("int64")
    return x, indices, rng.integers(1, 4, (TOKENS, K)).astype("float32")


def a_round(buffer: Any, me: int, ranks: int, active: set[int], call: int) -> None:
    x, indices, weights = inputs(me, ranks, call)
    rows, counts, handle, _, _ = buffer.low_latency_dispatch(x, indices, TOKENS, ranks * EACH, use_fp8=False)
    for local in range(EACH):
        number, row = me * EACH + local, 0
        for source in sorted(active):
            its_x, its_indices, _ = inputs(source, ranks, call)
            wanted = its_x[(its_indices == number).any(axis=1)]
            assert np.array_equal(rows[local, row : row + len(wanted)], wanted), (call, source)
            row += len(wanted)
        assert counts[local] == row, (call, counts, row)
    numbers = np.arange(me * EACH, (me + 1) * EACH, dtype="float32")[:, None, None]
    sums, _, _ = buffer.low_latency_combine(rows * (numbers + 1), indices, weights, handle)
    there = np.isin(indices // EACH, sorted(active))
    assert np.array_equal(sums, x * (weights * (indices + 1) * there).sum(axis=1, keepdims=True)), call


def main() -> None:
    with symrail.init(heap_bytes=32 << 20):
        me, ranks = symrail.my_pe(), symrail.n_pes()
        size = deep_ep.Buffer.get_low_latency_rdma_size_hint(TOKENS, 2 * HIDDEN, ranks, ranks * EACH)
        buffer = deep_ep.Buffer(None, 0, size, low_latency_mode=True, enable_shrink=True, timeout=8.0)
        call, active = 0, set(ALL)
        a_round(buffer, me, ranks, active, call)
        for how, those in PLANS[sys.argv[1]]:
            gone, come = active - those, those - active
            if how == "disconnect" and me in those:
                buffer.disconnect_ranks(sorted(gone))
            if how == "connect":
                # Calls that were sent and not received are abandoned.
                x, indices, _ = inputs(me, ranks, call)
                hook = None
                if me in active:
                    hook = buffer.low_latency_dispatch(
                        x, indices, TOKENS, ranks * EACH, use_fp8=False, return_recv_hook=True
                    )[-1]
                buffer.connect_ranks(sorted(come))
                try:
                    if hook is not None:
                        hook()
                        raise AssertionError("a call from before the connection was received")
                except StateError:
                    pass
            active = set(those)
            for _ in range(ROUNDS):
                call += 1
                if me in active:
                    a_round(buffer, me, ranks, active, call)
            masks = np.zeros(ranks, "int32")
            buffer.low_latency_query_mask_buffer(masks)
            assert me not in active or masks.tolist() == [int(rank not in active) for rank in range(ranks)], masks
            symrail.barrier_all()
            if how == "late" and me in gone:
                # It makes its call after all: the others have left it behind.
                x, indices, weights = inputs(me, ranks, call)
                rows, _, handle, _, _ = buffer.low_latency_dispatch(x, indices, TOKENS, ranks * EACH, use_fp8=False)
                buffer.low_latency_combine(rows, indices, weights, handle)
        buffer.destroy()
        print(f"PE {me} is well")


main()
