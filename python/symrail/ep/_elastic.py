"""`ElasticBuffer`: the interface of DeepEP's second generation, over `Buffer`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from .. import _symrail
from .._gpu import is_on_gpu
from ..errors import ArgumentError, StateError
from ._buffer import Buffer
from ._config import Config, bytes_on_gpus
from ._engram import Engram
from ._events import EventOverlap
from ._groups import exchange
from ._high import Handle
from ._pipeline import Pipeline
from ._sessions import ALIGN, Sessions
from ._symmetric import agree, bytes_of, must_be_supported, up

_ALIGN = 2 << 20
_QPS = 17


class _Buffer(Buffer):
    """Other calls than dispatch and combine may be all that it is made for."""

    _makes_at_once = False


class EPHandle:
    """The routes of a dispatch: a combine goes back on them, and other tokens may follow them."""

    def __init__(self, routes: Handle, slots: Any, topk_idx: Any, counts: list[int], of: dict[str, Any]) -> None:
        """`slots`: the local experts of each received token; `counts`: the slots of each; `of`: arguments of the call."""
        import torch

        self.routes, self.slots, self.topk_idx = routes, slots, topk_idx
        self.do_expand: bool = of["do_expand"]
        self.num_experts: int = of["num_experts"]
        self.expert_alignment: int = of["expert_alignment"]
        self.num_max_tokens_per_rank: int = of["num_max_tokens_per_rank"]
        self.num_sms: int = of["num_sms"]
        device = slots.device
        aligned = [-(-count // self.expert_alignment) * self.expert_alignment for count in counts]
        firsts = [sum(aligned[:local]) for local in range(len(aligned))]
        self.num_recv_tokens_per_expert_list = aligned
        self.num_recv_tokens, self.num_expanded_tokens = int(slots.shape[0]), sum(aligned)
        self.num_unaligned_recv_tokens_per_expert = torch.tensor(counts, dtype=torch.int32, device=device)
        ends = [first + count for first, count in zip(firsts, counts if self.do_expand else aligned)]
        self.psum_num_recv_tokens_per_expert = torch.tensor(ends, dtype=torch.int32, device=device)
        of_ranks = routes.recv_gbl_rank_prefix_sum.to(device=device, dtype=torch.int32)
        self.psum_num_recv_tokens_per_scaleup_rank = of_ranks
        # Rows are ordered by source.
        rows = torch.arange(self.num_recv_tokens, dtype=torch.int32, device=device)
        sources = torch.searchsorted(of_ranks, rows, right=True, out_int32=True)
        token = sources * self.num_max_tokens_per_rank + routes.recv_src_idx.to(torch.int32)
        self.recv_src_metadata = torch.cat((token[:, None], rows[:, None], self._places(firsts)), dim=1)
        self.dst_buffer_slot_idx = self.recv_src_metadata[:, 1].contiguous()
        self.token_metadata_at_forward = self.channel_linked_list = None

    def _places(self, firsts: list[int]) -> Any:
        """The expanded row of each slot of each received token, by expert and in the tokens' order; -1 for others'."""
        import torch

        slots = self.slots
        some = slots >= 0
        experts = slots[some]
        # The slots of each expert before a slot.
        order = torch.sort(experts, stable=True).indices
        counts = self.num_unaligned_recv_tokens_per_expert.to(torch.int64)
        shift = torch.tensor(firsts, dtype=torch.int64, device=slots.device) - (counts.cumsum(0) - counts)
        within = torch.empty_like(order)
        within[order] = torch.arange(order.shape[0], device=slots.device)
        places = torch.full(slots.shape, -1, dtype=torch.int32, device=slots.device)
        places[some] = (within + shift[experts]).to(torch.int32)
        return places

    def expanded(self, rows: Any) -> Any:
        """A row for each expert and token; 0 where alignment leaves room."""
        places = self.recv_src_metadata[:, 2:]
        some = places >= 0
        made = rows.new_zeros((self.num_expanded_tokens, *rows.shape[2:]))
        made[places[some].long()] = rows[some]
        return made

    def of_slot(self, expanded: Any, slot: int) -> Any:
        """For each received token the expanded row of a slot; 0 where it has none."""
        import torch

        places = self.recv_src_metadata[:, 2 + slot]
        rows = expanded[places.clamp(min=0).long()]
        return torch.where((places >= 0).reshape(-1, *[1] * (rows.dim() - 1)), rows, 0)

    def tensors(self) -> tuple[Any, ...]:
        """Its own tensors, which a call has made."""
        return (
            self.slots,
            self.topk_idx,
            self.recv_src_metadata,
            self.dst_buffer_slot_idx,
            self.psum_num_recv_tokens_per_expert,
            self.psum_num_recv_tokens_per_scaleup_rank,
            self.num_unaligned_recv_tokens_per_expert,
            self.routes.recv_src_idx,
        )


class ElasticBuffer:
    """Memory for the calls of DeepEP's second generation, on tensors of torch: dispatch and combine, sessions of
    all-gathers (`agrs_…`, `all_gather`), tensors for neighbours (`pp_…`), and a table of entries (`engram_…`).

    Received tokens are ordered by source, whatever `deterministic` is. A combine adds what the experts of a rank have made
    of a token first (`allow_multiple_reduction`), and then these sums in the order of ranks, and the biases last. On GPUs
    of one host, at most 32, the biases come first, and the ranks in the order of their last slots, as DeepEP's.
    `dispatch` without a handle waits on the host for the counts, also with `do_cpu_sync=False`. Accepted without effect:
    `allow_hybrid_mode`, `prefer_overlap_with_compute`, `sl_idx`, `num_allocated_qps`, `num_qps`. Waits on the host and
    on the GPU last as long as the smaller one of `num_cpu_timeout_secs` and `num_gpu_timeout_secs`; those of the last
    three groups on the GPU SYMRAIL_TIMEOUT_S, and the next `barrier` raises that they have timed out. These calls cannot
    be captured in graphs (StateError), and take heap memory of their own when they are configured, at most `num_bytes`.
    """

    def __init__(
        self,
        group: Any = None,
        num_bytes: int | None = None,
        num_cpu_bytes: int = 0,
        num_max_tokens_per_rank: int = 0,
        hidden: int = 0,
        num_topk: int = 0,
        use_fp8_dispatch: bool = False,
        deterministic: bool = False,
        allow_hybrid_mode: bool = True,
        allow_multiple_reduction: bool = True,
        prefer_overlap_with_compute: bool = True,
        sl_idx: int = 3,
        num_allocated_qps: int = 0,
        num_cpu_timeout_secs: int = 300,
        num_gpu_timeout_secs: int = 100,
        explicitly_destroy: bool = False,
    ) -> None:
        """Allocates memory on each rank's heap: `num_bytes`, or what the numbers of tokens and elements need. Collective.

        Raises as `Buffer` does.
        """
        if num_bytes is None:
            if num_max_tokens_per_rank <= 0 or hidden <= 0:
                raise ArgumentError("give num_bytes, or num_max_tokens_per_rank and hidden")
            num_bytes = self.get_buffer_size_hint(group, num_max_tokens_per_rank, hidden, num_topk, use_fp8_dispatch)
        self.buffer = _Buffer(
            group,
            num_bytes,
            explicitly_destroy=explicitly_destroy,
            timeout=float(min(num_cpu_timeout_secs, num_gpu_timeout_secs)),
            num_max_tokens_per_rank=max(1, num_max_tokens_per_rank),
        )
        self.num_cpu_bytes = num_cpu_bytes
        self._pipeline: Pipeline | None = None
        self._sessions: Sessions | None = None
        self._engram: Engram | None = None
        self._is_destroyed = False
        self.group, self.num_bytes, self.num_max_tokens_per_rank = group, num_bytes, num_max_tokens_per_rank
        self.rank_idx, self.num_ranks = self.buffer.rank, self.buffer.group_size
        self.deterministic, self.explicitly_destroy = deterministic, explicitly_destroy
        self.allow_hybrid_mode, self.allow_multiple_reduction = allow_hybrid_mode, allow_multiple_reduction
        self.prefer_overlap_with_compute = prefer_overlap_with_compute
        self.num_allocated_qps = num_allocated_qps or _QPS
        self.num_scaleout_ranks, self.num_scaleup_ranks = self.get_logical_domain_size()
        self.scaleout_rank_idx, self.scaleup_rank_idx = divmod(self.rank_idx, self.num_scaleup_ranks)
        self.num_rdma_ranks, self.num_nvlink_ranks = self.get_physical_domain_size()

    def destroy(self) -> None:
        """Frees the memory, but for gathered tensors that exist, behind all earlier calls. Collective."""
        if self._sessions or self._pipeline or self._engram:
            self.barrier()
        if self._sessions is not None:
            self._sessions.free()
        self._sessions = self._pipeline = self._engram = None
        self._is_destroyed = True
        self.buffer.destroy()

    @staticmethod
    def get_buffer_size_hint(
        group: Any,
        num_max_tokens_per_rank: int,
        hidden: int,
        num_topk: int = 0,
        use_fp8_dispatch: bool = False,
        allow_hybrid_mode: bool = True,
        allow_multiple_reduction: bool = True,
    ) -> int:
        """Bytes of each rank's heap, a multiple of 2 MiB, for tokens of bfloat16."""
        import symrail

        ranks = symrail.n_pes() if group is None else exchange(group, None, None)[1]
        on_host = _symrail.ep_high_throughput_bytes(ranks, Config().num_max_nvl_chunked_recv_tokens, 2 * hidden)
        on_gpu = bytes_on_gpus(ranks, num_max_tokens_per_rank, 2 * hidden, num_topk)
        return up(max(on_host, on_gpu), _ALIGN)

    @staticmethod
    def get_engram_storage_size_hint(
        num_entries: int, hidden: int, num_max_tokens_per_rank: int, dtype: Any = None
    ) -> tuple[int, int]:
        """Bytes for so many fetched entries, and for each rank's own entries, multiples of 2 MiB. `dtype` is by default
        bfloat16."""
        import torch

        each = up(bytes_of((hidden,), torch.bfloat16 if dtype is None else dtype), ALIGN)
        return up(each * num_max_tokens_per_rank, _ALIGN), up(each * num_entries, _ALIGN)

    @staticmethod
    def get_pp_buffer_size_hint(num_max_tensor_bytes: int, num_max_inflight_tensors: int) -> int:
        """Bytes for tensors to and from both neighbours, a multiple of 2 MiB."""
        return up(4 * up(num_max_tensor_bytes, ALIGN) * num_max_inflight_tensors, _ALIGN)

    @staticmethod
    def get_agrs_num_max_session_bytes(group: Any, shapes: Any, dtype: Any) -> int:
        """Bytes of a session's gathered tensors, of one shape or of several for each rank."""
        import symrail

        ranks = symrail.n_pes() if group is None else exchange(group, None, None)[1]
        all_shapes = shapes if isinstance(shapes[0], tuple) else (shapes,)
        return sum(up(ranks * bytes_of(shape, dtype), ALIGN) for shape in all_shapes)

    @staticmethod
    def get_agrs_buffer_size_hint(group: Any, num_max_session_bytes: int) -> int:
        """Bytes for sessions, a multiple of 2 MiB."""
        return up(num_max_session_bytes, _ALIGN)

    @staticmethod
    def capture() -> EventOverlap:
        """An event after all earlier calls."""
        return Buffer.capture()

    def get_comm_stream(self) -> Any:
        """The stream (torch.cuda.Stream) of calls with `async_with_compute_stream` on a GPU."""
        return self.buffer.get_comm_stream()

    def get_physical_domain_size(self) -> tuple[int, int]:
        """1, and the number of ranks: which path data takes is not the caller's concern."""
        return 1, self.num_ranks

    def get_logical_domain_size(self) -> tuple[int, int]:
        """As `get_physical_domain_size`."""
        return 1, self.num_ranks

    def get_theoretical_num_sms(self, num_experts: int, num_topk: int, *_: Any, **__: Any) -> int:
        """The usual number of SMs of dispatch and combine."""
        return Buffer.num_sms + 4

    def get_theoretical_num_qps(self, num_sms: int) -> int:
        """The number of queue pairs is not the caller's concern."""
        return self.num_allocated_qps

    def barrier(self, use_comm_stream: bool = True, with_cpu_sync: bool = False, sequential: bool = True) -> None:
        """Waits on the host until all ranks have ended their earlier work. Collective."""
        runtime = self.buffer._joined()
        if runtime.device is not None:
            import torch

            torch.cuda.synchronize(runtime.device)
        runtime.barrier_all(timeout=self.buffer._timeout)

    def _joined(self) -> Any:
        """The job."""
        if self._is_destroyed:
            raise StateError("this ElasticBuffer was destroyed")
        return self.buffer._joined()

    def _configure(self, call: str, numbers: tuple[int, int], wanted: int, is_free: bool = True) -> Any:
        """The job, in which all ranks make this call with the same numbers and need so many bytes, behind all earlier
        calls. Collective."""
        runtime, timeout = self._joined(), self.buffer._timeout

        def check() -> tuple[int, int]:
            must_be_supported(runtime, call)
            if min(numbers) < 1 or max(numbers) > 1 << 40:
                raise ArgumentError(f"{call}{numbers}: wanted are numbers from 1 on")
            if wanted > self.num_bytes:
                raise ArgumentError(f"{call}{numbers}: {wanted} bytes; this buffer's num_bytes are {self.num_bytes}")
            if not is_free:
                raise StateError(f"{call} within a session: destroy_agrs_session ends it")
            return numbers

        agree(runtime, call, ("the first number", "the second number"), check, timeout)
        self.barrier()
        return runtime

    def pp_set_config(self, num_max_tensor_bytes: int, num_max_inflight_tensors: int) -> None:
        """Makes memory for tensors that go to the neighbours in the ring of ranks, at most so many at a time to each.
        Collective, behind all earlier calls."""
        numbers = num_max_tensor_bytes, num_max_inflight_tensors
        runtime = self._configure("pp_set_config", numbers, 4 * num_max_tensor_bytes * num_max_inflight_tensors)
        self._pipeline = None
        self._pipeline = Pipeline(runtime, *numbers, self.buffer._timeout)

    def _of_pipeline(self, call: str) -> Pipeline:
        self._joined()
        if self._pipeline is None:
            raise StateError(f"{call} before pp_set_config")
        return self._pipeline

    def pp_send(self, t: Any, dst_rank_idx: int, num_sms: int = 0) -> None:
        """Sends a contiguous tensor to the next rank or to the one before. It waits for the receiver only when so many
        tensors are on the way as were configured: on the host within the time limit (TimeoutError), on a GPU in the order
        of the current stream."""
        self._of_pipeline("pp_send").send(t, dst_rank_idx)

    def pp_recv(self, t: Any, src_rank_idx: int, num_sms: int = 0) -> None:
        """Receives the next tensor of a neighbour into `t`, which has as many bytes: DifferError on the host otherwise,
        and on a GPU the wait times out."""
        self._of_pipeline("pp_recv").receive(t, src_rank_idx)

    def agrs_set_config(self, num_max_session_bytes: int, num_max_all_gathers_per_session: int) -> None:
        """Makes memory for sessions of so many bytes of gathered tensors, and of so many all-gathers. Collective, behind
        all earlier calls."""
        numbers, held = (num_max_session_bytes, num_max_all_gathers_per_session), self._sessions
        is_free = held is None or not held.is_open
        runtime = self._configure("agrs_set_config", numbers, num_max_session_bytes, is_free)
        self._sessions = None
        if held is not None:
            held.free()
        # The new memory takes its place.
        del held
        self._sessions = Sessions(runtime, self.buffer._stream, *numbers, self.buffer._timeout)

    def _of_sessions(self, call: str) -> Sessions:
        self._joined()
        if self._sessions is None:
            raise StateError(f"{call} before agrs_set_config")
        return self._sessions

    def create_agrs_session(self) -> None:
        """Begins a session of all-gathers. Local."""
        self._of_sessions("create_agrs_session").begin()

    def destroy_agrs_session(self) -> None:
        """Ends the session. Gathered tensors must not be used any more: later sessions write into their memory when all
        ranks have ended this one. Collective."""
        self._of_sessions("destroy_agrs_session").end()

    @contextmanager
    def agrs_new_session(self, enabled: bool = True) -> Iterator[None]:
        """A session for the block, if it is `enabled`."""
        if not enabled:
            yield
            return
        self.create_agrs_session()
        try:
            yield
        finally:
            self.destroy_agrs_session()

    def agrs_get_inplace_tensor(self, shapes: Any, dtype: Any) -> Any:
        """A tensor to fill for the next `all_gather`, which then copies nothing; or a tuple of them for several shapes."""
        is_one = not isinstance(shapes[0], tuple)
        made = self._of_sessions("agrs_get_inplace_tensor").own((shapes,) if is_one else shapes, dtype)
        return made[0] if is_one else tuple(made)

    def all_gather(self, t: Any) -> tuple[Any, ...]:
        """Gathers a contiguous tensor, or each of a sequence, from all ranks within a session: returns [ranks, ...] for
        each, valid until the session ends, and a function behind whose call they are filled: on a GPU for the current
        stream. Collective, in the same order on all ranks. Raises DifferError on the host if tensors differ in size,
        StateError outside of sessions and for more than was configured."""
        given: Sequence[Any] = (t,) if hasattr(t, "data_ptr") else tuple(t)
        gathered, wait = self._of_sessions("all_gather").all_gather(given)
        return *gathered, wait

    def engram_write(self, storage: Any, sf: Any = None) -> None:
        """Stores this rank's entries ([entries, hidden] of bfloat16, or of float8_e4m3fn with the scales `sf` of all
        ranks' entries, [ranks x entries, packs] of 4-byte elements, which is kept as it is). Entries are numbered by rank;
        all ranks have equally many. Collective, behind all earlier calls."""
        runtime, timeout = self._joined(), self.buffer._timeout
        engram = self._engram = self._engram or Engram(runtime, timeout)

        def check() -> list[int]:
            must_be_supported(runtime, "engram_write")
            return engram.check(storage, sf, self.num_cpu_bytes or self.num_bytes)

        agree(runtime, "engram_write", ("number of entries", "elements of an entry", "bytes of an element"), check, timeout)
        self.barrier()
        engram.write(storage, sf)
        self.barrier()

    def engram_fetch(
        self, indices: Any, num_qps: int = 0, use_tma_aligned_col_major_sf: bool = False
    ) -> Callable[[], tuple[Any, Any]]:
        """Fetches entries of all ranks by number ([tokens, entries of a token], int32): returns a function that waits, and
        returns [tokens, entries of a token x hidden], and the entries' scales or None. Local; the host waits for the
        indices. Raises ArgumentError for a number without an entry."""
        self._joined()
        if self._engram is None:
            raise StateError("engram_fetch before engram_write")
        return self._engram.fetch(indices, use_tma_aligned_col_major_sf)

    def dispatch(
        self,
        x: Any,
        topk_idx: Any = None,
        topk_weights: Any = None,
        cumulative_local_expert_recv_stats: Any = None,
        num_experts: int | None = None,
        num_max_tokens_per_rank: int | None = None,
        expert_alignment: int | None = None,
        num_sms: int = 0,
        num_qps: int = 0,
        previous_event: EventOverlap | None = None,
        previous_event_before_epilogue: EventOverlap | None = None,
        async_with_compute_stream: bool = False,
        allocate_on_comm_stream: bool = False,
        handle: EPHandle | None = None,
        do_handle_copy: bool = True,
        do_cpu_sync: bool | None = None,
        do_expand: bool = False,
        do_zero_padding: bool = False,
        use_tma_aligned_col_major_sf: bool = False,
    ) -> tuple[Any, Any, Any, EPHandle, EventOverlap]:
        """Sends each token to the ranks that own its experts. Collective.

        Returns received tokens (as `x`), their experts and weights, a handle and an event. With `do_expand` there is a
        row for each expert and token, by expert, each expert's first row at a multiple of `expert_alignment`; weights are
        one for each row then, and there are no experts. With a `handle` tokens take the routes of an earlier dispatch.
        Raises as `Buffer.dispatch` does.
        """
        given = (x, topk_idx, topk_weights, cumulative_local_expert_recv_stats, handle)
        with self._on_stream(previous_event, async_with_compute_stream, allocate_on_comm_stream, given) as call:
            if previous_event_before_epilogue is not None:
                previous_event_before_epilogue.current_stream_wait()
            if handle is None:
                if topk_idx is None or not num_experts:
                    raise ArgumentError("without a handle give topk_idx and num_experts")
                most = num_max_tokens_per_rank or self.num_max_tokens_per_rank
                of = {
                    "do_expand": do_expand,
                    "num_experts": num_experts,
                    "expert_alignment": expert_alignment or 1,
                    "num_max_tokens_per_rank": most,
                    "num_sms": num_sms or self.get_theoretical_num_sms(num_experts, 0),
                }
                rows, weights, handle = self._first(x, topk_idx, topk_weights, do_handle_copy, of)
            else:
                if topk_idx is not None or do_cpu_sync:
                    raise ArgumentError("topk_idx and do_cpu_sync do not go with a handle")
                if do_expand != handle.do_expand:
                    raise ArgumentError(f"do_expand={do_expand}: the handle's dispatch had {handle.do_expand}")
                rows, weights = self._again(x, topk_weights, handle, num_sms)
            if cumulative_local_expert_recv_stats is not None:
                cumulative_local_expert_recv_stats += handle.num_unaligned_recv_tokens_per_expert
            slots = None if do_expand else handle.slots
            if do_expand:
                rows, weights = self._expand(rows, weights, handle)
            if use_tma_aligned_col_major_sf and isinstance(rows, tuple):
                rows = (rows[0], rows[1].t().contiguous().t())
            call.made(rows, weights, handle)
        return rows, slots, weights, handle, call.event(None)

    def combine(
        self,
        x: Any,
        handle: EPHandle,
        topk_weights: Any = None,
        bias: Any = None,
        num_sms: int = 0,
        num_qps: int = 0,
        previous_event: EventOverlap | None = None,
        previous_event_before_epilogue: EventOverlap | None = None,
        async_with_compute_stream: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[Any, Any, EventOverlap]:
        """Sends a row for each received token, or with an expanded handle for each expert and token, back to its source,
        and adds up those of a token and up to two biases. Collective. Returns the sums, those of `topk_weights`, and an
        event. Raises as `Buffer.combine` does.
        """
        import torch

        given = (x, topk_weights, bias, handle)
        with self._on_stream(previous_event, async_with_compute_stream, allocate_on_comm_stream, given) as call:
            if previous_event_before_epilogue is not None:
                previous_event_before_epilogue.current_stream_wait()
            rows, weights = x, topk_weights
            if handle.do_expand:
                k = int(handle.slots.shape[1])
                total = x.new_zeros((handle.num_recv_tokens, x.shape[1])).float()
                for slot in range(k):
                    total += handle.of_slot(x, slot)
                rows = total.to(x.dtype)
                if topk_weights is not None:
                    weights = torch.stack([handle.of_slot(topk_weights, slot) for slot in range(k)], dim=1)
            # Receive buffers may have rows behind the received ones.
            rows = rows[: handle.num_recv_tokens].contiguous()
            weights = None if weights is None else weights[: handle.num_recv_tokens].contiguous()
            blocks = num_sms or handle.num_sms
            if is_on_gpu(rows):
                high = self.buffer._of_high_on_gpu()
                combined, sums = high.combine(rows, handle.routes, weights, bias, blocks, handle.topk_idx)
            else:
                combined, sums, _ = self.buffer.combine(rows, handle.routes, weights, bias, Config(blocks))
            call.made(combined, sums)
        return combined, sums, call.event(None)

    def _on_stream(self, previous: EventOverlap | None, is_async: bool, allocates: bool, given: tuple[Any, ...]) -> Any:
        """The stream of a call; without a GPU calls are complete when they return."""
        on_gpu = self.buffer._joined().device is not None
        return self.buffer._stream.of_call(previous, is_async and on_gpu, False, given)

    def _first(
        self, x: Any, topk_idx: Any, topk_weights: Any, copies: bool, of: dict[str, Any]
    ) -> tuple[Any, Any, EPHandle]:
        import torch

        per_rank, _, per_expert, in_rank, _ = self.buffer.get_dispatch_layout(topk_idx, of["num_experts"])
        sent = torch.zeros(topk_idx.shape, dtype=torch.float32, device=topk_idx.device) if topk_weights is None else topk_weights
        rows, slots, weights, counts, routes, _ = self.buffer.dispatch(
            self._plain(x),
            num_tokens_per_rank=per_rank,
            is_token_in_rank=in_rank,
            num_tokens_per_expert=per_expert,
            topk_idx=topk_idx,
            topk_weights=sent,
            config=Config(of["num_sms"]),
        )
        if counts is None or routes is None:
            raise StateError("a dispatch without counts")
        handle = EPHandle(routes, slots, topk_idx.clone() if copies else topk_idx, counts, of)
        return rows, None if topk_weights is None else weights, handle

    def _again(self, x: Any, topk_weights: Any, handle: EPHandle, num_sms: int) -> tuple[Any, Any]:
        import torch

        config = Config(num_sms or handle.num_sms)
        rows = self.buffer.dispatch(self._plain(x), handle.routes, config=config)[0]
        if topk_weights is None:
            return rows, None
        # Weights travel as rows of their own, of whole pieces of 16 bytes.
        k = int(topk_weights.shape[1])
        padded = torch.nn.functional.pad(topk_weights, (0, -k % 4)).contiguous()
        weights = self.buffer.dispatch(padded, handle.routes, config=config)[0][:, :k]
        return rows, torch.where(handle.slots >= 0, weights, 0.0)

    @staticmethod
    def _plain(x: Any) -> Any:
        """Scales may be column-major."""
        return (x[0], x[1].contiguous()) if isinstance(x, tuple) else x

    @staticmethod
    def _expand(rows: Any, weights: Any, handle: EPHandle) -> tuple[Any, Any]:
        def of(one: Any) -> Any:
            return handle.expanded(one[:, None].expand(-1, handle.slots.shape[1], *one.shape[1:]))

        def of_bytes(one: Any) -> Any:
            """FP8 has few operations."""
            import torch

            return of(one.view(torch.uint8)).view(one.dtype) if one.element_size() == 1 else of(one)

        expanded = tuple(of_bytes(one) for one in rows) if isinstance(rows, tuple) else of_bytes(rows)
        return expanded, None if weights is None else handle.expanded(weights)
