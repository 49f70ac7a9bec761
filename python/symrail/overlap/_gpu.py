"""Products of tensors in GPU memory, without gradients: in the order of torch's current stream; the host does not
wait for it."""

from __future__ import annotations

from typing import Any

from .. import _symrail
from .._gpu import must_be_on, reached
from .._host_arrays import dtype_name
from .._tensors import resolved
from ..errors import ArgumentError
from ._group import Group

_SHORT = ("float8_e4m3fn", "float8_e5m2")


def _tensor(array: Any, role: str, gpu: int, dimensions: int, dtype: str | None = None) -> Any:
    """A tensor that kernels can use: on this PE's GPU, with this number of dimensions, contiguous."""
    must_be_on(gpu, array, role)
    if dtype is not None and dtype_name(array) != dtype:
        raise ArgumentError(f"{role} is of {dtype_name(array)}; wanted is {dtype}")
    if len(array.shape) != dimensions:
        raise ArgumentError(f"{role} has the shape {tuple(array.shape)}; wanted are {dimensions} dimensions")
    return resolved(array, role).contiguous()


class _Round:
    """One rank's arguments of a product, and the round on which the ranks agree."""

    def __init__(
        self, group: Group, rows: Any, weight: Any, bias: Any, by_outputs: bool, scales: Any, dtype: Any
    ) -> None:
        gpu = reached(group.device)
        self.group, self.like = group, rows
        rows, weight = _tensor(rows, "rows", gpu, 2), _tensor(weight, "weight", gpu, 2)
        self.short = dtype_name(rows) in _SHORT
        if self.short != (scales is not None):
            kind = "need" if self.short else "are of 8-bit floats, which rows are not, and take no"
            raise ArgumentError(f"rows of {dtype_name(rows)} {kind} scales (of rows, of weight), of one float32 each")
        self.dtype = dtype if dtype is not None else _bfloat16() if self.short else rows.dtype
        number = str(self.dtype).rpartition(".")[2]
        bias = None if bias is None else _tensor(bias, "bias", gpu, 1, number)
        scales = () if scales is None else scales
        roles = ("scales[0]", "scales[1]")
        scales = [_tensor(scale.reshape(-1), role, gpu, 1, "float32") for scale, role in zip(scales, roles)]
        if [int(scale.shape[0]) for scale in scales] not in ([], [1, 1]):
            raise ArgumentError("scales are one number for all rows, and one for the weight")
        first, second = (int(length) for length in weight.shape)
        self.outputs = first if by_outputs else second
        added = None if bias is None else (int(bias.shape[0]), bias.data_ptr())
        self.count, self.inputs = (int(length) for length in rows.shape)
        self._rows = rows.data_ptr()
        inputs = second if by_outputs else first
        self._factor = (inputs, self.outputs, by_outputs, weight.data_ptr(), added)
        self._numbers = (dtype_name(rows), dtype_name(weight), number)
        self._scales = (scales[0].data_ptr(), scales[1].data_ptr()) if scales else (0, 0)
        # They stay until the round is on the stream, in whose order torch reuses their memory.
        self._kept = (rows, weight, bias, scales)

    def run(self, everywhere: bool | None, own: int, all_rows: int | None, wanted: bool = False) -> tuple[Any, Any]:
        """Agrees, and puts the round on the stream: each rank has its share of `all_rows`; None: unknown. Returns
        the result, and all rows on request."""
        known = all_rows is not None
        count = all_rows if all_rows is not None else 0 if everywhere is None else self.count
        rows, products = (own, count, known, self.inputs, self._rows), self.group._products
        product = _symrail.GpuProduct(products, everywhere, rows, self._factor, self._numbers, self._scales)
        import torch

        count, mine = product.rows
        result = torch.empty((mine, self.outputs), dtype=self.dtype, device=self.like.device)
        gathered = torch.empty((count, self.inputs), dtype=self.like.dtype, device=self.like.device) if wanted else None
        stream = torch.cuda.current_stream(self.like.device).cuda_stream
        product.post(products, stream, (result.data_ptr(), 0 if gathered is None else gathered.data_ptr()))
        return result, gathered


def _bfloat16() -> Any:
    import torch

    return torch.bfloat16


def gather(
    group: Group,
    rows: Any,
    weight: Any,
    bias: Any = None,
    *,
    all_rows: int | None = None,
    by_outputs: bool = True,
    wanted: bool = False,
    scales: Any = None,
    dtype: Any = None,
) -> tuple[Any, Any]:
    """The rows of all ranks times a weight; and these rows on request."""
    round = _Round(group, rows, weight, bias, by_outputs, scales, dtype)
    return round.run(None, round.count, all_rows, wanted)


def reduce(
    group: Group,
    rows: Any,
    weight: Any,
    bias: Any = None,
    *,
    by_outputs: bool = True,
    own: int | None = None,
    everywhere: bool = False,
    scales: Any = None,
    dtype: Any = None,
) -> Any:
    """The sum of all ranks' rows times their weights: all of it, or this rank's rows, `own` of them."""
    round = _Round(group, rows, weight, bias, by_outputs, scales, dtype)
    return round.run(everywhere, group.rows_of(round.count, own), round.count if own is None else None)[0]
