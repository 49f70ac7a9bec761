"""The device functions for Triton's kernels. Each is a call of a function of kernels/bitcode/program.cuh."""

from __future__ import annotations

from typing import Any

import triton.language as tl
from triton.language import core

SIGNAL_SET = tl.constexpr(9)
SIGNAL_ADD = tl.constexpr(10)
CMP_EQ = tl.constexpr(0)
CMP_NE = tl.constexpr(1)
CMP_GT = tl.constexpr(2)
CMP_LE = tl.constexpr(3)
CMP_LT = tl.constexpr(4)
CMP_GE = tl.constexpr(5)

_I32, _I64 = core.int32, core.int64
_ADDRESS = _I64


def _scalar(value: Any, dtype: Any, semantic: Any) -> Any:
    """An argument as a scalar of a type."""
    value = semantic.to_tensor(value)
    if value.type.is_block():
        raise TypeError(f"a scalar is wanted, and not {value.type}: pass the address of the first element")
    return semantic.cast(value, dtype)


def _call(name: str, result: Any, args: list[tuple[Any, Any]], semantic: Any) -> Any:
    """Calls a function with arguments of these types."""
    types = tuple(dtype for _, dtype in args)
    values = [_scalar(value, dtype, semantic) for value, dtype in args]
    symbols = {types: (f"symrail_program_{name}", result)}
    return core.extern_elementwise("", "", values, symbols, is_pure=False, _semantic=semantic)


def _element(pointer: Any) -> Any:
    """The type that a pointer points to."""
    if not pointer.dtype.is_ptr():
        raise TypeError(f"a pointer is wanted, and not {pointer.dtype}")
    return pointer.dtype.element_ty


def _bits(pointer: Any) -> int:
    return max(8, int(_element(pointer).primitive_bitwidth))


def _nbytes(pointer: Any, n: Any, semantic: Any) -> Any:
    size = semantic.to_tensor(_bits(pointer) // 8)
    return semantic.mul(_scalar(n, _I64, semantic), semantic.cast(size, _I64), False)


def _same(dest: Any, source: Any) -> None:
    if dest.dtype != source.dtype:
        raise TypeError(f"dest is {dest.dtype}, and source is {source.dtype}")


def _scope(scope: Any) -> str:
    scope = core._unwrap_if_constexpr(scope)
    if scope not in ("thread", "warp", "block"):
        raise ValueError(f'scope is {scope!r}; wanted is "thread", "warp" or "block"')
    return str(scope)


def _copy(what: str, dest: Any, source: Any, n: Any, pe: Any, scope: Any, wait: int, semantic: Any) -> None:
    _same(dest, source)
    nbytes = _nbytes(dest, n, semantic)
    args = [(dest, _ADDRESS), (source, _ADDRESS), (nbytes, _I64), (pe, _I32), (wait, _I32)]
    _call(f"{what}_{_scope(scope)}", _I32, args, semantic)


@core.extern
def my_pe(_semantic=None):
    """The number of this PE."""
    return _call("my_pe", _I32, [], _semantic)


@core.extern
def n_pes(_semantic=None):
    """The number of PEs."""
    return _call("n_pes", _I32, [], _semantic)


@core.extern
def peer(pointer, pe, _semantic=None):
    """The pointer to a PE's copy of a symmetric object, for tl.load and tl.store; null where it is not mapped."""
    found = _call("ptr", _I64, [(pointer, _ADDRESS), (pe, _I32)], _semantic)
    return _semantic.cast(found, pointer.dtype)


@core.extern
def put(dest, source, n, pe, scope="block", _semantic=None):
    """Copies n elements from `source` to the symmetric `dest` on `pe`. Afterwards the source may be changed."""
    _copy("put", dest, source, n, pe, scope, 1, _semantic)


@core.extern
def put_nbi(dest, source, n, pe, scope="block", _semantic=None):
    """As `put`; the source may be changed after `quiet`."""
    _copy("put", dest, source, n, pe, scope, 0, _semantic)


@core.extern
def get(dest, source, n, pe, scope="block", _semantic=None):
    """Copies n elements from the symmetric `source` on `pe` to `dest`."""
    _copy("get", dest, source, n, pe, scope, 1, _semantic)


@core.extern
def get_nbi(dest, source, n, pe, scope="block", _semantic=None):
    """As `get`; the destination has the data after `quiet`."""
    _copy("get", dest, source, n, pe, scope, 0, _semantic)


def _put_signal(dest, source, n, signal, value, op, pe, scope, wait, semantic):
    _same(dest, source)
    nbytes = _nbytes(dest, n, semantic)
    args = [(dest, _ADDRESS), (source, _ADDRESS), (nbytes, _I64), (signal, _ADDRESS), (value, _I64), (op, _I32)]
    _call(f"put_signal_{_scope(scope)}", _I32, [*args, (pe, _I32), (wait, _I32)], semantic)


@core.extern
def put_signal(dest, source, n, signal, value, op, pe, scope="block", _semantic=None):
    """Copies n elements to the symmetric `dest` on `pe`, and then updates the signal word there: `op` is SIGNAL_SET or
    SIGNAL_ADD. A program that observes the signal observes the data."""
    _put_signal(dest, source, n, signal, value, op, pe, scope, 1, _semantic)


@core.extern
def put_signal_nbi(dest, source, n, signal, value, op, pe, scope="block", _semantic=None):
    """As `put_signal`; the source may be changed after `quiet`."""
    _put_signal(dest, source, n, signal, value, op, pe, scope, 0, _semantic)


@core.extern
def p(dest, value, pe, _semantic=None):
    """Stores a value to the symmetric `dest` on `pe`."""
    element, bits = _element(dest), _bits(dest)
    value = _scalar(value, element, _semantic)
    if element.primitive_bitwidth >= 8:
        value = _semantic.bitcast(value, core.get_int_dtype(bits, False))
    carried = _I64 if bits == 64 else _I32
    _call(f"p_{bits}", _I32, [(dest, _ADDRESS), (value, carried), (pe, _I32)], _semantic)


@core.extern
def g(source, pe, _semantic=None):
    """Loads a value from the symmetric `source` on `pe`."""
    element, bits = _element(source), _bits(source)
    carried = _I64 if bits == 64 else _I32
    value = _call(f"g_{bits}", carried, [(source, _ADDRESS), (pe, _I32)], _semantic)
    if element.primitive_bitwidth < 8:
        return _semantic.cast(value, element)
    return _semantic.bitcast(_semantic.cast(value, core.get_int_dtype(bits, False)), element)


@core.extern
def signal_op(signal, value, op, pe, _semantic=None):
    """Updates the signal word on `pe`: `op` is SIGNAL_SET or SIGNAL_ADD."""
    _call("signal", _I32, [(signal, _ADDRESS), (value, _I64), (op, _I32), (pe, _I32)], _semantic)


_WORDS = {"int32": "i32", "uint32": "u32", "int64": "i64", "uint64": "u64"}
_ATOMICS = {**_WORDS, "uint32": "i32", "uint64": "i64", "fp32": "f32", "fp64": "f64"}


def _word(pointer: Any, kinds: dict[str, str]) -> tuple[Any, str, Any]:
    """A pointer's element type, its name in functions, and the type of their values."""
    element = _element(pointer)
    if str(element) not in kinds:
        raise TypeError(f"words are of {', '.join(kinds)}, and not {element}")
    carried = element if element.is_floating() else (_I64 if element.primitive_bitwidth == 64 else _I32)
    return element, kinds[str(element)], carried


@core.extern
def signal_wait_until(signal, cmp, value, _semantic=None):
    """Waits until the signal word of this PE compares with `value` by CMP_…, and returns it."""
    found = _call("wait_u64", _I64, [(signal, _ADDRESS), (cmp, _I32), (value, _I64)], _semantic)
    return _semantic.cast(found, _element(signal))


@core.extern
def wait_until(word, cmp, value, _semantic=None):
    """Waits until a word of this PE compares with `value` by CMP_…, and returns it."""
    element, kind, carried = _word(word, _WORDS)
    found = _call(f"wait_{kind}", carried, [(word, _ADDRESS), (cmp, _I32), (value, carried)], _semantic)
    return _semantic.cast(found, element)


@core.extern
def test(word, cmp, value, _semantic=None):
    """Whether a word of this PE compares with `value` by CMP_…: 1 or 0."""
    _, kind, carried = _word(word, _WORDS)
    return _call(f"test_{kind}", _I32, [(word, _ADDRESS), (cmp, _I32), (value, carried)], _semantic)


def _amo(name: str, dest: Any, values: list[Any], pe: Any, fetch: bool, semantic: Any) -> Any:
    element, kind, carried = _word(dest, _ATOMICS)
    if element.is_floating() and name.rsplit("_", 1)[-1] in ("and", "or", "xor", "swap"):
        raise TypeError(f"atomic_{name} of {element} does not exist")
    args = [(dest, _ADDRESS), *((value, carried) for value in values), (pe, _I32)]
    found = _call(f"atomic_{name}_{kind}", carried if fetch else _I32, args, semantic)
    return semantic.cast(found, element) if fetch else None


@core.extern
def atomic_fetch(source, pe, _semantic=None):
    """Loads a word on `pe`, atomically."""
    return _amo("fetch", source, [], pe, True, _semantic)


@core.extern
def atomic_set(dest, value, pe, _semantic=None):
    """Stores a word on `pe`, atomically."""
    _amo("set", dest, [value], pe, False, _semantic)


@core.extern
def atomic_swap(dest, value, pe, _semantic=None):
    """Stores a word on `pe`, and returns its former value."""
    return _amo("fetch_set", dest, [value], pe, True, _semantic)


@core.extern
def atomic_compare_swap(dest, cond, value, pe, _semantic=None):
    """Stores a word on `pe` if it is `cond`, and returns its former value."""
    return _amo("compare_swap", dest, [cond, value], pe, True, _semantic)


@core.extern
def atomic_add(dest, value, pe, _semantic=None):
    """Adds to a word on `pe`."""
    _amo("add", dest, [value], pe, False, _semantic)


@core.extern
def atomic_fetch_add(dest, value, pe, _semantic=None):
    """Adds to a word on `pe`, and returns its former value."""
    return _amo("fetch_add", dest, [value], pe, True, _semantic)


@core.extern
def atomic_and(dest, value, pe, _semantic=None):
    """Bitwise and of a word on `pe`."""
    _amo("and", dest, [value], pe, False, _semantic)


@core.extern
def atomic_fetch_and(dest, value, pe, _semantic=None):
    """Bitwise and of a word on `pe`; returns its former value."""
    return _amo("fetch_and", dest, [value], pe, True, _semantic)


@core.extern
def atomic_or(dest, value, pe, _semantic=None):
    """Bitwise or of a word on `pe`."""
    _amo("or", dest, [value], pe, False, _semantic)


@core.extern
def atomic_fetch_or(dest, value, pe, _semantic=None):
    """Bitwise or of a word on `pe`; returns its former value."""
    return _amo("fetch_or", dest, [value], pe, True, _semantic)


@core.extern
def atomic_xor(dest, value, pe, _semantic=None):
    """Bitwise exclusive or of a word on `pe`."""
    _amo("xor", dest, [value], pe, False, _semantic)


@core.extern
def atomic_fetch_xor(dest, value, pe, _semantic=None):
    """Bitwise exclusive or of a word on `pe`; returns its former value."""
    return _amo("fetch_xor", dest, [value], pe, True, _semantic)


@core.extern
def fence(_semantic=None):
    """Orders the program's earlier puts, atomics and signals before its later ones, at each PE."""
    _call("fence", _I32, [], _semantic)


@core.extern
def quiet(_semantic=None):
    """Waits until the program's earlier operations are delivered."""
    _call("quiet", _I32, [], _semantic)


@core.extern
def barrier_all(_semantic=None):
    """`quiet`, and waits for all PEs, of which each calls it with one program of the grid."""
    _call("barrier", _I32, [(0, _I64)], _semantic)


@core.extern
def sync_all(_semantic=None):
    """Waits for all PEs, of which each calls it with one program of the grid. It does not complete operations."""
    _call("sync", _I32, [(0, _I64)], _semantic)


@core.extern
def team_my_pe(team, _semantic=None):
    """The number of this PE in a team, whose `handle` is an argument of the kernel."""
    return _call("team_my_pe", _I32, [(team, _I64)], _semantic)


@core.extern
def team_n_pes(team, _semantic=None):
    """The number of PEs of a team."""
    return _call("team_n_pes", _I32, [(team, _I64)], _semantic)


@core.extern
def team_translate_pe(team, pe, other, _semantic=None):
    """The number in the team `other` of a team's PE; -1 where it is not in that team. 0 is the team of all PEs."""
    return _call("team_translate_pe", _I32, [(team, _I64), (pe, _I32), (other, _I64)], _semantic)


@core.extern
def barrier(team, _semantic=None):
    """`quiet`, and waits for a team's PEs, of which each calls it with one program of the grid."""
    _call("barrier", _I32, [(team, _I64)], _semantic)


@core.extern
def team_sync(team, _semantic=None):
    """Waits for a team's PEs, as `sync_all` does for all."""
    _call("sync", _I32, [(team, _I64)], _semantic)


def _of_team(what: str, team: Any, dest: Any, source: Any, n: Any, more: list[Any], scope: Any, semantic: Any) -> None:
    _same(dest, source)
    args = [(team, _I64), (dest, _ADDRESS), (source, _ADDRESS), (_nbytes(dest, n, semantic), _I64), *more]
    _call(f"{what}_{_scope(scope)}", _I32, args, semantic)


@core.extern
def broadcast(team, dest, source, n, root, scope="block", _semantic=None):
    """Copies n elements from the source of the team's PE `root` to the symmetric `dest` of all its PEs, each of which
    calls it with one program of the grid."""
    _of_team("broadcast", team, dest, source, n, [(root, _I32)], scope, _semantic)


@core.extern
def fcollect(team, dest, source, n, scope="block", _semantic=None):
    """Copies n elements of each PE of a team to the symmetric `dest` of all of them, in the order of PEs."""
    _of_team("fcollect", team, dest, source, n, [], scope, _semantic)


@core.extern
def alltoall(team, dest, source, n, scope="block", _semantic=None):
    """Copies block i, of n elements, of each PE's source to PE i of a team, in the order of PEs."""
    _of_team("alltoall", team, dest, source, n, [], scope, _semantic)
