"""Products of arrays in host memory, without gradients."""

from __future__ import annotations

from typing import Any

from .._host_arrays import as_array, dtype_name, numbers
from .._refusals import refusals
from ..errors import ArgumentError
from ._group import Group


def _numbers(array: Any, role: str, shape: tuple[int | None, ...]) -> Any:
    """The numbers of an array of float32 of this shape."""
    if dtype_name(array) != "float32":
        raise ArgumentError(f"{role} is of {dtype_name(array)}; wanted is float32")
    return numbers(array, role, "float32", shape)


def _factor(weight: Any, bias: Any, by_outputs: bool) -> tuple[Any, tuple[int, int], bool, Any]:
    """A weight for the compiled part: outputs x inputs, or the other way round."""
    values = _numbers(weight, "weight", (None, None))
    first, second = (int(length) for length in weight.shape)
    inputs, outputs = (second, first) if by_outputs else (first, second)
    return values, (inputs, outputs), by_outputs, None if bias is None else _numbers(bias, "bias", (None,))


def gather(
    group: Group,
    rows: Any,
    weight: Any,
    bias: Any = None,
    *,
    all_rows: int | None = None,
    by_outputs: bool = True,
    wanted: bool = False,
) -> tuple[Any, Any]:
    """The rows of all ranks times a weight; and these rows on request. Ranks compare their rows, known or not."""
    with refusals(lambda _: group._products.tell(None)):
        own = _numbers(rows, "rows", (None, None)), int(rows.shape[0])
        share = own[1] if all_rows is None else group.rows_of(all_rows, None)
        if share != own[1]:
            raise ArgumentError(f"rows has {own[1]} of all_rows={all_rows}; wanted is this rank's share of {share}")
        factor = _factor(weight, bias, by_outputs)
    product, gathered = group._products.all_gather_matmul(own, factor, wanted)
    return as_array(product, rows), None if gathered is None else as_array(gathered, rows)


def reduce(
    group: Group,
    rows: Any,
    weight: Any,
    bias: Any = None,
    *,
    by_outputs: bool = True,
    own: int | None = None,
    everywhere: bool = False,
) -> Any:
    """The sum of all ranks' rows times their weights: all of it, or this rank's rows, `own` of them."""
    with refusals(lambda _: group._products.tell(everywhere)):
        numbers, count = _numbers(rows, "rows", (None, None)), int(rows.shape[0])
        factor = _factor(weight, bias, by_outputs)
        own = group.rows_of(count, own)
    return as_array(group._products.matmul_reduce((numbers, count, own), factor, everywhere), rows)
