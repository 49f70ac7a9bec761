"""The device functions for numba's kernels: calls of C functions, which the kernel's linker gets as CUDA C++."""

from __future__ import annotations

from typing import Any

from ._call import Address, Element, Pointer, function

SIGNAL_SET, SIGNAL_ADD = 9, 10
CMP_EQ, CMP_NE, CMP_GT, CMP_LE, CMP_LT, CMP_GE = range(6)

_COPY = {"dest": Pointer, "source": Pointer, "n": "size_t", "pe": "int"}
_SIGNAL = {"signal": Address, "value": "symrail_u64", "op": "int", "pe": "int"}
_TEAM = "symrail_team_t"

my_pe = function("my_pe", "int", {}, "symrail_my_pe()", "The number of this PE.")
n_pes = function("n_pes", "int", {}, "symrail_n_pes()", "The number of PEs.")
peer = function(
    "peer", Pointer, {"x": Pointer, "pe": "int"}, "symrail_ptr(x, pe)",
    "A PE's copy of a symmetric array, as an array of the same shape; its address is 0 where it is not mapped.",
)
address = function("address", "symrail_u64", {"x": Pointer}, "(symrail_u64)x", "The address of an array's first element.")


def _copies(what: str, wait: bool, scope: str, does: str) -> Any:
    name = what + ("" if wait else "_nbi") + ("" if scope == "thread" else f"_{scope}")
    expr = f"symrail_{what}_bytes<symrail_{scope}_scope>(dest, source, n * sizeof(E), pe, {str(wait).lower()})"
    return function(name, "void", _COPY, expr, does)


def _put_signals(wait: bool, scope: str, does: str) -> Any:
    name = "put_signal" + ("" if wait else "_nbi") + ("" if scope == "thread" else f"_{scope}")
    args = f"dest, source, n * sizeof(E), (symrail_u64*)signal, value, op, pe, {str(wait).lower()}"
    types = {"dest": Pointer, "source": Pointer, "n": "size_t", **_SIGNAL}
    return function(name, "void", types, f"symrail_put_signal_bytes<symrail_{scope}_scope>({args})", does)


_PUT = "Copies n elements from `source` to the symmetric `dest` on `pe`. Afterwards the source may be changed."
_PUT_NBI = "As `put`; the source may be changed after `quiet`."
_GET = "Copies n elements from the symmetric `source` on `pe` to `dest`."
_GET_NBI = "As `get`; the destination has the data after `quiet`."
_SENT = "As `put`, and then updates the signal word on `pe`: `op` is SIGNAL_SET or SIGNAL_ADD."
_SENT_NBI = "As `put_signal`; the source may be changed after `quiet`."

put, put_warp, put_block = (_copies("put", True, scope, _PUT) for scope in ("thread", "warp", "block"))
put_nbi, put_nbi_warp, put_nbi_block = (_copies("put", False, scope, _PUT_NBI) for scope in ("thread", "warp", "block"))
get, get_warp, get_block = (_copies("get", True, scope, _GET) for scope in ("thread", "warp", "block"))
get_nbi, get_nbi_warp, get_nbi_block = (_copies("get", False, scope, _GET_NBI) for scope in ("thread", "warp", "block"))
put_signal, put_signal_warp, put_signal_block = (_put_signals(True, scope, _SENT) for scope in ("thread", "warp", "block"))
put_signal_nbi, put_signal_nbi_warp, put_signal_nbi_block = (
    _put_signals(False, scope, _SENT_NBI) for scope in ("thread", "warp", "block")
)

p = function(
    "p", "void", {"dest": Pointer, "value": Element, "pe": "int"}, "symrail_put_value<E>(dest, value, pe)",
    "Stores a value to the symmetric `dest` on `pe`.",
)
g = function(
    "g", Element, {"source": Pointer, "pe": "int"}, "symrail_get_value<E>(source, pe)",
    "Loads a value from the symmetric `source` on `pe`.",
)

signal_op = function(
    "signal_op", "void", _SIGNAL, "symrailx_signal_op((symrail_u64*)signal, value, op, pe)",
    "Updates the signal word on `pe`: `op` is SIGNAL_SET or SIGNAL_ADD.",
)
signal_fetch = function(
    "signal_fetch", "symrail_u64", {"signal": Address}, "symrail_signal_fetch((symrail_u64*)signal)",
    "The signal word of this PE.",
)
signal_wait_until = function(
    "signal_wait_until", "symrail_u64", {"signal": Address, "cmp": "int", "value": "symrail_u64"},
    "symrail_signal_wait_until((symrail_u64*)signal, cmp, value)",
    "Waits until the signal word of this PE compares with `value` by CMP_…, and returns it.",
)
_HOLDS = "symrail_compare<E>{cmp, value}"
_WORD = {"word": Pointer, "cmp": "int", "value": Element}
wait_until = function(
    "wait_until", Element, _WORD, f"symrail_wait_for(word, {_HOLDS})",
    "Waits until a word of this PE compares with `value` by CMP_…, and returns it.", words=True,
)
test = function(
    "test", "int", _WORD, f"{_HOLDS}(symrail_ld_acquire((const E*)word)) ? 1 : 0",
    "Whether a word of this PE compares with `value` by CMP_…: 1 or 0.", words=True,
)


def _amo(name: str, op: str, does: str, fetch: bool, *, value: str = "value", cond: str = "E()", floats: bool = False) -> Any:
    types: dict[str, Any] = {"dest": Pointer}
    types |= {argument: Element for argument in (cond, value) if argument in ("cond", "value")}
    expr = f"symrail_amo<SYMRAIL_AMO_{op}, E>(dest, {value}, {cond}, pe, {str(fetch).lower()})"
    return function(
        f"atomic_{name}", Element if fetch else "void", {**types, "pe": "int"}, expr, does, words=True, floats=floats
    )


atomic_fetch = _amo("fetch", "FETCH", "Loads a word on `pe`, atomically.", True, value="E()", floats=True)
atomic_set = _amo("set", "SET", "Stores a word on `pe`, atomically.", False, floats=True)
atomic_swap = _amo("swap", "SET", "Stores a word on `pe`, and returns its former value.", True, floats=True)
atomic_compare_swap = _amo(
    "compare_swap", "COMPARE_SWAP", "Stores a word on `pe` if it is `cond`; returns its former value.", True, cond="cond"
)
atomic_inc = _amo("inc", "ADD", "Adds one to a word on `pe`.", False, value="1")
atomic_fetch_inc = _amo("fetch_inc", "ADD", "Adds one to a word on `pe`; returns its former value.", True, value="1")
atomic_add = _amo("add", "ADD", "Adds to a word on `pe`.", False, floats=True)
atomic_fetch_add = _amo("fetch_add", "ADD", "Adds to a word on `pe`; returns its former value.", True, floats=True)
atomic_and = _amo("and", "AND", "Bitwise and of a word on `pe`.", False)
atomic_fetch_and = _amo("fetch_and", "AND", "Bitwise and of a word on `pe`; returns its former value.", True)
atomic_or = _amo("or", "OR", "Bitwise or of a word on `pe`.", False)
atomic_fetch_or = _amo("fetch_or", "OR", "Bitwise or of a word on `pe`; returns its former value.", True)
atomic_xor = _amo("xor", "XOR", "Bitwise exclusive or of a word on `pe`.", False)
atomic_fetch_xor = _amo("fetch_xor", "XOR", "Bitwise exclusive or of a word on `pe`; returns its former value.", True)

fence = function(
    "fence", "void", {}, "symrail_fence()", "Orders the thread's earlier operations before its later ones, PE by PE."
)
quiet = function("quiet", "void", {}, "symrail_quiet()", "Waits until the thread's earlier operations are delivered.")


def _orders(what: str, team: bool, does: str) -> Any:
    types = {"team": _TEAM} if team else {}
    for scope in ("", "_warp", "_block"):
        yield function(what + scope, "void", types, f"symrail{'x' if scope else ''}_{what}{scope}({'team' * team})", does)


_ALL = "`quiet`, and waits for all PEs, of which each calls it once at a time."
barrier_all, barrier_all_warp, barrier_all_block = _orders("barrier_all", False, _ALL)
sync_all, sync_all_warp, sync_all_block = _orders("sync_all", False, "Waits for all PEs; does not complete operations.")
barrier, barrier_warp, barrier_block = _orders("barrier", True, "As `barrier_all`, of a team's PEs: its `handle`.")
team_sync, team_sync_warp, team_sync_block = _orders("team_sync", True, "As `sync_all`, of a team's PEs.")
team_my_pe = function(
    "team_my_pe", "int", {"team": _TEAM}, "symrail_team_my_pe(team)",
    "The number of this PE in a team, whose `handle` is an argument of the kernel.",
)
team_n_pes = function("team_n_pes", "int", {"team": _TEAM}, "symrail_team_n_pes(team)", "The number of a team's PEs.")
team_translate_pe = function(
    "team_translate_pe", "int", {"team": _TEAM, "pe": "int", "other": _TEAM}, "symrail_team_translate_pe(team, pe, other)",
    "The number in the team `other` of a team's PE; -1 where it is not in that team. 0 is the team of all PEs.",
)



def _collectives(what: str, does: str, **more: str) -> Any:
    types = {"team": _TEAM, "dest": Pointer, "source": Pointer, "n": "size_t", **more}
    for scope in ("thread", "warp", "block"):
        args = ", ".join(("team", "dest", "source", "n * sizeof(E)", *more))
        name = what + ("" if scope == "thread" else f"_{scope}")
        yield function(name, "int", types, f"symrail_{what}_bytes<symrail_{scope}_scope>({args})", does)


_BROADCAST = "Copies n elements from the source of the team's PE `root` to `dest` of all its PEs, which call it. Returns 0."
_FCOLLECT = "Copies n elements of each PE of a team to `dest` of all of them, in the order of PEs. Returns 0."
_ALLTOALL = "Copies block i, of n elements, of each PE's source to PE i of a team, in the order of PEs. Returns 0."
broadcast, broadcast_warp, broadcast_block = _collectives("broadcast", _BROADCAST, root="int")
fcollect, fcollect_warp, fcollect_block = _collectives("fcollect", _FCOLLECT)
alltoall, alltoall_warp, alltoall_block = _collectives("alltoall", _ALLTOALL)

__all__ = [name for name in globals() if not name.startswith("_") and name not in (
    "annotations", "Any", "Address", "Element", "Pointer", "function"
)]
