"""High throughput on tensors of a GPU: kernels in the order of torch's current stream."""

from __future__ import annotations

import math
from typing import Any

from .. import _symrail
from .._gpu import reached
from ..errors import ArgumentError
from ._high import Handle
from ._on_gpu import ROW_ALIGN, Held, address, current_stream, must_not_capture


class DeviceLayout:
    """The layout of tokens, by one launch."""

    def __init__(self, runtime: _symrail.Runtime) -> None:
        self.ranks, self.gpu = runtime.n_pes(), reached(runtime.device)
        self.kernel = _symrail.EpDeviceLayout(runtime)

    def count(self, topk_idx: Any, experts: int) -> tuple[Any, Any, Any]:
        """Tokens for each rank, slots of each expert, and whether each token goes to each rank."""
        if experts < 0 or experts % self.ranks:
            raise ArgumentError(f"{experts} experts of {self.ranks} ranks")
        made, topk, to = _symrail.ep_layout_tensors(self.gpu, self.ranks, topk_idx, experts)
        self.kernel.count(current_stream(self.gpu), topk, (experts, self.ranks), to)
        per_rank, per_expert, in_rank = made
        return per_rank, per_expert, in_rank


def _name(array: Any) -> str:
    return str(array.dtype).rpartition(".")[2]


def _view(memory: _symrail.Memory | None, dtype: Any, *shape: int) -> Any:
    """A tensor of the first bytes of memory, or None if there is none in a GPU."""
    import torch

    if memory is None or memory.gpu is None:
        return None
    size = math.prod(shape) * torch.empty((), dtype=dtype, device="cpu").element_size()
    if size > memory.nbytes:
        raise ArgumentError(f"{tuple(shape)} of {dtype} are {size} bytes; these buffers have {memory.nbytes}")
    return _symrail.DeviceArray(memory, (size,), "uint8").tensor().view(dtype).reshape(shape)


class DeviceHighThroughput(Held[_symrail.EpDeviceHighThroughput]):
    """Buffers for `num_max_tokens_per_rank` tokens of each rank, and rows like those of the first dispatch."""

    def __init__(self, runtime: _symrail.Runtime, most_tokens: int, timeout: float | None) -> None:
        super().__init__(runtime, timeout)
        self.most_tokens = most_tokens
        self.shape: tuple[int, int, int, int] | None = None

    def _prepare(self, row: int, scales: int, experts: int, k: int, blocks: int) -> _symrail.EpDeviceHighThroughput:
        """Buffers that are large enough for such rows. Makes new ones if the present ones are not, which is
        collective."""
        if self.held is not None and self.shape is not None:
            bytes_each, of_scales, *numbers = self.shape
            if row <= bytes_each and scales <= of_scales and numbers[0] == experts and k <= numbers[1]:
                return self.held
            # One allocation serves all shapes so far.
            if numbers[0] == experts:
                row, scales, k = max(row, bytes_each), max(scales, of_scales), max(k, numbers[1])
        must_not_capture("no buffers can be made: call it once with the same shapes before")
        self.free()
        self.shape, room = (row, scales, experts, k), self.ranks * self.most_tokens
        self.held = _symrail.EpDeviceHighThroughput(
            self.runtime, self.most_tokens, room, *self.shape, blocks, self.timeout
        )
        return self.held

    def dispatch(
        self,
        x: Any,
        handle: Handle | None,
        is_token_in_rank: Any,
        num_tokens_per_expert: Any,
        topk_idx: Any,
        topk_weights: Any,
        expert_alignment: int,
        num_worst_tokens: int,
        blocks: int,
    ) -> tuple[Any, Any, Any, list[int] | None, Handle | None]:
        """See `Buffer.dispatch`."""
        import torch

        if isinstance(x, tuple) and len(x) != 2:
            raise ArgumentError(f"x is a tuple of {len(x)}; wanted are tokens, or tokens and scales")
        rows, scales = x if isinstance(x, tuple) else (x, None)
        for array, role in ((rows, "x"), (scales, "x[1]"), (topk_idx, "topk_idx")):
            if array is not None and len(array.shape) != 2:
                raise ArgumentError(f"{role} has the shape {tuple(array.shape)}; wanted are two dimensions")
        if expert_alignment < 1:
            raise ArgumentError(f"expert_alignment={expert_alignment}; wanted is at least 1")
        tokens, hidden = (int(length) for length in rows.shape)
        if tokens > self.most_tokens:
            raise ArgumentError(
                f"x has {tokens} tokens; this Buffer's num_max_tokens_per_rank is {self.most_tokens}; give all ranks more"
            )
        at = address(rows, "x", self.gpu, _name(rows), (tokens, hidden), ROW_ALIGN)
        each, groups = hidden * rows.element_size(), 0 if scales is None else int(scales.shape[1])
        if each % 16:
            raise ArgumentError(f"a row of x has {each} bytes; wanted is a multiple of 16")
        of_scales, kind = 0, None
        if scales is not None:
            # DeepEP's are column-major. Packed ones are int32.
            scales = scales.contiguous()
            kind = "int32" if scales.dtype == torch.int32 else "float32"
            of_scales = address(scales, "x[1]", self.gpu, kind, (tokens, groups))
        stream, topk, k = current_stream(self.gpu), None, 0
        if handle is None:
            if is_token_in_rank is None or num_tokens_per_expert is None:
                raise ArgumentError(
                    "without a handle give num_tokens_per_rank, is_token_in_rank and num_tokens_per_expert "
                    "(get_dispatch_layout)"
                )
            experts, slots = int(num_tokens_per_expert.shape[0]), 0
            # A combine makes as many sums as this has rows.
            in_rank = address(is_token_in_rank, "is_token_in_rank", self.gpu, "bool", (tokens, self.ranks))
            per_expert = address(num_tokens_per_expert, "num_tokens_per_expert", self.gpu, "int32", (experts,))
            if topk_idx is not None:
                k = int(topk_idx.shape[1])
                slots = address(topk_idx, "topk_idx", self.gpu, "int64", (tokens, k))
            elif topk_weights is not None:
                raise ArgumentError("topk_idx and topk_weights go together")
            if topk_weights is not None:
                topk = (slots, address(topk_weights, "topk_weights", self.gpu, "float32", (tokens, k)))
            largest = max(2, rows.element_size()) * hidden
            # Without indices a token may go to all ranks.
            most_ranks = max(k, 1) if topk_idx is not None else self.ranks
            buffers = self._prepare(largest, max(groups, -(-hidden // 128)), experts, most_ranks, blocks)
            routes: Any = buffers.layout(stream, (slots, k), (in_rank, per_expert), tokens)
        else:
            if topk_idx is not None or topk_weights is not None:
                raise ArgumentError("topk_idx and topk_weights do not go with a handle")
            if int(handle.is_token_in_rank.shape[0]) != tokens:
                raise ArgumentError(f"x has {tokens} tokens; the handle is of {int(handle.is_token_in_rank.shape[0])}")
            buffers, routes = self.buffers(), handle.routes
        buffers.set_blocks(blocks)
        room = int(handle.recv_src_idx.shape[0]) if handle is not None else num_worst_tokens if num_worst_tokens > 0 else None
        given = (at, of_scales, topk, each, groups, (_name(rows), kind), room)
        if room is None:
            must_not_capture(f"the host cannot wait for the counts: num_worst_tokens={self.ranks * self.most_tokens}")
        buffers.dispatch(stream, routes, given, handle is not None)
        found: list[int] | None = None
        counts: list[int] | None = None if handle is not None else []
        if room is not None:
            come = room
        else:
            from_ranks, of_experts, found = buffers.counts(stream, self.timeout)
            come, counts = sum(from_ranks), [-(-count // expert_alignment) * expert_alignment for count in of_experts]

        def empty(dtype: Any, *shape: int) -> Any:
            return torch.empty(shape, dtype=dtype, device=rows.device)

        received = empty(rows.dtype, come, hidden)
        its_scales = None if scales is None else empty(scales.dtype, come, groups)
        its_slots = None if topk is None else torch.full((come, k), -1, dtype=torch.int64, device=rows.device)
        its_weights = None if topk is None else torch.zeros((come, k), dtype=torch.float32, device=rows.device)
        sources = empty(torch.int32, come)
        if num_worst_tokens > 0:
            sources.fill_(-1)
        to = [0 if one is None else one.data_ptr() for one in (received, its_scales, its_slots, its_weights, sources)]
        buffers.receive(stream, routes, given, (to[0], to[1], to[2], to[3], to[4]))
        # The GPU copies rows meanwhile.
        matrix: Any = None
        if found is not None:
            matrix = torch.tensor(found, dtype=torch.int32, device="cpu").reshape(self.ranks, self.ranks).cumsum(0, dtype=torch.int32)
        ends = None if matrix is None else matrix[:, self.runtime.my_pe()].contiguous()
        made = None if handle is not None else Handle(matrix, sources, ends, is_token_in_rank, routes, k)
        result = received if scales is None else (received, its_scales)
        return result, its_slots, its_weights, counts, made

    def returned(self) -> _symrail.Memory | None:
        """The memory of rows that return, if there is some."""
        return self.left().returned()

    def next_combine_buffer(self, handle: Handle, hidden: int, dtype: Any) -> Any:
        """See `Buffer.get_next_combine_buffer`."""
        import torch

        come = int(handle.recv_src_idx.shape[0])
        in_place = _view(self.buffers().to_combine(), dtype, come, hidden)
        if in_place is not None:
            return in_place
        return torch.empty((come, hidden), dtype=dtype, device=handle.recv_src_idx.device)

    def combine(
        self, x: Any, handle: Handle, topk_weights: Any, bias: Any, blocks: int, topk_idx: Any = None
    ) -> tuple[Any, Any]:
        """See `Buffer.combine`. With `topk_idx` and one host a sum begins with the biases, and rows follow in the order of
        slots."""
        import torch

        come, tokens = int(handle.recv_src_idx.shape[0]), int(handle.is_token_in_rank.shape[0])
        hidden, dtype = int(x.shape[-1]), _name(x)
        if dtype not in ("bfloat16", "float32") or hidden * x.element_size() % 16:
            raise ArgumentError(f"x is [.., {hidden}] of {dtype}; wanted: float32 or bfloat16, rows of 16·n bytes")
        rows = address(x, "x", self.gpu, dtype, (come, hidden), ROW_ALIGN)
        biases = [one for one in (bias if isinstance(bias, tuple) else (bias,)) if one is not None]
        if len(biases) > 2:
            raise ArgumentError(f"{len(biases)} biases; there may be two")
        added = [address(one, "bias", self.gpu, dtype, (tokens, hidden), ROW_ALIGN) for one in biases] + [0, 0]
        out = torch.empty((tokens, hidden), dtype=x.dtype, device=x.device)
        weights, sums = None, None
        if topk_weights is not None:
            if len(topk_weights.shape) != 2 or topk_weights.shape[1] != handle.k:
                raise ArgumentError(
                    f"topk_weights has the shape {tuple(topk_weights.shape)}; the handle's dispatch had {handle.k} slots"
                )
            k = handle.k
            sums = torch.empty((tokens, k), dtype=torch.float32, device=x.device)
            weights = (address(topk_weights, "topk_weights", self.gpu, "float32", (come, k)), sums.data_ptr())
        stream = current_stream(self.gpu)
        self.buffers().set_blocks(blocks)
        places = (rows, added[0], added[1], out.data_ptr())
        routes: Any = handle.routes
        slots = None
        if topk_idx is not None:
            k = int(topk_idx.shape[1])
            slots = (address(topk_idx, "topk_idx", self.gpu, "int64", (tokens, k)), k)
        self.buffers().combine(stream, routes, places, come, weights, hidden * x.element_size(), dtype, slots)
        return out, sums
