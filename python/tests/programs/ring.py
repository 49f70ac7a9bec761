"""Every PE puts its number to the next one, and checks the number that has arrived."""

import numpy as np
import symrail

with symrail.init():
    me, n = symrail.my_pe(), symrail.n_pes()
    box = symrail.array((2, 3), "float64")
    symrail.put(box, np.full((2, 3), me + 0.5), (me + 1) % n)
    symrail.barrier_all()
    assert (box == (me - 1) % n + 0.5).all(), box
    there = np.empty_like(box)
    symrail.get(there, box, (me + 2) % n)
    assert (there == (me + 1) % n + 0.5).all(), there
    symrail.barrier_all()
    # One write, so that lines of several PEs do not mix.
    print(f"PE {me} of {n}\n", end="", flush=True)
