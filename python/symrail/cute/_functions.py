"""The device functions for CuTe's kernels: calls of the functions of libsymrail_device.bc."""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass._mlir import ir
from cutlass._mlir.dialects import llvm

from symrail._modules import packaged

SIGNAL_SET, SIGNAL_ADD = 9, 10
CMP_EQ, CMP_NE, CMP_GT, CMP_LE, CMP_LT, CMP_GE = range(6)

_I32, _I64 = cutlass.Int32, cutlass.Int64
# The names in C of the types of elements.
_C = {
    "Int8": "int8", "Uint8": "uint8", "Int16": "int16", "Uint16": "uint16", "Int32": "int32", "Uint32": "uint32",
    "Int64": "int64", "Uint64": "uint64", "Float32": "float", "Float64": "double",
}


def _pointer(x: Any) -> Any:
    """The address of a tensor's first element, or an address itself, as C's pointer."""
    at = x.iterator if hasattr(x, "iterator") else x
    address = at.toint() if hasattr(at, "toint") else _I64(at)
    return llvm.inttoptr(llvm.PointerType.get(), _I64(address).ir_value())


def _element(x: Any) -> Any:
    """The type of a tensor's or a pointer's elements."""
    found = getattr(x, "element_type", None) or getattr(x, "dtype", None)
    if found is None or isinstance(x, cutlass.Numeric):
        raise TypeError(f"a tensor or a pointer is wanted, and not {x}")
    return found


def _call(name: str, args: list[Any], result: Any = None) -> Any:
    """Calls a function with pointers and numbers."""
    kinds = [llvm.PointerType.get() if isinstance(arg, ir.Value) else type(arg) for arg in args]
    source = cute.BitCode(packaged("libsymrail_device.bc"))
    return cute.ffi(name=name, params_types=kinds, return_type=result, source=source)(*args)


def _copies(what: str, scope: str, does: str) -> Any:
    name = f"symrail{'x' if scope else ''}_{what.replace('put', 'putmem').replace('get', 'getmem')}{scope}"

    def copies(dest: Any, source: Any, n: Any, pe: Any) -> None:
        nbytes = _I64(n) * (_element(dest).width // 8)
        _call(name, [_pointer(dest), _pointer(source), _I64(nbytes), _I32(pe)])

    copies.__doc__ = does
    return copies


def _put_signals(what: str, scope: str, does: str) -> Any:
    name = f"symrail{'x' if scope else ''}_{what.replace('put', 'putmem')}{scope}"

    def put_signals(dest: Any, source: Any, n: Any, signal: Any, value: Any, op: Any, pe: Any) -> None:
        nbytes = _I64(n) * (_element(dest).width // 8)
        args = [_pointer(dest), _pointer(source), _I64(nbytes), _pointer(signal), _I64(value), _I32(op), _I32(pe)]
        _call(name, args)

    put_signals.__doc__ = does
    return put_signals


def _orders(what: str, scope: str, does: str) -> Any:
    def orders() -> None:
        _call(f"symrail{'x' if scope else ''}_{what}{scope}", [])

    orders.__doc__ = does
    return orders


_DOES = {
    "put": "Copies n elements from `source` to the symmetric `dest` on `pe`. Afterwards the source may be changed.",
    "put_nbi": "As `put`; the source may be changed after `quiet`.",
    "get": "Copies n elements from the symmetric `source` on `pe` to `dest`.",
    "get_nbi": "As `get`; the destination has the data after `quiet`.",
    "put_signal": "As `put`, and then updates the signal word on `pe`: `op` is SIGNAL_SET or SIGNAL_ADD.",
    "put_signal_nbi": "As `put_signal`; the source may be changed after `quiet`.",
    "barrier_all": "`quiet`, and waits for all PEs, of which each calls it once at a time.",
    "sync_all": "Waits for all PEs; does not complete operations.",
}
_SCOPED = []
for _what, _does in _DOES.items():
    _make = _put_signals if "signal" in _what else _orders if "all" in _what else _copies
    for _scope in ("", "_warp", "_block"):
        globals()[_what + _scope] = _make(_what, _scope, _does)
        _SCOPED.append(_what + _scope)


def my_pe() -> Any:
    """The number of this PE."""
    return _call("symrail_my_pe", [], _I32)


def n_pes() -> Any:
    """The number of PEs."""
    return _call("symrail_n_pes", [], _I32)


def peer(x: Any, pe: Any) -> Any:
    """The address of a PE's copy of a symmetric tensor, as an integer; 0 where it is not mapped."""
    at = x.iterator if hasattr(x, "iterator") else x
    address = _I64(at.toint() if hasattr(at, "toint") else at)
    return _call("symrail_program_ptr", [address, _I32(pe)], _I64)


def p(dest: Any, value: Any, pe: Any) -> None:
    """Stores a value to the symmetric `dest` on `pe`."""
    element = _element(dest)
    _call(f"symrail_{_C[element.__name__]}_p", [_pointer(dest), element(value), _I32(pe)])


def g(source: Any, pe: Any) -> Any:
    """Loads a value from the symmetric `source` on `pe`."""
    element = _element(source)
    return _call(f"symrail_{_C[element.__name__]}_g", [_pointer(source), _I32(pe)], element)


def signal_op(signal: Any, value: Any, op: Any, pe: Any) -> None:
    """Updates the signal word on `pe`: `op` is SIGNAL_SET or SIGNAL_ADD."""
    _call("symrailx_signal_op", [_pointer(signal), _I64(value), _I32(op), _I32(pe)])


def signal_wait_until(signal: Any, cmp: Any, value: Any) -> Any:
    """Waits until the signal word of this PE compares with `value` by CMP_…, and returns it."""
    return _call("symrail_signal_wait_until", [_pointer(signal), _I32(cmp), _I64(value)], _I64)


def _amo(name: str, dest: Any, values: list[Any], pe: Any, fetches: bool) -> Any:
    element = _element(dest)
    args = [_pointer(dest), *(element(value) for value in values), _I32(pe)]
    return _call(f"symrail_{_C[element.__name__]}_atomic_{name}", args, element if fetches else None)


def atomic_fetch(source: Any, pe: Any) -> Any:
    """Loads a word on `pe`, atomically."""
    return _amo("fetch", source, [], pe, True)


def atomic_set(dest: Any, value: Any, pe: Any) -> None:
    """Stores a word on `pe`, atomically."""
    _amo("set", dest, [value], pe, False)


def atomic_swap(dest: Any, value: Any, pe: Any) -> Any:
    """Stores a word on `pe`, and returns its former value."""
    return _amo("swap", dest, [value], pe, True)


def atomic_compare_swap(dest: Any, cond: Any, value: Any, pe: Any) -> Any:
    """Stores a word on `pe` if it is `cond`, and returns its former value."""
    return _amo("compare_swap", dest, [cond, value], pe, True)


def atomic_add(dest: Any, value: Any, pe: Any) -> None:
    """Adds to a word on `pe`."""
    _amo("add", dest, [value], pe, False)


def atomic_fetch_add(dest: Any, value: Any, pe: Any) -> Any:
    """Adds to a word on `pe`, and returns its former value."""
    return _amo("fetch_add", dest, [value], pe, True)


def fence() -> None:
    """Orders the thread's earlier operations before its later ones, PE by PE."""
    _call("symrail_fence", [])


def quiet() -> None:
    """Waits until the thread's earlier operations are delivered."""
    _call("symrail_quiet", [])


__all__ = [
    *(f"CMP_{name}" for name in ("EQ", "NE", "GT", "LE", "LT", "GE")), "SIGNAL_SET", "SIGNAL_ADD", *_SCOPED,
    *("my_pe", "n_pes", "peer", "p", "g", "signal_op", "signal_wait_until", "fence", "quiet"),
    *("atomic_fetch", "atomic_set", "atomic_swap", "atomic_compare_swap", "atomic_add", "atomic_fetch_add"),
]
