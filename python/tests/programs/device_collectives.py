"""symrail.collectives on the host: every type and operation, in place or not, teams, plans, and refusals. Each PE
compares its results with NumPy's from all PEs' inputs."""

import gc
import sys

import ml_dtypes
import numpy as np

import symrail
from symrail.collectives import Communicator, ExecutionPlan, P2POp, ReduceOp
from symrail.errors import ArgumentError, DifferError, StateError, SymrailError

TYPES = ["int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "bfloat16", "float32", "float64",
         "float8_e4m3fn", "float8_e5m2"]  # fmt: skip
OPS = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}


def kind_of(name: str) -> np.dtype:
    return np.dtype(getattr(ml_dtypes, name, name))


def numbers(rank: int, count: int, name: str) -> np.ndarray:
    """A rank's input: small numbers, whose sums and products are exact in every type."""
    return ((np.arange(count) + rank) % 3).astype("float64").astype(kind_of(name))


def refused(error: type[SymrailError], what: str, call) -> None:
    try:
        call()
    except error as found:
        assert what in str(found), found
    else:
        raise AssertionError(f"{what}: was not refused")


def combined(op: str, count: int, n: int, name: str) -> np.ndarray:
    wide = [numbers(rank, count, name).astype("float64") for rank in range(n)]
    return OPS[op].reduce(wide).astype(kind_of(name))


def same(found: np.ndarray, wanted: np.ndarray, what: str) -> None:
    assert found.dtype == wanted.dtype and np.array_equal(found, wanted), (what, found, wanted)


def reductions(comm: Communicator, source: dict, dest: dict) -> None:
    n, count = comm.size, 61
    for name in TYPES:
        x, y = source[name][:count], dest[name][:count]
        for op in OPS:
            x[:] = numbers(comm.rank, count, name)
            comm.all_reduce(x, y, op)
            same(y, combined(op, count, n, name), f"all_reduce {name} {op}")
        comm.all_reduce(x, op=ReduceOp.SUM)
        same(x, combined("sum", count, n, name), f"in place {name}")
    x, y = source["float32"][: 2 * n], dest["float32"][:2]
    x[:] = numbers(comm.rank, 2 * n, "float32")
    comm.reduce_scatter(y, x, "max")
    same(y, combined("max", 2 * n, n, "float32")[2 * comm.rank :][:2], "reduce_scatter")
    comm.reduce_scatter_tensor(y, x)
    same(y, combined("sum", 2 * n, n, "float32")[2 * comm.rank :][:2], "reduce_scatter_tensor")
    x[:] = 2 * comm.rank
    comm.all_reduce(x, op="avg")
    assert (x == n - 1).all(), x
    x[:], y[:] = comm.rank, -7
    comm.reduce(x[:2], n - 1, output=y)
    assert (y == (sum(range(n)) if comm.rank == n - 1 else -7)).all(), y
    # No library has a type for this: a half is 0x70 and one 0x78.
    raw = source["uint8"][:8]
    raw[:] = 0x70
    comm.all_reduce(raw, op="max", dtype="float8_e4m3b15")
    assert (raw == 0x70).all(), raw
    if n == 2:
        comm.all_reduce(raw, dtype="float8_e4m3b15")
        assert (raw == 0x78).all(), raw


def types_of_the_host(comm: Communicator) -> None:
    """Booleans, 16 bits, complex numbers, and operations on bits, as NumPy has them."""
    bits = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}
    n, count = comm.size, 77
    for name in ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint64", "complex64", "complex128"]:
        ops = {**OPS, **bits} if np.dtype(name).kind in "iub" else {"sum": np.add, "prod": np.multiply}
        x, y = symrail.array(count, name), symrail.array(count, name)
        whole = [np.random.default_rng(rank).integers(0, 5, count) for rank in range(n)]
        inputs = [(numbers * (1 + 1j) if name.startswith("c") else numbers).astype(name) for numbers in whole]
        x[:] = inputs[comm.rank]
        for op, function in ops.items():
            comm.all_reduce(x, y, op)
            same(y, function.reduce(inputs).astype(name), f"all_reduce {name} {op}")
        comm.reduce(x, n - 1, op="sum", output=y)
        if comm.rank == n - 1:
            same(y, np.add.reduce(inputs).astype(name), f"reduce {name}")
        if name.startswith("c"):
            comm.all_reduce(x, y, "avg")
            assert np.allclose(y, np.add.reduce(inputs) / n), y
            why = f"elements of {name} have no min; there are sum, prod"
            refused(ArgumentError, why, lambda x=x, y=y: comm.all_reduce(x, y, "min"))
        comm.broadcast(x, n - 1)
        same(x, inputs[n - 1], f"broadcast {name}")
        comm.all_reduce(x, y, ReduceOp.SUM)
    x = symrail.array(8, "bool")
    refused(ArgumentError, "elements of bool have no avg", lambda: comm.all_reduce(x, op=ReduceOp.AVG))
    comm.all_reduce(x, op=ReduceOp.BOR)
    x = symrail.array(8, "float32")
    refused(ArgumentError, "elements of float32 have no xor", lambda: comm.all_reduce(x, op=ReduceOp.BXOR))
    x = symrail.array(8, "float16").view("V2")
    refused(ArgumentError, "no reductions of elements of", lambda: comm.all_reduce(x))


def moves(comm: Communicator, source: dict, dest: dict) -> None:
    n, me = comm.size, comm.rank
    x, y = source["int64"], dest["int64"]
    x[:3] = np.arange(3) + 10 * me
    comm.all_gather(y[: 3 * n], x[:3])
    all_of = np.concatenate([np.arange(3) + 10 * rank for rank in range(n)])
    same(y[: 3 * n], all_of, "all_gather")
    y[:] = 0
    y[3 * me : 3 * me + 3] = x[:3]
    comm.all_gather_into_tensor(y[: 3 * n], y[3 * me : 3 * me + 3])
    same(y[: 3 * n], all_of, "all_gather in place")
    comm.broadcast(x[:3], n - 1)
    same(x[:3], np.arange(3) + 10 * (n - 1), "broadcast")
    x[: 2 * n] = 100 * me + np.arange(2 * n)
    comm.all_to_all(y[: 2 * n], x[: 2 * n])
    same(y[: 2 * n], np.concatenate([100 * rank + 2 * me + np.arange(2) for rank in range(n)]), "all_to_all")
    y[:] = 0
    comm.all_to_all_single(y[: 2 * n], x[: 2 * n])
    all_single = np.concatenate([100 * rank + 2 * me + np.arange(2) for rank in range(n)])
    same(y[: 2 * n], all_single, "all_to_all_single")
    # Only one of the two splits is given: the other one is even.
    y[:] = 0
    comm.all_to_all_single(y[: 2 * n], x[: 2 * n], [2] * n)
    same(y[: 2 * n], all_single, "all_to_all_single, output splits")
    comm.all_to_all_single(y[: 2 * n], x[: 2 * n], None, [2] * n)
    same(y[: 2 * n], all_single, "all_to_all_single, input splits")
    # Rank r sends r + i elements to rank i.
    to, come = [me + rank for rank in range(n)], [rank + me for rank in range(n)]
    x[: sum(to)] = np.repeat(np.arange(n), to) + 100 * me
    comm.all_to_all_single(y[: sum(come)], x[: sum(to)], come, to)
    same(y[: sum(come)], np.repeat(100 * np.arange(n) + me, come), "all_to_all_v")
    # As arrays.
    y[:] = 0
    comm.all_to_all_single(y[: sum(come)], x[: sum(to)], np.array(come), np.array(to, "uint8"))
    same(y[: sum(come)], np.repeat(100 * np.arange(n) + me, come), "all_to_all_single, splits in arrays")
    # Rows, whose number the splits count.
    y[:] = 0
    x[: 3 * sum(to)] = np.repeat(np.repeat(np.arange(n), to) + 100 * me, 3)
    comm.all_to_all_single(y[: 3 * sum(come)].reshape(-1, 3), x[: 3 * sum(to)].reshape(-1, 3), come, to)
    same(y[: 3 * sum(come)], np.repeat(np.repeat(100 * np.arange(n) + me, come), 3), "all_to_all_single of rows")
    # In place.
    for count in (2, 700):
        x[: count * n] = 1000 * me + np.repeat(np.arange(n), count)
        comm.all_to_all(x[: count * n], x[: count * n])
        same(x[: count * n], np.repeat(1000 * np.arange(n) + me, count), "all_to_all in place")
    if n > 1:
        following, before = (me + 1) % n, (me - 1) % n
        x[:20] = me
        with comm.group():
            comm.send(x[:20], following)
            comm.recv(y[:20], before)
        assert (y[:20] == before).all(), y[:20]
        x[:20] = -me
        done = comm.batch_isend_irecv([P2POp(comm.irecv, y[:9], following), P2POp(comm.isend, x[:9], before)])
        assert all(one.wait() for one in done) and (y[:9] == -following).all(), y[:9]


def refusals(comm: Communicator, source: dict, dest: dict) -> None:
    x, y, n = source["float32"], dest["float32"], comm.size
    refused(ArgumentError, "both have as many", lambda: comm.all_reduce(x[:3], y[:4]))
    refused(ArgumentError, "dtypes differ", lambda: comm.all_reduce(x[:4], dest["int32"][:4]))
    refused(ArgumentError, "root is rank", lambda: comm.broadcast(x[:4], n))
    refused(ArgumentError, "not contiguous", lambda: comm.all_reduce(x[:8:2]))
    refused(ArgumentError, "symrail.array", lambda: comm.all_reduce(np.ones(4, "float32")))
    refused(ArgumentError, "there are sum", lambda: comm.all_reduce(x[:4], op="nand"))
    refused(ArgumentError, "one_shot", lambda: comm.all_reduce(x[:4], algorithm="fastest"))
    refused(ArgumentError, "op is 'gather'", lambda: P2POp("gather", x[:4], 0))
    refused(ArgumentError, "isend and irecv", lambda: P2POp(comm.all_reduce, x[:4], 0))
    refused(ArgumentError, "takes no stream", lambda: comm.all_reduce(x[:4], stream=0))
    refused(ArgumentError, "splits", lambda: comm.all_to_all_v(y[:4], x[:4], [4] * n, [1] * n) if n > 1
            else comm.all_to_all_v(y[:4], x[:4], [5], [4]))  # fmt: skip
    if n == 1:
        return
    last = comm.rank == n - 1
    refused(DifferError, "bytes of the input", lambda: comm.all_reduce(x[: 4 + last]))
    refused(DifferError, "operation", lambda: comm.all_reduce(x[:4], op="sum" if last else "max"))
    refused(DifferError, "root", lambda: comm.broadcast(x[:4], int(last)))
    refused(DifferError, "symmetric address", lambda: comm.all_reduce(x[int(last) :][:4]))
    refused(DifferError, "algorithm", lambda: comm.all_reduce(x[:4], algorithm="one_shot" if last else "by_puts"))
    # One rank is refused: the others learn of it, and none waits.
    if last:
        refused(ArgumentError, "as many", lambda: comm.all_reduce(x[:3], y[:4]))
    else:
        refused(DifferError, f"PE {symrail.n_pes() - 1}", lambda: comm.all_reduce(x[:3], y[:3]))
    # Rank 0 sends one element less than rank 1 expects: all ranks get an error.
    to, come = [1] * n, [1] * n
    to[1] -= comm.rank == 0
    call = lambda: comm.all_to_all_v(y[: sum(come)], x[: sum(to)], come, to)  # noqa: E731
    refused(DifferError, "rank 0 sends 0 elements to rank 1", call)


def algorithms(comm: Communicator, source: dict, dest: dict, plan: str) -> None:
    x, y = source["float32"][:500], dest["float32"][:500]
    x[:] = numbers(comm.rank, 500, "float32")
    one_host = all(symrail.is_mapped(pe) for pe in range(symrail.n_pes()))
    chosen = comm.explain("all_reduce", x.nbytes)[-1]
    assert f"broadcast from rank {comm.size - 1}" in comm.explain("broadcast", 8, root=comm.size - 1)[-1]
    assert ("one_shot" in chosen) == one_host, chosen
    of_one_host = ["one_shot", "two_phase", "direct", "hierarchical"] if one_host else []
    for name in ["one_round", "by_puts", *of_one_host]:
        y[:] = 0
        comm.all_reduce(x, y, algorithm=name)
        same(y, combined("sum", 500, comm.size, "float32"), name)
        assert "by its name" in comm.explain("all_reduce", x.nbytes, algorithm=name)[0]
    if comm.size == 2:
        theirs = ExecutionPlan(plan)
        refused(ArgumentError, "add_plan", lambda: comm.all_reduce(x, y, algorithm=theirs))
        assert comm.add_plan(theirs) == "copies"
        y[:] = 0
        comm.all_reduce(x, y, algorithm="copies")
        same(y, combined("sum", 500, 2, "float32"), "copies")
        assert "copies: chosen" in comm.explain("all_reduce", x.nbytes)[0]
        refused(ArgumentError, "is not a plan", lambda: comm.add_plan(ExecutionPlan(text="{}")))


def sizes(x: np.ndarray) -> None:
    """Rank 0 sends more than rank 1 expects: rank 1 gets an error at once, rank 0 from its next call."""
    with Communicator() as comm:
        if comm.rank == 0:
            comm.send(x[:10], 1)
        if comm.rank == 1:
            refused(DifferError, "as 4", lambda: comm.recv(x[:4], 0))
        comm.barrier()
        if comm.rank == 0:
            refused(DifferError, "sends 10 bytes", lambda: comm.send(x[:4], 1))


def main() -> None:
    kept = []
    with symrail.init(heap_bytes=128 << 20):
        source = {name: symrail.array(4096, name) for name in TYPES}
        dest = {name: symrail.array(4096, name) for name in TYPES}
        n, me = symrail.n_pes(), symrail.my_pe()
        with Communicator() as comm:
            reductions(comm, source, dest)
            types_of_the_host(comm)
            moves(comm, source, dest)
            refusals(comm, source, dest)
            algorithms(comm, source, dest, sys.argv[1])
            comm.barrier()
            moves(comm, source, dest)
        if n > 1:
            sizes(source["int8"])
        refused(StateError, "free()", lambda: comm.all_reduce(source["int8"]))
        if n > 2:
            # Ranks of the two teams are in another order than PEs; the last PE of the job is the first rank.
            part = symrail.team_world().split_strided(n - 1 - (n - 1 - me) % 2, -2, (n + 1 - (n - 1 - me) % 2) // 2)
            with Communicator(part, heap_bytes=16 << 20) as comm:
                assert comm.rank == (n - 1 - me) // 2, comm
                for _ in range(1 + me % 2):
                    moves(comm, source, dest)
                reductions(comm, source, dest)
        # One communicator is dropped, one outlives the job.
        dropped = Communicator()
        del dropped
        gc.collect()
        kept.append(Communicator())
        kept[0].all_reduce(source["int32"])
        symrail.barrier_all()
    refused(StateError, "left the job", lambda: kept[0].all_reduce(source["int32"]))
    kept.clear()
    gc.collect()
    if me == 0:
        print("as NumPy has it")


main()
