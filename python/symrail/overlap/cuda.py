"""The same products on GPUs, with PyTorch's own products (cuBLAS): pieces of rows move on a stream of their own.

Plans take tensors in a GPU's memory, work in the order of the current stream, return at once, and can be captured in
CUDA graphs. They are made by all PEs together, on a heap in GPUs' memory that all have mapped, and are dropped as
`symrail.array` is. Rounds are collective. Weights are outputs x inputs.
"""

from __future__ import annotations

from typing import Any

import torch

import symrail

from .. import _symrail
from .._host_arrays import dtype_name, is_tensor
from ..errors import ArgumentError, UnsupportedError

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
"""The types of numbers."""

LEAST_BYTES = 4 << 20
"""A piece has at least so many bytes, unless a shard has fewer: below, a copy and a product of its own cost more."""
MOST_PIECES = 4
"""A shard is cut into no more pieces than this."""


class _Plan:
    """Rows of all PEs, in shares as `torch.tensor_split` cuts; and the stream on which they move."""

    def __init__(self, product: int, rows: int, width: int, dtype: Any, pieces: int | None) -> None:
        self._team = symrail.team_world()
        self.rank, self.ranks = symrail.my_pe(), symrail.n_pes()
        # A type that is none of these is the same to all, and refused by who has passed it.
        number = DTYPES.index(dtype) if dtype in DTYPES else len(DTYPES)
        _symrail.overlap_compare(self._team, (product, rows, width, number))
        if dtype not in DTYPES:
            raise UnsupportedError(f"a product of {dtype}; wanted is {_any_of(DTYPES)}")
        self._check_heap()
        self.rows, self.width, self.dtype = rows, width, dtype
        each, more = divmod(rows, self.ranks)
        starts = [rank * each + min(rank, more) for rank in range(self.ranks + 1)]
        self._shares = [slice(start, end) for start, end in zip(starts, starts[1:])]
        self.largest = each + bool(more)
        if pieces is None:
            pieces = min(MOST_PIECES, self.largest * width * dtype.itemsize // LEAST_BYTES)
        self._piece_rows = -(-self.largest // max(pieces, 1)) or 1
        self._side = torch.cuda.Stream()

    @property
    def own(self) -> slice:
        """This PE's rows."""
        return self._shares[self.rank]

    def _check_heap(self) -> None:
        """Refuses heaps that are not in GPUs' memory which all PEs have mapped: on all PEs if on one. Collective."""
        runtime, why = symrail.current(), None
        unmapped = [rank for rank in self._others() if not runtime.is_mapped(rank)]
        if not runtime.in_gpus:
            why = "the symmetric heap is in host memory; set SYMRAIL_HEAP_KIND=device"
        elif unmapped:
            why = f"the memory of PE {unmapped[0]}'s GPU is not mapped here, which these products need"
        if not self._team.all_agree(why is None):
            raise UnsupportedError(why or "another PE's heap is in host memory, or it has not mapped all GPUs' memory")

    def _array(self, rows: int) -> Any:
        """So many rows in symmetric memory. Collective."""
        count = rows * self.width * self.dtype.itemsize
        return symrail.array(max(count, 1), "uint8").tensor()[:count].view(self.dtype).reshape(rows, self.width)

    def _pieces(self, rank: int) -> list[slice]:
        share = self._shares[rank]
        starts = range(share.start, share.stop, self._piece_rows)
        return [slice(start, min(start + self._piece_rows, share.stop)) for start in starts]

    def _others(self) -> list[int]:
        """The other ranks, from the next one on."""
        return [(self.rank + distance) % self.ranks for distance in range(1, self.ranks)]


def _any_of(dtypes: Any) -> str:
    return " or ".join(str(dtype).rpartition(".")[2] for dtype in dtypes)


def _check(array: Any, role: str, dtype: Any, shape: tuple[int | None, ...]) -> None:
    """Refuses what is no tensor in a GPU's memory of this type and shape (None: any length): copies and products would
    convert, repeat or cut it in silence."""
    if not is_tensor(array):
        raise ArgumentError(f"{role} is a {type(array).__name__}, not a tensor of torch")
    if array.dtype != dtype:
        raise ArgumentError(f"{role} is of {dtype_name(array)}; the plan is of {_any_of((dtype,))}")
    found = tuple(array.shape)
    if len(found) != len(shape) or any(wanted not in (None, length) for wanted, length in zip(shape, found)):
        wanted = " x ".join("any" if length is None else str(length) for length in shape)
        raise ArgumentError(f"{role} has the shape {found}; wanted is {wanted}")
    if array.device.type != "cuda":
        raise UnsupportedError(f"{role} is on {array.device}; it has to be in a GPU's memory: {role}.cuda()")


def _multiply(rows: Any, weight: Any, bias: Any, out: Any) -> None:
    if bias is None:
        torch.mm(rows, weight.t(), out=out)
    else:
        torch.addmm(bias, rows, weight.t(), out=out)


class AllGatherMatmul(_Plan):
    """All rows times each PE's own weight: for `rows` rows of all PEs, of `inputs` numbers of `dtype`. Collective.

    With `pieces` shares are cut into so many; 0 gets all rows first and multiplies once."""

    def __init__(self, rows: int, inputs: int, dtype: Any, *, pieces: int | None = None) -> None:
        super().__init__(0, rows, inputs, dtype, pieces)
        self._unfused = pieces == 0
        self.gathered: Any = self._array(rows)
        """All rows, behind the round in the order of the stream, until the next one."""

    def run(self, own: Any, weight: Any, bias: Any = None) -> Any:
        """`own` has this PE's rows. Returns all rows of this PE's outputs. Arguments of another dtype or shape are
        refused, before anything is sent."""
        _check(own, "own", self.dtype, (self.own.stop - self.own.start, self.width))
        _check(weight, "weight", self.dtype, (None, self.width))
        if bias is not None:
            _check(bias, "bias", self.dtype, (weight.shape[0],))
        stream, rows = torch.cuda.current_stream(), self.gathered
        rows[self.own].copy_(own)
        # The rows of all PEs are there.
        self._team.sync(stream=stream)
        # The side stream begins behind the stream's work and ends before the stream goes on, also where nothing moves:
        # a capture takes in only streams that follow its own, and all of them have to come back to it.
        self._side.wait_stream(stream)
        coming = []
        for rank in self._others():
            for piece in self._pieces(rank):
                symrail.get(rows[piece], rows[piece], rank, stream=self._side)
                coming.append((piece, self._side.record_event()))
        product = torch.empty((self.rows, weight.shape[0]), dtype=self.dtype, device=rows.device)
        if not self._unfused:
            _multiply(rows[self.own], weight, bias, product[self.own])
            for piece, here in coming:
                stream.wait_event(here)
                _multiply(rows[piece], weight, bias, product[piece])
        stream.wait_stream(self._side)
        if self._unfused:
            _multiply(rows, weight, bias, product)
        # All PEs have got this one's rows, which the next round overwrites.
        self._team.sync(stream=stream)
        return product


class MatmulReduceScatter(_Plan):
    """Each PE's rows of the sum of all PEs' products: for `rows` rows of `outputs` numbers of `dtype`. Collective.

    With `pieces` shares are cut into so many; 0 multiplies once and moves then."""

    def __init__(self, rows: int, outputs: int, dtype: Any, *, pieces: int | None = None) -> None:
        super().__init__(1, rows, outputs, dtype, pieces)
        self._unfused = pieces == 0
        self._products = self._array(rows)
        self._arrived = self._array((self.ranks - 1) * self.largest)

    def run(self, rows: Any, weight: Any, bias: Any = None) -> Any:
        """`rows` are all rows, of this PE's inputs. Returns this PE's rows of the sum, with its bias. Sums are formed
        in the order in which pieces come, which is the same each time. Arguments are checked as those of
        `AllGatherMatmul.run`."""
        _check(rows, "rows", self.dtype, (self.rows, None))
        _check(weight, "weight", self.dtype, (self.width, rows.shape[1]))
        if bias is not None:
            _check(bias, "bias", self.dtype, (self.width,))
        stream, products = torch.cuda.current_stream(), self._products
        # All PEs have added what arrived in the round before.
        self._team.sync(stream=stream)
        if self._unfused:
            torch.mm(rows, weight.t(), out=products)
        # The side stream follows here, too, for PEs that have nothing to put: see `AllGatherMatmul.run`.
        self._side.wait_stream(stream)
        for rank in self._others():
            first = ((rank - self.rank) % self.ranks - 1) * self.largest - self._shares[rank].start
            for piece in self._pieces(rank):
                if not self._unfused:
                    torch.mm(rows[piece], weight.t(), out=products[piece])
                self._side.wait_stream(stream)
                there = self._arrived[first + piece.start : first + piece.stop]
                symrail.put(there, products[piece], rank, stream=self._side)
        own = products[self.own]
        if not self._unfused:
            torch.mm(rows[self.own], weight.t(), out=own)
        stream.wait_stream(self._side)
        # What all PEs have put is there.
        self._team.barrier(stream=stream)
        count = own.shape[0]
        parts = [self._arrived[i * self.largest : i * self.largest + count] for i in range(self.ranks - 1)] + [own]
        total = parts[0].clone()
        for part in parts[1:]:
            total += part
        return total if bias is None else total + bias
