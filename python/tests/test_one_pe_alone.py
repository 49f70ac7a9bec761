"""What one PE is refused, gives up or keeps is known to the others, which do not wait for it."""

from __future__ import annotations

import sys

import pytest
from conftest import finish, launcher, start

PROLOGUE = """
import faulthandler, os, threading
import numpy as np, symrail
from symrail import collectives, decomp, errors, overlap
faulthandler.dump_traceback_later(60, exit=True)
symrail.init(heap_bytes=64 << 20)
me, word = symrail.my_pe(), symrail.array(1, "uint64")
def says(call, *classes):
    try: call()
    except classes as error: return f"{type(error).__name__} {error.pe}"
    return "well"
def tell(pe): symrail.signal_op(word, 1, "set", pe); symrail.quiet()
"""
EPILOGUE = """
print(f"{me}: {said}\\n", end="", flush=True)
os._exit(0)
"""


def said(code: str, **settings: str) -> list[str]:
    """What two PEs say."""
    command = [launcher(), "run", "-n", "2", "--", sys.executable, "-c", PROLOGUE + code + EPILOGUE]
    (ended,) = finish([start(command, **settings)])
    assert ended.returncode == 0, ended
    return sorted(ended.stdout.splitlines())


def test_a_communicator_is_freed_after_a_time_out() -> None:
    """What the one that gave up has sent would be compared with the other's free for ever."""
    code = """
c, a = collectives.Communicator(), symrail.array(10)
symrail.barrier_all()
if me == 0:
    assert says(lambda: c.all_reduce(a), errors.TimeoutError) != "well"
    tell(1)
else: symrail.signal_wait(word, 1)
says(c.free, errors.TimeoutError, errors.DifferError, errors.PeerLostError)
said = "freed or told"
"""
    assert said(code, SYMRAIL_TIMEOUT_S="2") == ["0: freed or told", "1: freed or told"]


def test_other_threads_use_python_while_a_team_is_destroyed() -> None:
    code = """
team = symrail.team_world().split_strided(0, 1, 2)
if me == 0:
    thread = threading.Thread(target=team.destroy)
    thread.start()
    while "destroyed" not in repr(team): pass
    tell(1)
    thread.join()
else:
    symrail.signal_wait(word, 1)
    team.destroy()
said = "destroyed"
"""
    assert said(code) == ["0: destroyed", "1: destroyed"]


def test_a_team_that_one_pe_still_uses_is_destroyed_on_none() -> None:
    code = """
team = symrail.team_world().split_strided(0, 1, 2)
used = collectives.Communicator(team, heap_bytes=8 << 20)
if me == 1: del used
said = says(team.destroy, errors.StateError)
team.barrier()
"""
    assert said(code) == ["0: StateError 0", "1: StateError 0"]


@pytest.mark.parametrize("of_first", ["step", "call of its kind"])
@pytest.mark.parametrize("wrong", ["dtype", "read-only", "no pencil", "stream"])
def test_a_transpose_refused_on_one_pe_is_made_on_none(of_first: str, wrong: str) -> None:
    code = f"""
grid = decomp.Grid((8, 8, 8), (2, 1))
x, y = grid.empty("x"), grid.empty("y")
x[:] = 1
if {of_first == "step"}: grid.transpose(x, y)
to, stream = y, None
if me == 0:
    to = {{"dtype": grid.empty("y", "float64"), "read-only": grid.empty("y"), "no pencil": y.whole}}.get({wrong!r}, y)
    if {wrong!r} == "read-only": to._memory.flags.writeable = False
    if {wrong!r} == "stream": stream = "no stream"
said = says(lambda: grid.transpose(x, to, stream=stream), errors.ArgumentError, errors.DifferError)
x[:] = 2
grid.transpose(x, y)
assert (np.asarray(y) == 2).all()
"""
    assert said(code) == ["0: ArgumentError None", "1: DifferError 0"]


def test_a_halo_refused_on_one_pe_is_updated_on_none() -> None:
    code = """
grid = decomp.Grid((8, 8, 8), (2, 1))
x = grid.empty("x", halo=(0, 1, 0))
x[:] = me
said = says(lambda: grid.halo(x, periodic=False if me else (True, False)), errors.ArgumentError, errors.DifferError)
grid.halo(x, periodic=True)
assert (x.whole[:, 0] == 1 - me).all()
"""
    assert said(code) == ["0: ArgumentError None", "1: DifferError 0"]


def test_a_heap_that_is_full_for_a_transpose_is_so_each_time_and_stays_useful() -> None:
    code = """
grid = decomp.Grid((64, 64, 64), (2, 1), heap_bytes=100)
small, large = grid.empty("x", "uint8"), grid.empty("x", "complex128")
said = []
for turn in range(3):
    small[:] = turn
    assert (np.asarray(grid.transpose(small, "y")) == turn).all()
    said.append(says(lambda: grid.transpose(large, "y"), errors.HeapExhaustedError, errors.ArgumentError))
"""
    full = ["HeapExhaustedError 0"] * 3, ["HeapExhaustedError 1"] * 3
    assert said(code) == [f"{pe}: {errors}" for pe, errors in enumerate(full)]


@pytest.mark.parametrize("product", ["all_gather_matmul", "matmul_reduce_scatter", "matmul_all_reduce"])
def test_a_product_refused_on_one_pe_is_made_on_none(product: str) -> None:
    code = f"""
group = overlap.Group()
def make(dtype): return overlap.{product}(np.ones((4, 8), dtype), np.ones((8, 8), "float32"), group=group)
said = says(lambda: make("float32" if me else "float64"), errors.ArgumentError, errors.DifferError)
make("float32")
"""
    assert said(code) == ["0: ArgumentError None", "1: DifferError 0"]


def test_a_collect_with_too_short_a_destination_on_one_pe_is_made_on_none() -> None:
    code = """
to, a = symrail.array(8), symrail.array(4)
said = says(lambda: symrail.collect(symrail.team_world(), to if me else to[:5], a), errors.ArgumentError)
symrail.collect(symrail.team_world(), to, a)
"""
    assert said(code) == ["0: ArgumentError 0", "1: ArgumentError 0"]


@pytest.mark.parametrize(
    "make",
    [
        "decomp.Grid((8, 8, 8), (3, 1), heap_bytes=24 << 20)",
        "decomp.Grid((64, 64, 64), heap_bytes=100)",
    ],
)
def test_what_is_refused_on_all_pes_takes_no_memory(make: str) -> None:
    code = f"""
for _ in range(64 if "100" in {make!r} else 4):
    try: {make}
    except (errors.ArgumentError, errors.HeapExhaustedError): pass
symrail.array(40 << 20, "uint8")
said = "well"
"""
    assert said(code) == ["0: well", "1: well"]


@pytest.mark.parametrize(("mode", "over_rails"), [("low latency", "0"), ("high throughput", "1")])
def test_buffers_that_do_not_fit_take_no_memory(mode: str, over_rails: str) -> None:
    code = f"""
from symrail import ep
rows, ids = np.ones((4, 4096), "float32"), np.zeros((4, 1), "int64")
def make():
    if {mode!r} == "high throughput": return ep.Buffer(num_nvl_bytes=100 << 20)
    buffer = ep.Buffer(num_rdma_bytes=1 << 30, low_latency_mode=True)
    buffer.low_latency_dispatch(rows, ids, 1024, 2, use_fp8=False)
for _ in range(3): said = says(make, errors.HeapExhaustedError)
symrail.array(50 << 20, "uint8")
"""
    exhausted = ["0: HeapExhaustedError 0", "1: HeapExhaustedError 1"]
    assert said(code, SYMRAIL_DISABLE_P2P=over_rails) == exhausted


def test_sources_are_released_by_a_teams_barrier() -> None:
    code = """
import weakref
class Source(np.ndarray): pass
a, source = symrail.array(1000, "float64"), np.zeros(1000).view(Source)
gone = weakref.ref(source)
symrail.put_nbi(a, source, 1 - me)
del source
symrail.team_world().barrier()
said = gone() is None
"""
    assert said(code, SYMRAIL_DISABLE_P2P="1") == ["0: True", "1: True"]


def test_numbers_that_the_destination_cannot_hold_are_refused() -> None:
    code = """
for dtype, values in (("int8", [300, 2]), ("int8", np.int64(300)), ("int32", [2**40, 1]), ("S2", [b"abc", b"d"])):
    assert says(lambda: symrail.put(symrail.array(2, dtype), values, me), errors.ArgumentError) != "well", values
for dtype, values in (("int8", [100, -2]), ("int32", np.int64(300)), ("float32", [1, 2]), ("S4", [b"abc", b"d"])):
    symrail.put(symrail.array(2, dtype), values, me)
said = "well"
"""
    assert said(code) == ["0: well", "1: well"]


def test_a_pencil_stays_one_in_place() -> None:
    code = """
grid = decomp.Grid((8, 8, 8), (2, 1))
x = grid.empty("x")
x += 1
np.add(x, 1, out=x)
assert (np.asarray(grid.transpose(x, "y")) == 2).all() and type(x + 1) is np.ndarray
for halo in ((-1, 0, 0), (1,)):
    assert says(lambda: grid.empty("x", halo=halo), errors.ArgumentError) != "well"
said = "well"
"""
    assert said(code) == ["0: well", "1: well"]


def test_units_of_time_and_fields_are_parts_of_a_dtype() -> None:
    code = """
for one, other in (("datetime64[s]", "datetime64[ns]"), ([("a", "f4"), ("b", "i4")], [("b", "i4"), ("a", "f4")])):
    a, b, plain = symrail.array(4, one), symrail.array(4, other), np.zeros(4, other)
    for call in (symrail.get, lambda *sides: symrail.broadcast(symrail.team_world(), *sides)):
        assert says(lambda: call(b, a, 1 - me), errors.ArgumentError) != "well"
        call(symrail.array(4, one), a, 0)
    assert says(lambda: symrail.get(plain, a, me), errors.ArgumentError) != "well"
said = "well"
"""
    assert said(code) == ["0: well", "1: well"]


@pytest.mark.parametrize("pieces", [-1, 2**64 - 1, 2**64])
def test_a_number_of_pieces_that_ranks_cannot_compare_is_refused(pieces: int) -> None:
    assert said(f"said = says(lambda: overlap.Group(pieces={pieces}), errors.ArgumentError)") == [
        "0: ArgumentError None",
        "1: ArgumentError None",
    ]


def test_a_signal_handler_within_a_call_of_the_same_object_is_refused() -> None:
    """It would wait for the call within which it runs."""
    code = """
import signal
c, a, heard = collectives.Communicator(compare=False), symrail.array(10), []
def handler(*_):
    within = says(lambda: c.explain("all_reduce", 8), errors.StateError)
    # Before the call it is allowed: the next signal comes within.
    if within != "well" and not heard:
        heard[:] = [within, says(c.check)]
        tell(1)
symrail.barrier_all()
if me == 0:
    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)
else: symrail.signal_wait(word, 1)
c.all_reduce(a)
signal.setitimer(signal.ITIMER_REAL, 0)
said = heard
"""
    assert said(code) == ["0: ['StateError None', 'well']", "1: []"]
