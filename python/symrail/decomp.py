"""Three-dimensional arrays spread over all PEs in pencils: transposes and halos, for FFTs and stencils.

    import numpy as np, symrail, symrail.decomp as decomp

    with symrail.init():
        grid = decomp.Grid((64, 64, 64))             # the process grid is chosen by measuring
        x = grid.empty("x", "complex128")
        x[:] = 1.0                                   # indexed by X, Y and Z, whatever the order in memory
        x[:] = np.fft.fft(x, axis=0)
        y = grid.transpose(x, "y")
        y[:] = np.fft.fft(y, axis=1)

A pencil has one axis whole; the others are split over the process grid. All are in host memory, or, where the symmetric
heap is in GPUs' memory, on the GPU as PyTorch's or CuPy's arrays:

    grid = decomp.Grid((64, 64, 64), arrays=torch)
    x = grid.empty("x", torch.complex128)
    x.array[:] = 1.0
    x.array.copy_(torch.fft.fft(x.array, dim=0))
    y = grid.transpose(x, "y")                       # in the order of PyTorch's stream
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

import symrail

from . import _arrays, _symrail
from ._refusals import refusals
from .errors import ArgumentError

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

__all__ = ["GpuPencil", "Grid", "Pencil"]

Widths = tuple[int, int, int]
NONE: Widths = (0, 0, 0)
AXES = "xyz"


def _axis(axis: str) -> int:
    if len(axis) != 1 or axis not in AXES:
        raise ArgumentError(f"axis {axis!r}: use 'x', 'y' or 'z'")
    return AXES.index(axis)


def _known(pencil: Any) -> int | None:
    """The axis of a pencil, or of this name, as far as it is one."""
    axis = pencil if isinstance(pencil, str) else getattr(pencil, "axis", None)
    return AXES.index(axis) if isinstance(axis, str) and len(axis) == 1 and axis in AXES else None


def _widths(widths: Sequence[int], name: str) -> Widths:
    found = _arrays.extent(widths)
    if len(found) != 3:
        raise ArgumentError(f"{name} {widths!r}: three widths")
    return found[0], found[1], found[2]


class Pencil(np.ndarray):
    """A PE's own elements along an axis, indexed by X, Y and Z. `Grid.empty` makes it.

    `axis` is "x", "y" or "z"; `start` and `stop` are the elements' range in the whole array; `halo` and `padding` are
    widths along X, Y and Z; `whole` is the array with both. NumPy's results from a pencil are ordinary arrays.
    """

    axis: str
    start: Widths
    stop: Widths
    halo: Widths
    padding: Widths
    whole: NDArray[Any]
    _memory: NDArray[Any]
    _grid: Grid

    def __array_finalize__(self, made_of: Any) -> None:
        pass

    def __array_wrap__(self, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
        if array is self:  # the output of an operation in place
            return self
        return array[()] if return_scalar else np.asarray(array)

    def __getitem__(self, index: Any) -> Any:
        return np.asarray(self)[index]


class GpuPencil:
    """A PE's own elements along an axis, on its GPU: `array` is PyTorch's or CuPy's, indexed by X, Y and Z.

    Everything else is as for `Pencil`. `Grid.empty` makes it.
    """

    axis: str
    start: Widths
    stop: Widths
    halo: Widths
    padding: Widths
    array: Any
    whole: Any
    _memory: Any
    _grid: Grid

    @property
    def dtype(self) -> Any:
        """The array's."""
        return self.array.dtype


class Grid:
    """An array of `shape` (X, Y, Z) over all PEs. Collective.

    `processes` is the process grid; by default it is chosen by measuring transposes of elements of `dtype`. `order` is
    "x": X varies fastest in memory, or "axis": each pencil's own axis does. `heap_bytes` of each PE's symmetric heap
    are for workspaces; by default, four times the elements of a PE, and space for small blocks over rails. `arrays` is
    the module whose arrays are the pencils: `numpy` in host memory, `torch` or `cupy` on the GPU, whose current device
    is then this PE's. Workspaces of calls that graphs have captured stay until `free`.

    On GPUs multiprocessors copy between PEs whose memory is mapped, or with `engines` copy engines, for blocks of at
    least so many bytes. With "measured", the grid measures both when it is made, and uses the faster one for each size.
    Workspaces then need four times the elements of a PE more.

    A call waits for PEs that live for at most `timeout` seconds altogether, also while it makes or frees memory:
    TimeoutError, whose `pes` are those PEs. A transpose or halo waits for blocks for at most `SYMRAIL_TIMEOUT_S` in any
    case.
    """

    def __init__(
        self,
        shape: Sequence[int],
        processes: Sequence[int] | None = None,
        *,
        order: str = "x",
        dtype: DTypeLike = "complex128",
        heap_bytes: int | None = None,
        arrays: ModuleType = np,
        engines: int | str | None = None,
        timeout: float | None = None,
    ) -> None:
        if order not in ("x", "axis"):
            raise ArgumentError(f"order {order!r}: use 'x' or 'axis'")
        extents = _arrays.extent(shape)
        if len(extents) != 3 or min(extents) < 1:
            raise ArgumentError(f"shape {extents}: three extents of at least 1")
        if not (engines is None or engines == "measured" or isinstance(engines, int) and engines >= 0):
            raise ArgumentError(f"engines {engines!r}: use a number of bytes, or 'measured'")
        least = engines if isinstance(engines, int) else None
        memory = [[0, 1, 2], [0, 1, 2], [0, 1, 2]] if order == "x" else [[0, 1, 2], [1, 2, 0], [2, 0, 1]]
        element, ranks = _arrays.element_type(dtype).itemsize, symrail.n_pes()
        if heap_bytes is None:
            # Shares are rounded up along each of two axes, and so are blocks in the workspace.
            share = element * math.prod(extent + ranks for extent in extents) // ranks
            # Each of the four transposes has space for four blocks of up to 64 KiB with each PE over rails.
            rooms = 8 * min(2 * share, ranks << 16) if arrays is np else 0
            fetched = 0 if engines is None else 4 * share
            # Block sizes for which the faster way is measured.
            blocks = ranks << 26 if engines == "measured" else 0
            heap_bytes = 4 * share + rooms + fetched + blocks + 4096 * ranks
        self._runtime = symrail.current()
        self._pencils = _symrail.Pencils(
            self._runtime, list(extents), list(processes or (0, 0)), memory, heap_bytes, element, arrays is not np,
            least, engines == "measured", timeout,
        )  # fmt: skip
        self._arrays = arrays
        self.shape = extents

    @property
    def processes(self) -> tuple[int, int]:
        """The process grid."""
        rows, columns = self._pencils.processes
        return rows, columns

    @property
    def engines(self) -> int | None:
        """The smallest blocks that copy engines move, in bytes; None: multiprocessors move all."""
        return self._pencils.engines

    def empty(self, axis: str, dtype: DTypeLike = "complex128", *, halo: Widths = NONE, padding: Widths = NONE,
              symmetric: bool = False) -> Any:  # fmt: skip
        """This PE's pencil along an axis, all 0. If `symmetric`, it is in symmetric memory, and peers write directly
        into it.

        Collective if `symmetric`, else local.
        """
        halo, padding = _widths(halo, "halo"), _widths(padding, "padding")
        start, stop, order = self._pencils.pencil(self._runtime.my_pe(), _axis(axis))
        own = [stop[dim] - start[dim] for dim in range(3)]
        shape = [own[dim] + 2 * halo[dim] + padding[dim] for dim in range(3)]
        count = math.prod(shape)
        if symmetric:
            # As many elements as any PE has.
            ranks = symrail.n_pes()
            extents = [self._pencils.pencil(rank, _axis(axis)) for rank in range(ranks)]
            most = max(
                math.prod(to[dim] - at[dim] + 2 * halo[dim] + padding[dim] for dim in range(3)) for at, to, _ in extents
            )
            memory = self._view(symrail.array(most, dtype))[:count]
        else:
            memory = self._elements(self._arrays.zeros, count, dtype)
        return self._pencil(axis, memory, halo, padding)

    def _uninitialised(self, axis: str, dtype: Any, stream: Any) -> Any:
        """As `empty`, for work on a stream that writes all elements: a fill might run on another stream, after it."""
        start, stop, _ = self._pencils.pencil(self._runtime.my_pe(), _axis(axis))
        with self._on(stream):
            memory = self._elements(self._arrays.empty, math.prod(stop[dim] - start[dim] for dim in range(3)), dtype)
        return self._pencil(axis, memory, NONE, NONE)

    def _pencil(self, axis: str, memory: Any, halo: Widths, padding: Widths) -> Any:
        """The pencil with this memory."""
        start, stop, order = self._pencils.pencil(self._runtime.my_pe(), _axis(axis))
        own = [stop[dim] - start[dim] for dim in range(3)]
        shape = [own[dim] + 2 * halo[dim] + padding[dim] for dim in range(3)]
        # The last axis varies fastest.
        slowest_first = list(reversed(order))
        in_memory = memory.reshape([shape[dim] for dim in slowest_first])
        dims = [slowest_first.index(dim) for dim in range(3)]
        whole = in_memory.permute(dims) if hasattr(in_memory, "permute") else in_memory.transpose(dims)
        inside = whole[tuple(slice(halo[dim], halo[dim] + own[dim]) for dim in range(3))]
        pencil: Any
        if self._arrays is np:
            pencil = inside.view(Pencil)
        else:
            pencil = GpuPencil()
            pencil.array = inside
        pencil.axis, pencil.halo, pencil.padding = axis, halo, padding
        pencil.start, pencil.stop = (start[0], start[1], start[2]), (stop[0], stop[1], stop[2])
        pencil.whole, pencil._memory, pencil._grid = whole, memory, self
        return pencil

    def _elements(self, make: Any, count: int, dtype: Any) -> Any:
        """Memory by `zeros` or `empty` of the module of arrays."""
        if self._arrays is np:
            return make(count, dtype)
        if not self._is_torch:
            with self._arrays.cuda.Device(self._runtime.device):
                return make(count, dtype)
        name = _arrays.type_name(dtype)
        return make(count, dtype=getattr(self._arrays, name), device=f"cuda:{self._runtime.device}")

    def _on(self, stream: Any) -> Any:
        """A context in which allocators take memory whose earlier use a stream has behind it."""
        if self._arrays is np:
            return nullcontext()
        cuda = self._arrays.cuda
        if not isinstance(stream, cuda.Stream):
            # 1 is the default stream, too.
            handle = _symrail.stream_handle(stream)
            stream = cuda.ExternalStream(0 if handle == 1 else handle, self._runtime.device)
        return cuda.stream(stream) if self._is_torch else stream

    def _view(self, array: Any) -> Any:
        return array if self._arrays is np else _arrays.tensor(array) if self._is_torch else self._arrays.from_dlpack(array)

    @property
    def _is_torch(self) -> bool:
        return self._arrays.__name__ == "torch"

    def _stream(self, stream: Any) -> Any:
        """The stream of a call: on a GPU the current one by default."""
        if stream is not None or self._arrays is np:
            return stream
        if self._is_torch:
            return self._arrays.cuda.current_stream(self._runtime.device)
        return self._arrays.cuda.get_current_stream()

    def _own(self, pencil: Any, name: str) -> Any:
        if not isinstance(pencil, (Pencil, GpuPencil)) or getattr(pencil, "_grid", None) is not self:
            raise ArgumentError(f"{name} is no pencil of this grid: make it by empty()")
        return pencil

    def transpose(self, source: Any, to: Any, *, stream: Any = None) -> Any:
        """Transposes X to Y, Y to Z, or back: to an axis, or to a pencil along it, which is returned. Collective.

        On a GPU the transpose is in the order of a stream; a later call, which takes part all the same, raises errors of
        other PEs.
        """
        stream = self._stream(stream)
        with refusals(lambda _: self._pencils.tell(False, (_known(source), _known(to)), stream)):
            self._own(source, "source")
            dest = self._uninitialised(to, source.dtype, stream) if isinstance(to, str) else self._own(to, "to")
            if dest.dtype != source.dtype:
                raise ArgumentError(f"dtypes differ: {source.dtype} and {dest.dtype}")
            forms = [list(widths) for widths in (source.halo, dest.halo, source.padding, dest.padding)]
            axes, arrays = (_axis(source.axis), _axis(dest.axis)), (source._memory, dest._memory)
        self._pencils.transpose(axes, arrays, source.dtype.itemsize, forms, stream)
        return dest

    def halo(self, pencil: Any, *, periodic: bool | Sequence[bool] = False, stream: Any = None) -> None:
        """Fills the halo of `pencil.whole` with neighbours' elements, including corners. Collective.

        `periodic` states whether the array wraps around: along all axes, or along X, Y and Z.
        """
        stream = self._stream(stream)
        with refusals(lambda _: self._pencils.tell(True, (_known(pencil), None), stream)):
            self._own(pencil, "pencil")
            periods = (periodic,) * 3 if isinstance(periodic, bool) else tuple(map(bool, periodic))
            if len(periods) != 3:
                raise ArgumentError(f"periodic {periodic!r}: one truth value, or three")
            widths = (list(pencil.halo), list(pencil.padding))
        self._pencils.halo(_axis(pencil.axis), pencil._memory, pencil.dtype.itemsize, widths, periods, stream)

    def free(self) -> None:
        """Frees the workspaces. Later calls raise StateError. Collective."""
        self._pencils.free()
