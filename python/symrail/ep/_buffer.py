"""The class `Buffer`."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from .. import _symrail
from .._gpu import is_on_gpu
from ..errors import ArgumentError, StateError, UnsupportedError
from . import _groups, _high, _local
from .._host_arrays import as_array, must_take, numbers
from ._config import MOST_TOKENS, Config
from ._device import DeviceLowLatency
from ._device_high import DeviceHighThroughput, DeviceLayout
from ._stream import CommunicationStream
from ._events import EventHandle, EventOverlap, at_current_stream
from ._low import LowLatency
from ._on_gpu import plain

# Heap memory of the job besides these buffers, if a Buffer joins the job itself.
_HEAP_BESIDES = 64 << 20


# DeepEP's rule: a hook receives on the stream where it is called, so that no event is behind the call.
_NOT_TOGETHER = "async_finish and return_recv_hook do not go together"


class Buffer:
    """Memory through which tokens go to the ranks of their experts and back, and the calls that do so.

    All ranks make every call, and it is complete when it returns; on tensors of a GPU it is in the order of torch's
    current stream instead. With `async_finish` it is in the order of the communication stream, behind `previous_event`,
    or the current stream's earlier work without one; the current stream waits for the returned event. With
    `allocate_on_comm_stream` results are that stream's memory. These arguments are accepted without effect:
    `num_qps_per_rank`, `allow_nvlink_for_low_latency_mode`, `allow_mnnvl` and `use_fabric`. Sums are formed in FP32 in the
    order of ranks, so that each call gives the same bits.
    """

    num_sms = 20
    # Whether the host's buffers for dispatch and combine are made with the Buffer, or by the first call.
    _makes_at_once = True

    def __init__(
        self,
        group: Any = None,
        num_nvl_bytes: int = 0,
        num_rdma_bytes: int = 0,
        low_latency_mode: bool = False,
        num_qps_per_rank: int = 24,
        allow_nvlink_for_low_latency_mode: bool = True,
        allow_mnnvl: bool = False,
        use_fabric: bool = False,
        explicitly_destroy: bool = False,
        enable_shrink: bool = False,
        comm: Any = None,
        *,
        timeout: float | None = None,
        num_max_tokens_per_rank: int = MOST_TOKENS,
    ) -> None:
        """Allocates buffers on each rank's heap. Collective.

        Ranks are those of `group` (a process group of torch, or a Team) or `comm` (an mpi4py communicator), by default
        all PEs; so are ranks in errors. Only members of the group take part. If they are not all PEs in the order of
        PEs, the Buffer joins a job of theirs, with a heap of the same kind as the process's, which `destroy` leaves; on
        a GPU with `enable_shrink`, the next Buffer of exactly these members does, so never if one has died. A process
        without a job joins one for a group of all processes. High throughput gets `num_nvl_bytes`, and without
        `low_latency_mode` also `num_rdma_bytes`; with it, low latency gets the latter.

        On tensors of a GPU `dispatch` accepts at most `num_max_tokens_per_rank` from each rank; the first one allocates
        memory for them on the heap, whatever `num_nvl_bytes` is.

        A Buffer that each rank has dropped without `destroy` is freed by the next call of all PEs that makes or
        reclaims symmetric memory; that of a group with a job of its own by the next Buffer of the group. With
        `explicitly_destroy` that is a RuntimeWarning.

        `timeout` is the number of seconds to wait for ranks, also while memory is made or freed, by default
        SYMRAIL_TIMEOUT_S; exchanges of torch and MPI have limits of their own, and those of a Team name its job's PEs.
        With `enable_shrink`, ranks that do not make a low-latency call in time are masked, and the
        others continue; without it that is a TimeoutError, whose `pes` are those ranks. On a GPU `num_rdma_bytes` are
        allocated now then, and `destroy` waits for no rank.

        Raises DifferError if ranks ask for different sizes, or those of a group have heaps of different kinds,
        StateError if one of a group captures a CUDA graph, HeapExhaustedError, ArgumentError.
        """
        for name, value in (("num_nvl_bytes", num_nvl_bytes), ("num_rdma_bytes", num_rdma_bytes)):
            if not 0 <= value < 2**46:
                raise ArgumentError(f"{name}={value}: a number of bytes from 0, of less than 64 TiB")
        heap = num_nvl_bytes + num_rdma_bytes + _HEAP_BESIDES
        self.runtime: Any
        self._group_job: _groups.GroupJob | None
        self.runtime, self._group_job = _groups.join(group, comm, heap, timeout)
        if self._group_job is not None:
            self._group_job.drop_with(self)
        self.rank, self.group_size = self.runtime.my_pe(), self.runtime.n_pes()
        self.group = group if comm is None else comm
        self.num_nvl_bytes, self.num_rdma_bytes = num_nvl_bytes, num_rdma_bytes
        self.low_latency_mode, self.explicitly_destroy = low_latency_mode, explicitly_destroy
        self.enable_shrink = enable_shrink
        for_high = num_nvl_bytes + (0 if low_latency_mode else num_rdma_bytes)
        self._for_high, self._timeout = for_high, timeout
        # Where the heap is for a GPU, only calls with host arrays need these buffers.
        self._high: _symrail.EpHighThroughput | None = None
        if self._makes_at_once and self.runtime.device is None and for_high:
            self._high = _symrail.EpHighThroughput(self.runtime, for_high, timeout)
        self._low = (
            LowLatency(self.runtime, num_rdma_bytes, enable_shrink, timeout) if low_latency_mode else None
        )
        self._low_on_gpu: DeviceLowLatency | None = None
        if low_latency_mode and enable_shrink and num_rdma_bytes and self.runtime.device is not None:
            # Ranks may have left before the first call.
            self._low_on_gpu = DeviceLowLatency(self.runtime, enable_shrink, timeout, num_rdma_bytes)
        self._high_on_gpu: DeviceHighThroughput | None = None
        self._layout_on_gpu: DeviceLayout | None = None
        self._stream = CommunicationStream(self.runtime.device)
        self._most_tokens = num_max_tokens_per_rank

    def __del__(self) -> None:
        held = (getattr(self, name, None) for name in ("_low", "_high", "_high_on_gpu"))
        if getattr(self, "explicitly_destroy", False) and any(one is not None for one in held):
            warnings.warn("a Buffer with explicitly_destroy=True was dropped without destroy()", RuntimeWarning, 2)

    def destroy(self) -> None:
        """Frees the memory. Later calls raise StateError. Collective. Raises StateError on all ranks, before anything is
        freed, if one has a tensor of `get_next_combine_buffer` or `get_local_buffer_tensor`.
        """
        for held in (self._low_on_gpu, self._high_on_gpu):
            if held is not None:
                held.must_have_no_views()
        for buffers in (self._low, self._low_on_gpu, self._high_on_gpu):
            if buffers is not None:
                buffers.free()
        if self._high is not None:
            self._high.free()
        self._low = self._low_on_gpu = self._high = self._high_on_gpu = self._layout_on_gpu = None
        self._for_high = 0
        if self._group_job is not None:
            job, on_gpu = self._group_job, self.runtime.device is not None
            self._group_job = self.runtime = None
            # Ranks that have left are not waited for.
            if self.enable_shrink and on_gpu:
                job.drop()
            else:
                job.leave(self._timeout)

    def statistics(self) -> dict[str, dict[str, Any] | None]:
        """Statistics of the last calls: under "high_throughput" the last of `dispatch` and `combine`, under
        "low_latency_dispatch" and "low_latency_combine" those; None if there was none.

        Each has the `call`, tokens `to_ranks`, `from_ranks` and `per_expert`, rows and bytes that stayed (`own_rows`,
        `own_bytes`), went over mapped memory (`mapped_…`) and over rails (`wire_…`), and `phases`: pairs of a name and
        seconds, in their order.
        """
        high = self._high.statistics() if self._high is not None else None
        held = self._low.held if self._low is not None else None
        low = held.statistics() if held is not None else [None, None]
        names = ("high_throughput", "low_latency_dispatch", "low_latency_combine")
        return {name: last if last and last["call"] else None for name, last in zip(names, (high, *low))}

    def _joined(self) -> Any:
        if self.runtime is None:
            raise StateError("this Buffer was destroyed")
        return self.runtime

    def _of_high(self) -> _symrail.EpHighThroughput:
        self._must_have_bytes()
        if self._high is None:
            self._high = _symrail.EpHighThroughput(self.runtime, self._for_high, self._timeout)
        return self._high

    def _must_have_bytes(self) -> None:
        if not self._for_high:
            raise StateError("this Buffer has no bytes for dispatch and combine (num_nvl_bytes), or was destroyed")

    def _of_low(self) -> LowLatency:
        if self._low is None:
            raise StateError("this Buffer was made without low_latency_mode=True, or was destroyed")
        return self._low

    def _low_for(self, x: Any) -> LowLatency | DeviceLowLatency:
        """The implementation for tokens in the memory of `x`."""
        on_gpu = self._low_on_gpu
        if on_gpu is not None and is_on_gpu(x):
            return on_gpu
        low = self._of_low()
        if not is_on_gpu(x):
            return low
        if self._low_on_gpu is None:
            self._low_on_gpu = DeviceLowLatency(self.runtime, self.enable_shrink, self._timeout)
        return self._low_on_gpu

    def _of_high_on_gpu(self) -> DeviceHighThroughput:
        self._must_have_bytes()
        if self._high_on_gpu is None:
            self._high_on_gpu = DeviceHighThroughput(self.runtime, self._most_tokens, self._timeout)
        return self._high_on_gpu

    def _low_buffers(self) -> Any:
        """The present buffers of low latency."""
        return (self._low_on_gpu or self._of_low()).buffers()

    @staticmethod
    def set_num_sms(new_num_sms: int) -> None:
        """Sets the number of SMs of later calls of dispatch and combine on a GPU without a `config`."""
        if new_num_sms <= 0 or new_num_sms % 2:
            raise ArgumentError(f"num_sms={new_num_sms}: it is even, and at least 2")
        Buffer.num_sms = new_num_sms

    @staticmethod
    def is_sm90_compiled() -> bool:
        """True: FP8 is supported."""
        return True

    def get_comm_stream(self) -> Any:
        """The stream (torch.cuda.Stream) of calls with `async_finish` on a GPU."""
        return self._stream.get()

    @plain
    def get_local_buffer_tensor(
        self, dtype: Any, size: Any = None, offset: int = 0, use_rdma_buffer: bool = False
    ) -> Any:
        """A tensor of this rank's own memory on a GPU, of a shape (by default all of it), from the byte `offset` on. Local.

        The memory is that of rows that return to this rank: by `combine`, or with `use_rdma_buffer` and
        `low_latency_mode` by `low_latency_combine`, and exists from the first dispatch on. From the end of a combine to
        the beginning of the next one no call reads or writes it, and a program may, if that combine had the `topk_idx` of
        its dispatch, and no rank was late or masked: rows that nobody waits for come later. In a combine, in the order
        of streams, it holds the combine's rows. Buffers cannot be remade or destroyed while such tensors exist on a rank
        (StateError on all). For low latency the host waits for the GPU. Raises StateError before the first dispatch,
        while a combine waits for its hook, and while a rank is masked or was late, until `connect_ranks`; ArgumentError
        for more than there is, and for a Buffer without such bytes; UnsupportedError on the host, where other ranks
        write into the buffers at any time, and where several hosts leave no such memory.
        """
        runtime = self._joined()
        name = "num_rdma_bytes" if use_rdma_buffer else "num_nvl_bytes"
        if not getattr(self, name):
            raise ArgumentError(f"use_rdma_buffer={use_rdma_buffer}: this Buffer was made with {name}=0")
        if self._low is None and not self._for_high:
            raise StateError("get_local_buffer_tensor: this Buffer was destroyed")
        if runtime.device is None:
            raise UnsupportedError(
                "get_local_buffer_tensor: on the host other ranks write into the buffers at any time: allocate an array"
            )
        of_low = use_rdma_buffer and self.low_latency_mode
        held = self._low_on_gpu if of_low else self._high_on_gpu
        if held is None:
            call = "low_latency_dispatch" if of_low else "dispatch"
            raise StateError(f"get_local_buffer_tensor: before the first {call} on the GPU there is no memory")
        return _local.part(held.returned(), dtype, size, offset)

    @staticmethod
    def capture() -> EventOverlap:
        """An event after all earlier calls."""
        return EventOverlap(EventHandle())

    @staticmethod
    def get_dispatch_config(num_ranks: int) -> Config:
        """A Config for `num_ranks` ranks, for `dispatch`."""
        return Config(Buffer.num_sms)

    @staticmethod
    def get_combine_config(num_ranks: int) -> Config:
        """A Config for `num_ranks` ranks, for `combine`."""
        return Config(Buffer.num_sms)

    @staticmethod
    def get_low_latency_rdma_size_hint(
        num_max_dispatch_tokens_per_rank: int, hidden: int, num_ranks: int, num_experts: int
    ) -> int:
        """Bytes of each rank's heap for low latency, with tokens of bfloat16 (or FP8 with scales) and top-k up to 16,
        on the host or on GPUs, whichever is larger. If all PEs map each other's memory, about half of it is used.
        """
        return _symrail.ep_low_latency_bytes(num_max_dispatch_tokens_per_rank, hidden, num_ranks, num_experts)

    def get_dispatch_layout(
        self,
        topk_idx: Any,
        num_experts: int,
        previous_event: EventOverlap | None = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[Any, Any, Any, Any, EventOverlap]:
        """Computes the ranks of tokens, from their top-k indices ([tokens, k]; -1 for none). Local.

        Returns tokens for each rank, tokens for each eight ranks (None for at most eight), slots that name each expert,
        whether each token goes to each rank ([tokens, ranks]), and an event. A token counts once for a rank. Raises
        ArgumentError for an index that is out of range, and if the ranks do not divide the number of experts.
        """
        if is_on_gpu(topk_idx):
            if self._layout_on_gpu is None:
                self._layout_on_gpu = DeviceLayout(self._joined())
            with self._stream.of_call(previous_event, async_finish, allocate_on_comm_stream, (topk_idx,)) as call:
                per_rank, per_expert, in_rank = self._layout_on_gpu.count(topk_idx, num_experts)
                per_host = _high.for_hosts(in_rank, per_rank.dtype)
                call.made(per_rank, per_host, per_expert, in_rank)
            return per_rank, per_host, per_expert, in_rank, call.event(None)
        k = int(topk_idx.shape[-1])
        indices = numbers(topk_idx, "topk_idx", "int64", (None, k))
        per_rank, per_expert, in_rank = _symrail.ep_layout(indices, k, num_experts, self.group_size)
        in_rank = in_rank.reshape(-1, self.group_size)
        per_host = _high.for_hosts(in_rank, per_rank.dtype)
        found = (None if one is None else as_array(one, topk_idx) for one in (per_rank, per_host, per_expert, in_rank))
        to_ranks, to_hosts, to_experts, of_tokens = found
        return to_ranks, to_hosts, to_experts, of_tokens, EventOverlap(EventHandle())

    @plain
    def dispatch(
        self,
        x: Any,
        handle: _high.Handle | None = None,
        num_tokens_per_rank: Any = None,
        num_tokens_per_rdma_rank: Any = None,
        is_token_in_rank: Any = None,
        num_tokens_per_expert: Any = None,
        topk_idx: Any = None,
        topk_weights: Any = None,
        expert_alignment: int = 1,
        num_worst_tokens: int = 0,
        config: Config | None = None,
        previous_event: EventOverlap | None = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[Any, Any, Any, list[int] | None, _high.Handle | None, EventOverlap]:
        """Sends each token to the ranks that own its experts. Collective.

        `x` is [tokens, hidden] of any dtype, or a pair of tokens and their scales (float32). With a `handle` tokens
        take the routes of an earlier dispatch. Returns the received data, by source and in the sources' order: tokens
        (as `x`), top-k indices (of this rank's own experts, counted from its first; -1 for others), weights (0 for
        others), the number of slots that name each of its experts (rounded up to `expert_alignment`), a handle, and an
        event. With `num_worst_tokens` there are so many rows; those behind the last received one have indices of -1.

        Raises ArgumentError before anything is sent; DifferError, on all ranks, if dtypes, shapes or calls differ,
        before tokens are sent; TimeoutError, whose `pes` are the missing ranks. On a GPU the event's `synchronize`
        raises later errors, or the next call does, which is then not made.
        """
        if is_on_gpu(x[0] if isinstance(x, tuple) else x):
            high, blocks = self._of_high_on_gpu(), Buffer.num_sms if config is None else config.num_sms
            given = (x, is_token_in_rank, num_tokens_per_expert, topk_idx, topk_weights)
            with self._stream.of_call(previous_event, async_finish, allocate_on_comm_stream, given) as call:
                of_gpu = high.dispatch(
                    x,
                    handle,
                    is_token_in_rank,
                    num_tokens_per_expert,
                    topk_idx,
                    topk_weights,
                    expert_alignment,
                    num_worst_tokens,
                    blocks,
                )
                call.made(*of_gpu[:3], *(of_gpu[4] or ())[1:2])
            return *of_gpu, call.event(high.check)
        result = _high.dispatch(
            self._of_high(),
            self.rank,
            self.group_size,
            x,
            handle,
            is_token_in_rank,
            num_tokens_per_rank,
            num_tokens_per_expert,
            topk_idx,
            topk_weights,
            expert_alignment,
            num_worst_tokens,
        )
        return *result, EventOverlap(EventHandle())

    @plain
    def combine(
        self,
        x: Any,
        handle: _high.Handle,
        topk_weights: Any = None,
        bias: Any = None,
        config: Config | None = None,
        previous_event: EventOverlap | None = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[Any, Any, EventOverlap]:
        """Sends a row for each received token back to its source, and adds up those of a token. Collective.

        `x` is [received tokens, hidden] of float32 or bfloat16. `bias` is none, one or two arrays of [tokens, hidden],
        which are added at the end. Returns the sums ([tokens, hidden]), the sums of `topk_weights` ([tokens, k]) and an
        event. Rows of `num_worst_tokens` that received no token are left out. Rows in the memory of
        `get_next_combine_buffer` are not copied. Raises as `dispatch` does.
        """
        if is_on_gpu(x):
            high, blocks = self._of_high_on_gpu(), Buffer.num_sms if config is None else config.num_sms
            given = (x, topk_weights, bias, handle.recv_src_idx)
            with self._stream.of_call(previous_event, async_finish, allocate_on_comm_stream, given) as call:
                of_gpu = high.combine(x, handle, topk_weights, bias, blocks)
                call.made(*of_gpu)
            return *of_gpu, call.event(high.check)
        sums, weights = _high.combine(self._of_high(), x, handle, topk_weights, bias)
        return sums, weights, EventOverlap(EventHandle())

    def clean_low_latency_buffer(self, num_max_dispatch_tokens_per_rank: int, hidden: int, num_experts: int) -> None:
        """Prepares buffers of this shape, for bfloat16 and top-k up to 16, if the heap is in host memory. No cleaning
        is needed. Collective.
        """
        if self._stream.gpu is not None:
            return
        scales = 4 * -(-hidden // 128)
        self._of_low().prepare(num_max_dispatch_tokens_per_rank, 2 * hidden, scales, num_experts, 16)

    def low_latency_dispatch(
        self,
        x: Any,
        topk_idx: Any,
        num_max_dispatch_tokens_per_rank: int,
        num_experts: int,
        cumulative_local_expert_recv_stats: Any = None,
        dispatch_wait_recv_cost_stats: Any = None,
        use_fp8: bool = True,
        round_scale: bool = False,
        use_ue8m0: bool = False,
        async_finish: bool = False,
        return_recv_hook: bool = False,
    ) -> tuple[Any, Any, tuple[Any, ...], EventOverlap, Callable[[], None] | None]:
        """Sends at most `num_max_dispatch_tokens_per_rank` tokens to the ranks that own their experts. Collective.

        `x` is [tokens, hidden] of bfloat16 or float32; on a GPU of bfloat16. Returns received tokens ([experts of this
        rank, ranks x num_max_dispatch_tokens_per_rank, hidden]; with `use_fp8` a pair of FP8 and scales of 128 elements
        each, in row-major order), the number for each expert, a handle, an event, and with `return_recv_hook` a
        function that receives: arrays are filled when it returns. That does not go with `async_finish`. Two dispatches
        may be sent before the first is received.

        The first call, and one that needs larger buffers or other numbers of tokens or experts, makes buffers.
        `round_scale` makes scales powers of two; with `use_ue8m0` as well, on a GPU, they are their exponents, four in
        an int32. `dispatch_wait_recv_cost_stats` (int64, [ranks]) is added to: the nanoseconds of waiting for each rank,
        on a GPU. There the next dispatch may be sent when this one was received, indices without an expert count as -1,
        and errors of earlier calls are raised. Raises as `dispatch` does.
        """
        if async_finish and return_recv_hook:
            raise ArgumentError(_NOT_TOGETHER)
        if use_ue8m0 and not (use_fp8 and round_scale):
            raise ArgumentError("use_ue8m0=True goes with use_fp8=True and round_scale=True")
        low = self._low_for(x)
        if isinstance(low, DeviceLowLatency):
            # The host's time bounds eager calls on a GPU: here are few steps.
            of_call = (
                x,
                topk_idx,
                num_max_dispatch_tokens_per_rank,
                num_experts,
                cumulative_local_expert_recv_stats,
                dispatch_wait_recv_cost_stats,
                use_fp8,
                round_scale,
                use_ue8m0,
            )
            if not async_finish:
                received, counts, handle, hook = low.dispatch(of_call, not return_recv_hook)
                return received, counts, handle, at_current_stream(self._stream.gpu, low.check), hook
            given = (x, topk_idx, cumulative_local_expert_recv_stats, dispatch_wait_recv_cost_stats)
            with self._stream.of_call(None, True, False, given) as call:
                received, counts, handle, hook = low.dispatch(of_call, True)
                call.made(received, counts, *handle[:2])
            return received, counts, handle, call.event(low.check), hook
        if use_ue8m0:
            raise UnsupportedError("use_ue8m0=True: on the host scales are float32; round_scale=True rounds them")
        if dispatch_wait_recv_cost_stats is not None:
            raise UnsupportedError("dispatch_wait_recv_cost_stats: on the host times of ranks are not kept")
        received, counts, handle, receive = low.dispatch(
            x,
            topk_idx,
            num_max_dispatch_tokens_per_rank,
            num_experts,
            cumulative_local_expert_recv_stats,
            use_fp8,
            round_scale,
        )
        if not return_recv_hook:
            receive()
        return received, counts, handle, EventOverlap(EventHandle()), receive if return_recv_hook else None

    def low_latency_combine(
        self,
        x: Any,
        topk_idx: Any,
        topk_weights: Any,
        handle: tuple[Any, ...],
        use_logfmt: bool = False,
        zero_copy: bool = False,
        async_finish: bool = False,
        return_recv_hook: bool = False,
        out: Any = None,
        combine_wait_recv_cost_stats: Any = None,
    ) -> tuple[Any, EventOverlap, Callable[[], None] | None]:
        """Sends the experts' rows back, and adds up those of a token, multiplied by their weights, in the order of its
        slots. Collective.

        `x` has the layout of `low_latency_dispatch`'s result; `topk_idx` and `topk_weights` are those of this rank's
        own tokens. Slots of masked ranks are left out. A dispatch may have several combines, and on a GPU a combine may
        follow the next dispatch (StateError behind further ones). With `use_logfmt` rows cross in 10 bits for
        each element (LogFMT-10), if magnitudes below 1 make that shorter; on a GPU these are the sums of a token and
        rank, in groups of 128 elements, between ranks that both pass it and reach each other's memory.
        `combine_wait_recv_cost_stats` is as for `low_latency_dispatch`. Returns the sums ([tokens, hidden], or `out`), an
        event, and with `return_recv_hook` a function that receives. Raises as `dispatch` does.
        """
        if async_finish and return_recv_hook:
            raise ArgumentError(_NOT_TOGETHER)
        low = self._low_for(topk_idx)
        if isinstance(low, DeviceLowLatency):
            stats = combine_wait_recv_cost_stats
            if zero_copy:
                x = low.rows_to_combine(x)
            of_call = (x, topk_idx, topk_weights, handle, out, stats)
            if not async_finish:
                combined, hook = low.combine(of_call, not return_recv_hook, bool(use_logfmt))
                return combined, at_current_stream(self._stream.gpu, low.check), hook
            # The dispatch's number lies behind a tensor of the handle.
            given = (x, topk_idx, topk_weights, out, stats, tuple(handle))
            with self._stream.of_call(None, True, False, given) as call:
                combined, hook = low.combine(of_call, True, bool(use_logfmt))
                call.made(combined)
            return combined, call.event(low.check), hook
        if combine_wait_recv_cost_stats is not None:
            raise UnsupportedError("combine_wait_recv_cost_stats: on the host times of ranks are not kept")
        combined, receive = low.combine(x, topk_idx, topk_weights, handle, zero_copy, out, use_logfmt)
        if not return_recv_hook:
            receive()
        return combined, EventOverlap(EventHandle()), receive if return_recv_hook else None

    @plain
    def get_next_combine_buffer(self, handle: _high.Handle, hidden: int, dtype: Any) -> Any:
        """A tensor [received tokens, hidden] of a GPU to fill for the next `combine`.

        With a heap in the GPU's memory, several hosts, and several ranks on each, it is a view of this Buffer's memory,
        where the host's other ranks read the rows: `combine` copies none. With one host `combine` never copies rows. There is one such memory for all handles: the last call must
        be a dispatch (StateError), and the next combine takes this tensor. A dispatch that was refused does not count,
        also if its error is raised later. Buffers cannot be remade or destroyed while views exist (StateError).
        """
        if not is_on_gpu(handle.recv_src_idx):
            raise UnsupportedError("get_next_combine_buffer: combine copies rows of host memory")
        return self._of_high_on_gpu().next_combine_buffer(handle, hidden, dtype)

    @plain
    def get_next_low_latency_combine_buffer(self, handle: tuple[Any, ...]) -> Any:
        """An array to fill for the next `low_latency_combine` with `zero_copy=True`."""
        return self._low_for(handle[0]).next_combine_buffer(handle)

    def low_latency_update_mask_buffer(self, rank_to_mask: int, mask: bool = False) -> None:
        """Excludes a rank from low-latency calls, or includes it again; all ranks do so between the same calls.

        A rank that was late, or excluded between a call and its hook, returns by `connect_ranks`: StateError.
        """
        self._low_buffers().mask(rank_to_mask, mask)

    @plain
    def low_latency_query_mask_buffer(self, mask_status: Any) -> None:
        """Writes 1 for each masked rank, and 0 for others, into an integer array with one element for each rank."""
        must_take(mask_status, "mask_status", (self.group_size,))
        masked = self._low_buffers().masked()
        for rank in range(self.group_size):
            mask_status[rank] = int(masked[rank])

    def low_latency_clean_mask_buffer(self) -> None:
        """Includes all ranks again; StateError if one was late (see `connect_ranks`)."""
        for rank, masked in enumerate(self._low_buffers().masked()):
            if masked:
                self._low_buffers().mask(rank, False)

    def connect_ranks(self, ranks: list[int]) -> None:
        """Includes ranks again that were late, disconnected, or took part in no call. Collective over all ranks, those
        that stay masked too, between low-latency calls; all pass the same `ranks`.

        Calls that were sent and not received are abandoned: hooks and handles from before raise StateError. Afterwards
        the masked ranks are those of the first rank that is not in `ranks`, which has to take part. Buffers keep their
        place, so that graphs stay valid. Raises DifferError if `ranks` differ, and TimeoutError for a rank that does not
        make the call within twice `timeout`: one that was late may wait for the others first.
        """
        if self._low_on_gpu is not None:
            self._low_on_gpu.connect(ranks)
        else:
            self._of_low().connect(ranks)

    def disconnect_ranks(self, ranks: list[int]) -> None:
        """Excludes ranks from low-latency calls, until `connect_ranks` includes them. All other ranks make this call
        between the same low-latency calls; the excluded ones make no calls of low latency until then.
        """
        for rank in ranks:
            if rank != self.rank:
                self._low_buffers().mask(rank, True)
