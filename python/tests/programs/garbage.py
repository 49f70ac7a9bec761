"""Each PE drops arrays in another order, some in cycles, some never; nothing hangs, and live arrays stay intact."""

import gc
import random
import sys

import numpy as np
import symrail

DELETES = int(sys.argv[1])


class Cycle:
    def __init__(self, array):
        self.array, self.me = array, self


with symrail.init(heap_bytes=16 << 20) as runtime:
    me, n = symrail.my_pe(), symrail.n_pes()
    mine, shared = random.Random(me), random.Random(4711)
    alive, deleted, number = [], 0, 0
    while deleted < DELETES:
        # The same on all PEs.
        for _ in range(shared.randrange(1, 20)):
            number += 1
            array = symrail.array(shared.randrange(0, 200), "int32")
            assert not array.any()
            array[:] = number * n + me
            alive.append((number, array))
        # Each PE for itself.
        mine.shuffle(alive)
        for _ in range(mine.randrange(0, len(alive) if len(alive) < 100 else 60)):
            number_of, array = alive.pop()
            if mine.random() < 0.1:
                Cycle(array[::2])
            elif mine.random() < 0.1:
                symrail.free(array)
            del array
            deleted += 1
        if mine.random() < 0.05:
            gc.collect()
        # PEs repeat as often as the one that needs most rounds.
        assert all((array == number_of * n + me).all() for number_of, array in alive[:10])
        while len(alive) > 200:
            alive.pop()
            deleted += 1
        done = symrail.array(1, "int64")
        for pe in range(n):
            symrail.atomic_add(done, int(deleted >= DELETES), pe)
        symrail.barrier_all()
        if done[0] == n:
            break
        deleted = min(deleted, DELETES - 1)
    alive.clear()
    del done
    gc.collect()
    symrail.barrier_all()
    symrail.reclaim()
    blocks, used = runtime.blocks()
    assert blocks == 0, blocks
    print(f"{number} arrays\n", end="", flush=True)
