"""Heat spreads over a square whose rows are shared out among the PEs, with halos of a row.

    symrail run -n 4 -- python stencil.py

With matplotlib it draws the result to stencil.png.
"""

import numpy as np
import symrail

SIZE, STEPS = 64, 400


def step(square):
    """The inner points become the mean of their neighbours."""
    square[1:-1, 1:-1] = (square[:-2, 1:-1] + square[2:, 1:-1] + square[1:-1, :-2] + square[1:-1, 2:]) / 4


with symrail.init():
    me, n = symrail.my_pe(), symrail.n_pes()
    rows = SIZE // n                                        # n divides SIZE
    mine = symrail.array((rows + 2, SIZE + 2))              # with the neighbours' rows, and a border
    whole = symrail.array((SIZE, SIZE + 2))
    came = symrail.array(2, "uint64")
    mine[:, 0] = 1                                          # the left border is hot
    symrail.barrier_all()

    for lap in range(1, STEPS + 1):
        # My first row is the upper neighbour's last one, and the other way round.
        if me > 0:
            symrail.put_signal(mine[-1], mine[1], came, lap, "set", me - 1, offset=1)
        if me < n - 1:
            symrail.put_signal(mine[0], mine[-2], came, lap, "set", me + 1, offset=0)
        if me > 0:
            symrail.signal_wait(came, lap, ">=", offset=0, timeout=60)
        if me < n - 1:
            symrail.signal_wait(came, lap, ">=", offset=1, timeout=60)
        step(mine)
        symrail.barrier_all()                               # nobody puts before all have read

    symrail.put(whole[me * rows : (me + 1) * rows], mine[1:-1], 0)
    symrail.barrier_all()
    if me == 0:
        alone = np.zeros((SIZE + 2, SIZE + 2), "float32")
        alone[:, 0] = 1
        for _ in range(STEPS):
            step(alone)
        same = np.allclose(whole, alone[1:-1])
        print(f"{STEPS} steps of {SIZE} x {SIZE} points on {n} PEs: {'as alone' if same else 'WRONG'}")
        try:
            import matplotlib.image

            matplotlib.image.imsave("stencil.png", whole, cmap="inferno")
        except ImportError:
            pass
