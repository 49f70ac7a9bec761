"""Every public name has a description, and docs/python.md names it."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest
import symrail
from test_examples import PAGE

# A call's description must state whether it is collective or local, and its units.
WHO = re.compile(r"\b(Collective|Local)\b|\bcollective over\b", re.IGNORECASE)
UNITS = {"timeout": r"seconds|`timeout` is as for", "nbytes": "bytes"}


def public() -> list[tuple[str, Any]]:
    """Functions, classes and methods, by their public names."""
    names = [(name, getattr(symrail, name)) for name in symrail.__all__]
    names += [(f"errors.{name}", getattr(symrail.errors, name)) for name in symrail.errors.__all__]
    methods = [
        (f"{kind.__name__}.{name}", method)
        for kind in (symrail.Team, symrail.Runtime, symrail.Memory)
        for name in vars(kind)
        if not name.startswith("_")
        for method in [getattr(kind, name)]
    ]
    values = [(name, value) for name, value in names if not inspect.ismodule(value) and name != "__version__"]
    return sorted(values + methods, key=lambda named: named[0])


@pytest.mark.parametrize(("name", "value"), public())
def test_it_is_described(name: str, value: Any) -> None:
    text = inspect.getdoc(value) or ""
    assert text, f"{name} has no docstring"
    if not callable(value) or inspect.isclass(value):
        return
    assert WHO.search(text), f"{name}: collective or local?\n{text}"
    for parameter in inspect.signature(value).parameters:
        assert re.search(UNITS.get(parameter, ""), text), f"{name}: {parameter} in what units?\n{text}"


def test_the_page_names_all_functions_and_no_others() -> None:
    page = PAGE.read_text()
    table = page[page.index("## Functions") :]
    named = {name for names in re.findall(r"`([\w., ]+)`", table) for name in names.split(", ")}
    functions = {name for name in symrail.__all__ if inspect.isroutine(getattr(symrail, name))}
    missing = {name for name in functions if name not in named and not name.startswith("atomic_fetch_")}
    assert not missing, missing
    rows = [line for line in table.splitlines() if line.startswith("| ")]
    for name in {name for row in rows for name in re.findall(r"`([\w.]+)`", row)}:
        found: Any = symrail
        for part in name.split("."):
            found = getattr(found, part)
