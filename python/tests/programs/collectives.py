"""Every collective, for each of its dtypes, against NumPy; on all PEs and on every second one."""

import numpy as np
import symrail
from reference import KINDS, OPS, of_all, values


def copies(team, dtype, count):
    me, n = team.my_pe(), team.n_pes()
    mine, theirs = symrail.array(count, dtype), symrail.array(count * n, dtype)
    mine[:] = values(dtype, count, me)
    symrail.fcollect(team, theirs, mine)
    assert np.array_equal(theirs, of_all(dtype, count, n).ravel())
    team.sync()
    assert team.all_agree(True) and team.all_agree(me == n - 1) == (n == 1)
    symrail.collect(team, theirs[: count * n - (n - 1)], mine[: count - (me > 0)])
    parts = [values(dtype, count, pe)[: count - (pe > 0)] for pe in range(n)]
    assert np.array_equal(theirs[: count * n - (n - 1)], np.concatenate(parts))
    team.sync()
    symrail.broadcast(team, theirs[:count], mine, n - 1)
    assert np.array_equal(theirs[:count], values(dtype, count, n - 1))
    team.sync()
    blocks = symrail.array((n, count), dtype)
    blocks[:] = of_all(dtype, count, n) + np.array(me, dtype)
    symrail.alltoall(team, theirs, blocks)
    wanted = np.stack([values(dtype, count, me) + np.array(pe, dtype) for pe in range(n)])
    assert np.array_equal(theirs, wanted.ravel())
    team.sync()


def reductions(team, dtype, count):
    me, n = team.my_pe(), team.n_pes()
    mine, result = symrail.array((n, count), dtype), symrail.array((n, count), dtype)
    for op, combine in OPS.items():
        mine[:] = values(dtype, n * count, me).reshape(n, count)
        team.sync()
        wanted = combine(of_all(dtype, n * count, n), axis=0, dtype=dtype) if op in ("sum", "prod") else None
        try:
            if wanted is None:
                wanted = combine(of_all(dtype, n * count, n), axis=0)
            symrail.reduce(team, result, mine, op)
        except (TypeError, symrail.errors.ArgumentError):
            assert mine.dtype.kind in "fc" and op in ("and", "or", "xor", "min", "max"), (dtype, op)
            continue
        assert np.array_equal(result.ravel(), wanted), (dtype, op)
        team.sync()
        symrail.reducescatter(team, result[0], mine, op)
        assert np.array_equal(result[0], wanted.reshape(n, count)[me]), (dtype, op)
        team.sync()


with symrail.init() as runtime:
    world = symrail.team_world()
    n, me = world.n_pes(), world.my_pe()
    for dtype in KINDS:
        copies(world, dtype, 7)
        reductions(world, dtype, 7)
    for count in (1, 3000, 70000):
        copies(world, "float64", count)
        reductions(world, "float64", count)
    for start in (0, 1):
        team = world.split_strided(start, 2, n // 2)
        # Arrays are allocated by all PEs.
        mine, result = symrail.array(5, "int64"), symrail.array(5, "int64")
        mine[:] = me
        if team is not None:
            assert [team.translate(pe) for pe in range(team.n_pes())] == list(range(start, n, 2))
            team.reduce(result, mine, "sum")
            assert (result == sum(range(start, n, 2))).all()
            team.barrier()
            team.destroy()
        else:
            assert me % 2 != start
    symrail.barrier_all()
    print("well\n", end="", flush=True)
