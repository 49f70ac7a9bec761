"""Calls of C functions in numba's kernels, and the CUDA C++ that defines those that kernels call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from llvmlite import ir
from numba import types

from symrail._modules import packaged

from ._link import CUSource, TypingError, cgutils, intrinsic
from ._state import attach

# Kinds of arguments besides C's types: an array or an address; an array with elements of the function's type E, or an
# address of bytes; a value of type E.
Address, Pointer, Element = "address", "E*", "E"

_C = {
    types.int8: "signed char", types.uint8: "unsigned char", types.int16: "short", types.uint16: "unsigned short",
    types.int32: "int", types.uint32: "unsigned int", types.int64: "long long", types.uint64: "unsigned long long",
    types.float32: "float", types.float64: "double",
}
_NUMBA = {"int": types.int32, "size_t": types.uint64, "symrail_u64": types.uint64, "symrail_team_t": types.uint64}
_WORDS = (types.int32, types.uint32, types.int64, types.uint64)


class _Source(CUSource):
    """The header, and the functions that kernels call so far. Numba reads it when it links a kernel."""

    def __init__(self) -> None:
        super().__init__("", name="symrail_device.cu", setup_callback=attach)
        self.functions: dict[str, str] = {}

    @property
    def data(self) -> str:
        header = Path(packaged("symrail_device.cuh")).read_text(encoding="utf-8")
        other = "template <int N> struct symrail_bytes { char bytes[N]; };"
        return "\n".join([header, other, *self.functions.values()])


source = _Source()


def _element_type(name: str, params: dict[str, Any], args: tuple[Any, ...], words: bool, floats: bool) -> Any:
    """The type E of a call: that of its arrays' elements."""
    found = [
        arg.dtype for kind, arg in zip(params.values(), args, strict=True) if kind == Pointer and isinstance(arg, types.Array)
    ]
    if len(set(found)) > 1:
        raise TypingError(f"symrail.numba.{name}: arrays of {' and '.join(map(str, found))}")
    element = found[0] if found else types.uint8
    if words and element not in (*_WORDS, *((types.float32, types.float64) if floats else ())):
        raise TypingError(f"symrail.numba.{name}: words are of 32 and 64 bits, and not {element}")
    return element


def _c_of(element: Any) -> str:
    """The type in C of an element; one of the same size where only copies need it."""
    if element in _C:
        return _C[element]
    size = int(getattr(element, "bitwidth", 8)) // 8
    return {2: "unsigned short", 4: "unsigned int", 8: "unsigned long long"}.get(size) or f"symrail_bytes<{size}>"


def function(
    name: str, result: str, params: dict[str, Any], expr: str, does: str, *, words: bool = False, floats: bool = False
) -> Any:
    """A function for kernels: `expr` in C++ of its parameters and their type E."""

    def typed(typingctx: Any, *args: Any) -> Any:
        element = _element_type(name, params, args, words, floats)
        if result == Pointer and not isinstance(args[0], types.Array):
            raise TypingError(f"symrail.numba.{name}: an array is wanted, and not {args[0]}")
        of_numba = []
        for (param, kind), arg in zip(params.items(), args, strict=True):
            if kind in (Address, Pointer) and isinstance(arg, types.Array):
                of_numba.append(arg)
            elif kind in (Address, Pointer) and isinstance(arg, types.Integer) and result != Element:
                of_numba.append(types.uint64)
            elif kind in (Address, Pointer) or not isinstance(arg, (types.Number, types.Boolean)):
                raise TypingError(f"symrail.numba.{name}: {param} is {arg}")
            else:
                of_numba.append(element if kind == Element else _NUMBA[kind])
        returned = {Pointer: args[0] if args else None, Element: element, "void": types.void}.get(result) or _NUMBA[result]
        return returned(*of_numba), _codegen(name, result, params, expr, element)

    # numba reads the parameters from the signature.
    scope: dict[str, Any] = {"typed": typed}
    named = ", ".join(params)
    exec(f"def {name}(typingctx{', ' if params else ''}{named}):\n    return typed(typingctx{', ' if params else ''}{named})", scope)  # noqa: S102
    made = scope[name]
    made.__doc__, made.__module__ = does, "symrail.numba"
    return intrinsic(made)


def _codegen(name: str, result: str, params: dict[str, Any], expr: str, element: Any) -> Any:
    c_element = _c_of(element)
    symbol = f"symrail_numba_{name}_{element}"
    names = {Address: "symrail_u64", Pointer: "E*", Element: "E"}
    returned = {Pointer: "symrail_u64", Element: "E"}.get(result, result)
    listed = ", ".join(f"{names.get(kind, kind)} {param}" for param, kind in params.items())
    body = f"return {'(symrail_u64)' if result == Pointer else ''}{expr};" if result != "void" else f"{expr};"
    text = f'namespace {symbol}_of {{ typedef {c_element} E; extern "C" __device__ {returned} {symbol}({listed}) {{ {body} }} }}'

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word = ir.IntType(64)
        values = []
        for type_, value in zip(signature.args, args, strict=True):
            if isinstance(type_, types.Array):
                value = builder.ptrtoint(context.make_array(type_)(context, builder, value).data, word)
            values.append(value)
        wanted = ir.VoidType() if result == "void" else word if result == Pointer else context.get_value_type(signature.return_type)
        callee = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(wanted, [value.type for value in values]), symbol
        )
        source.functions[symbol] = text
        context.active_code_library.add_linking_file(source)
        found = builder.call(callee, values)
        if result == "void":
            return context.get_dummy_value()
        if result != Pointer:
            return found
        type_ = signature.args[0]
        array = context.make_array(type_)(context, builder, args[0])
        array.data = builder.inttoptr(found, array.data.type)
        return array._getvalue()

    return codegen
