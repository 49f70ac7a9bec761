"""Runtime, teams, arrays, buffers and plans are dropped in random order, also after finalize: none harms, and what is
left refuses by name. Arguments: seed, and whether finalize comes first."""

import gc
import random
import sys
from typing import Any

import numpy as np

import symrail
import symrail.decomp as decomp
import symrail.ep as deep_ep
import symrail.overlap as overlap
from symrail.collectives import Communicator
from symrail.errors import StateError

seed, finalizes = int(sys.argv[1]), sys.argv[2] == "finalize"
held: dict[str, Any] = {"runtime": symrail.init(heap_bytes=96 << 20)}
me, n = symrail.my_pe(), symrail.n_pes()
mine = random.Random(seed * n + me)
held["world"] = symrail.team_world()
held["team"] = held["world"].split_strided(0, 1, n)
held["array"], held["words"] = symrail.array(100, "float64"), symrail.array(4, "uint64")
held["products"] = overlap.Group(held["team"], heap_bytes=8 << 20)
grid = decomp.Grid((4, 4, 4))
held["grid"] = (grid, grid.empty("x", "float64"))
del grid
bytes_of_rank = deep_ep.Buffer.get_dispatch_config(n).get_nvl_buffer_size_hint(64, n)
held["buffer"] = deep_ep.Buffer(None, bytes_of_rank, 0)
held["communicator"] = Communicator()
held["of a team"] = Communicator(held["team"], heap_bytes=4 << 20)
held["view"] = held["array"][10:20]


def dispatch(buffer: deep_ep.Buffer) -> None:
    indices = np.arange(4).reshape(4, 1) % n
    rows = np.ones((4, 16), "float32")
    per_rank, _, per_expert, in_rank, _ = buffer.get_dispatch_layout(indices, n)
    buffer.dispatch(
        rows,
        num_tokens_per_rank=per_rank,
        is_token_in_rank=in_rank,
        num_tokens_per_expert=per_expert,
        topk_idx=indices,
        topk_weights=np.ones((4, 1), "float32"),
    )


ones = np.ones((2, 2), "float32")
peer = (me + 1) % n
calls: dict[str, Any] = {
    "runtime": lambda _: symrail.barrier_all(),
    "world": lambda world: world.sync(),
    "team": lambda team: team.barrier(),
    "array": lambda array: symrail.put(array, 1.5, peer),
    "words": lambda words: symrail.signal_op(words, 1, "add", peer),
    "products": lambda group: overlap.all_gather_matmul(ones, ones, group=group),
    "grid": lambda grid: grid[0].transpose(grid[1], "y"),
    "buffer": dispatch,
    "view": lambda view: symrail.get(np.zeros(10), view, peer),
}
for name in sorted(calls):
    calls[name](held[name])
symrail.barrier_all()

if finalizes:
    symrail.finalize()
order = sorted(held)
mine.shuffle(order)
for name in order:
    if finalizes and name in calls:
        try:
            calls[name](held[name])
        except StateError:
            pass
        else:
            raise AssertionError(f"{name} was used after finalize")
    if name in ("array", "words", "view"):
        # This process's memory, as long as an array is in it.
        held[name][:] = 3
        assert (held[name] == 3).all()
    del held[name]
    if mine.random() < 0.3:
        gc.collect()
# In one write, so that lines of several PEs do not mix.
sys.stdout.write("dropped\n")
