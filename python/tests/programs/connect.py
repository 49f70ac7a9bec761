"""Connects to all PEs or to a team of every third one; later puts to them open no descriptors."""

import os
import sys

import symrail


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


symrail.init()
me, n, ahead = symrail.my_pe(), symrail.n_pes(), sys.argv[1]
words = symrail.array(n, "int64")
third = symrail.team_world().split_strided(0, 3, (n + 2) // 3)
peers = range(n) if ahead != "team" else range(0, n, 3) if third else range(0)
if ahead == "all":
    symrail.connect_all()
if ahead == "team" and third:
    third.connect()
symrail.barrier_all()
before = descriptors()
symrail.barrier_all()
for pe in peers:
    symrail.put(words[me : me + 1], pe + 1, pe)
symrail.barrier_all()
opened = descriptors() - before
assert all(words[pe] == me + 1 for pe in peers)
assert opened > 0 if ahead == "nobody" else opened == 0, opened
symrail.finalize()
print("well\n", end="", flush=True)
