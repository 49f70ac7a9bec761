"""The stub file has the names and parameters of the compiled module, and no others."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from typing import Any

import pytest

import symrail
from symrail import _symrail

STUB = Path(symrail.__file__).with_name("_symrail.pyi")
DECLARED = {node.name: node for node in ast.parse(STUB.read_text()).body if hasattr(node, "name")}


def parameters(function: ast.FunctionDef) -> list[str]:
    """The names of a declaration's parameters, without those that Python binds."""
    of = function.args
    all = (*of.posonlyargs, *of.args, of.vararg, *of.kwonlyargs, of.kwarg)
    return [argument.arg for argument in all if argument is not None and argument.arg not in ("self", "cls")]


def found(value: Any) -> list[str]:
    """The names of a compiled function's parameters."""
    return [name for name in inspect.signature(value).parameters if name not in ("self", "cls")]


def members(kind: type) -> set[str]:
    return {name for name in vars(kind) if not name.startswith("__")}


def test_the_module_has_the_names_of_the_stub() -> None:
    names = {name for name in vars(_symrail) if not name.startswith("__")}
    aliases = {name for name in names if isinstance(getattr(_symrail, name), (str, int, float))}
    assert names - aliases == {name for name in DECLARED if not name.startswith("_")}


@pytest.mark.parametrize("name", DECLARED)
def test_what_the_stub_declares_has_its_parameters(name: str) -> None:
    node, value = DECLARED[name], getattr(_symrail, name)
    if isinstance(node, ast.FunctionDef):
        assert found(value) == parameters(node)
        return
    assert isinstance(node, ast.ClassDef)
    declared = {item.name: item for item in node.body if isinstance(item, ast.FunctionDef)}
    fields = [item.target for item in node.body if isinstance(item, ast.AnnAssign)]
    attributes = {field.id for field in fields if isinstance(field, ast.Name)}
    assert members(value) == {member for member in declared if not member.startswith("__")} | attributes
    for member, item in declared.items():
        if member == "__init__":
            assert found(value) == parameters(item), "__init__"
        elif not member.startswith("__") and callable(getattr(value, member)):
            assert found(vars(value)[member]) == parameters(item), member
