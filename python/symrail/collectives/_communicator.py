"""The class `Communicator`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import symrail

from .. import _symrail
from .._freed import Freed
from .._refusals import refusals
from ..errors import ArgumentError, StateError
from ._group import Collected, P2POp
from ._plan import ExecutionPlan
from ._words import counts, current_stream, dtype_name, op_name


class Done:
    """A call that has been made: complete on the host; on a GPU, ordered in its stream."""

    def wait(self) -> bool:
        """Returns at once: later work of the stream is behind the call."""
        return True

    def is_completed(self) -> bool:
        """True."""
        return True


class Communicator(Freed):
    """Collectives of all PEs of the job, or of a team's, which are its ranks.

    Collective over all PEs. Without `team` it has all of them; with it each PE passes a team that it is in, and the
    communicators take `heap_bytes` of each PE's heap for it. Afterwards only the ranks make calls, all in the same
    order.

    `device` is "cpu" or "cuda"; by default "cuda" if the heap is in GPU memory. On a GPU calls are in the order of
    `stream`, by default of torch's current stream for its tensors, or of the default stream. They return at once, and
    can be captured in graphs once a call of the kind and size was made; `check` raises their failures, and the program
    keeps arrays until the stream has passed the call. `any_memory` takes 32 MiB of the heap, through which arrays of
    the GPU outside the heap are copied.

    With `compare`, ranks compare their calls and arguments before anything is sent: DifferError names a PE in another
    call, with different arguments, or whose call was refused, and later calls work. On the host this is the default. On
    a GPU it makes the host wait for the other ranks, and is off unless `compare` is True. Plans are always compared.
    Sends and receives are not.

    Raises ArgumentError before anything is sent, DifferError, TimeoutError (a rank is late, after SYMRAIL_TIMEOUT_S),
    OperationError (a rank has given up), HeapExhaustedError, StateError. After TimeoutError and OperationError the
    communicator cannot be used any more.
    """

    def __init__(
        self,
        team: symrail.Team | None = None,
        *,
        device: str | None = None,
        heap_bytes: int = 64 << 20,
        any_memory: bool = False,
        compare: bool | None = None,
    ) -> None:
        runtime = symrail.current()
        if device not in (None, "cpu", "cuda"):
            raise ArgumentError(f"device is {device!r}; there are cpu and cuda")
        self.device: str = device or ("cuda" if runtime.in_gpus else "cpu")
        """The device of its arrays: "cpu" or "cuda"."""
        self._team = symrail.team_world() if team is None else team
        self.rank: int = self._team.my_pe()
        """This PE's number among the ranks."""
        self.size: int = self._team.n_pes()
        """The number of ranks."""
        on_gpu = self.device == "cuda"
        bytes_of_team = None if team is None else heap_bytes
        compares = not on_gpu if compare is None else compare
        self._held = _symrail.Collectives(runtime, self._team, bytes_of_team, on_gpu, any_memory, compares)
        self._group: Collected | None = None

    def all_reduce_rms_norm(
        self,
        input: Any,
        residual: Any,
        weight: Any,
        epsilon: float = 1e-6,
        *,
        out: Any = None,
        residual_out: Any = None,
        scale: Any = None,
        scales: Any = None,
        algorithm: str | None = None,
        stream: Any = None,
    ) -> Done:
        """Adds up all ranks' rows and `residual`, and normalises the sum, in one launch on GPUs of one host:

            residual_out = residual + the sum of all ranks' input
            out = residual_out / sqrt(mean(residual_out**2) + epsilon) * weight

        `input` has rows of as many elements as `weight`, of float16, bfloat16 or float32, in any memory of the GPU;
        `residual` is the same on all ranks, or None; of pushed rows that of the rank that adds them counts. By default
        `out` is `input`, and `residual_out` is `residual`. `out` is of the same type; or FP8 (e4m3): divided by
        `scale`, one float32; or, with `scales`, by one float32 for each 128 elements of a row (not of float32), which
        the call stores there. `algorithm` is "packets", "pushed", or the faster one. All ranks get the same bits.
        """
        with self._arguments("all_reduce_rms_norm"):
            out = input if out is None else out
            if residual_out is None:
                if residual is None:
                    raise ArgumentError("all_reduce_rms_norm without residual takes residual_out")
                residual_out = residual
            if scale is not None and scales is not None:
                raise ArgumentError("all_reduce_rms_norm takes scale or scales")
            stream = current_stream(input) if stream is None else stream
        self._held.all_reduce_rms_norm(
            input, residual, residual_out, weight, out, scale, scales, epsilon, algorithm, stream
        )
        return Done()

    @contextmanager
    def _arguments(self, call: str) -> Iterator[None]:
        """The other ranks learn of an exception in the block, and that this one does not make the call."""
        with refusals(partial(self._held.tell, call)):
            if self._group is not None:
                raise StateError(f"{call} inside of a group(), which takes sends and receives alone")
            yield

    def _run(
        self,
        collective: str,
        input: Any,
        output: Any,
        *,
        op: Any = "sum",
        root: int = 0,
        dtype: Any = None,
        algorithm: str | ExecutionPlan | None = None,
        stream: Any = None,
    ) -> Done:
        with self._arguments(collective):
            name = algorithm.name if isinstance(algorithm, ExecutionPlan) else algorithm
            if isinstance(algorithm, ExecutionPlan) and name is None:
                raise ArgumentError("algorithm is a plan that was not given to add_plan()")
            stream = current_stream(input) if stream is None else stream
            op, dtype = op_name(op), dtype_name(dtype)
        self._held.run(collective, input, output, op, root, dtype, name, stream)
        return Done()

    def all_reduce(
        self,
        input: Any,
        output: Any = None,
        op: Any = "sum",
        *,
        dtype: Any = None,
        algorithm: str | ExecutionPlan | None = None,
        stream: Any = None,
    ) -> Done:
        """Combines all ranks' `input` into `output` on all; without `output` in place.

        `op` is one of `ReduceOp`, its name, or torch's. `dtype` reinterprets the elements, for example as
        "float8_e4m3b15" in arrays of uint8. `algorithm` is "one_shot", "two_phase", "direct", "one_round",
        "hierarchical" or "by_puts", on GPUs also "packets" or "pushed", an execution plan that was added, or its name;
        by default the one that suits best. Collective.
        """
        output = input if output is None else output
        return self._run("all_reduce", input, output, op=op, dtype=dtype, algorithm=algorithm, stream=stream)

    def all_gather(
        self,
        output: Any,
        input: Any,
        *,
        algorithm: str | ExecutionPlan | None = None,
        stream: Any = None,
    ) -> Done:
        """Copies all ranks' `input` to `output` on all, in the order of ranks. `input` may be its own part of
        `output`. Collective."""
        return self._run("all_gather", input, output, algorithm=algorithm, stream=stream)

    all_gather_into_tensor = all_gather

    def reduce_scatter(
        self,
        output: Any,
        input: Any,
        op: Any = "sum",
        *,
        dtype: Any = None,
        algorithm: str | ExecutionPlan | None = None,
        stream: Any = None,
    ) -> Done:
        """Combines all ranks' `input`; each rank gets its part in `output`, which may be that part of `input`.
        Collective."""
        return self._run("reduce_scatter", input, output, op=op, dtype=dtype, algorithm=algorithm, stream=stream)

    reduce_scatter_tensor = reduce_scatter

    def broadcast(self, input: Any, src: int = 0, *, output: Any = None, stream: Any = None) -> Done:
        """Copies `input` of rank `src` to `output` on all, or in place. Collective."""
        return self._run("broadcast", input, input if output is None else output, root=src, stream=stream)

    def reduce(
        self,
        input: Any,
        dst: int = 0,
        op: Any = "sum",
        *,
        output: Any = None,
        dtype: Any = None,
        stream: Any = None,
    ) -> Done:
        """Combines all ranks' `input` into `output` on rank `dst`, or in place. Others pass an `output` of the same
        size, which stays unchanged. Collective."""
        output = input if output is None else output
        return self._run("reduce", input, output, op=op, root=dst, dtype=dtype, stream=stream)

    def all_to_all(
        self,
        output: Any,
        input: Any,
        *,
        algorithm: str | ExecutionPlan | None = None,
        stream: Any = None,
    ) -> Done:
        """Copies part `i` of `input` to rank `i`, where it becomes part `rank` of `output`, which may be `input`.
        Collective."""
        return self._run("all_to_all", input, output, algorithm=algorithm, stream=stream)

    def all_to_all_v(
        self,
        output: Any,
        input: Any,
        output_splits: Sequence[int],
        input_splits: Sequence[int],
        *,
        stream: Any = None,
    ) -> Done:
        """As `all_to_all`, with parts of any numbers of elements: to each rank, and from each. The splits are sequences
        of integers, such as lists, arrays and tensors. `input` and `output` do not overlap. Collective."""
        with self._arguments("all_to_all_v"):
            stream = current_stream(input) if stream is None else stream
            sent, received = counts("input_splits", input_splits), counts("output_splits", output_splits)
        self._held.all_to_all_v(input, output, sent, received, stream)
        return Done()

    def all_to_all_single(
        self,
        output: Any,
        input: Any,
        output_split_sizes: Sequence[int] | None = None,
        input_split_sizes: Sequence[int] | None = None,
        *,
        stream: Any = None,
    ) -> Done:
        """As `all_to_all_v`, with parts of dimension 0: the splits count rows, and are even by default. As torch has
        it. Collective."""
        with self._arguments("all_to_all_single"):
            sent = self._rows("input", input, input_split_sizes)
            received = self._rows("output", output, output_split_sizes)
        if input_split_sizes is None and output_split_sizes is None:
            return self.all_to_all(output, input, stream=stream)
        return self.all_to_all_v(output, input, received, sent, stream=stream)

    def _rows(self, role: str, array: Any, splits: Any) -> list[int]:
        """The numbers of elements for splits of an array's rows."""
        shape = [int(length) for length in array.shape]
        if not shape:
            raise ArgumentError(f"{role} has no dimension whose parts could be sent")
        rows, row = shape[0], math.prod(shape[1:])
        split = [] if splits is None else counts(f"{role}_split_sizes", splits)
        if not split and rows % self.size:
            raise ArgumentError(f"{role} has {rows} rows, which do not divide among {self.size} ranks; give the splits")
        split = split or [rows // self.size] * self.size
        if len(split) != self.size or sum(split) != rows:
            raise ArgumentError(f"{role} has {rows} rows, and its splits are {split} among {self.size} ranks")
        return [count * row for count in split]

    def _transfer(self, receives: bool, rank: int, array: Any, stream: Any) -> Done:
        stream = current_stream(array) if stream is None else stream
        if self._group is None:
            self._held.exchange([(receives, rank, array)], stream)
        else:
            self._group.transfers.append((receives, rank, array))
            self._group.stream = stream if self._group.stream is None else self._group.stream
        return Done()

    def send(self, input: Any, dst: int, *, stream: Any = None) -> Done:
        """Sends to rank `dst`: the n-th send from a rank to another matches the n-th receive there, of the same
        size."""
        return self._transfer(False, dst, input, stream)

    def recv(self, output: Any, src: int, *, stream: Any = None) -> Done:
        """Receives from rank `src`."""
        return self._transfer(True, src, output, stream)

    isend, irecv = send, recv

    @contextmanager
    def group(self) -> Iterator[None]:
        """Performs the sends and receives of the block all at once, at its end, so that none waits for another one.
        On a GPU in the order of the first one's stream."""
        if self._group is not None:
            raise StateError("a group() inside of another one")
        self._group = collected = Collected()
        try:
            yield
        finally:
            self._group = None
        if collected.transfers:
            self._held.exchange(collected.transfers, collected.stream)

    def batch_isend_irecv(self, ops: Sequence[P2POp]) -> list[Done]:
        """Sends and receives, all at once."""
        with self.group():
            return [self._transfer(op.receives, op.peer, op.tensor, None) for op in ops]

    def barrier(self, *, timeout: float | None = None, stream: Any = None) -> None:
        """Completes this PE's puts, and waits for all ranks; with `stream`, the stream waits. Collective."""
        self._team.barrier(timeout=timeout, stream=stream)

    def explain(
        self, collective: str, nbytes: int, *, in_place: bool = False, root: int = 0, algorithm: str | None = None
    ) -> list[str]:
        """The choice for a message of so many bytes (of the input; of an all-gather's output) with the reason, and
        why each added plan does not suit; `root` is that of a broadcast or a reduction. Local."""
        return self._held.explain(collective, nbytes, in_place, root, algorithm)

    def add_plan(self, plan: ExecutionPlan) -> str:
        """Adds a plan, which has precedence over built-in algorithms if it suits, or is used by its name, which this
        returns. Raises ArgumentError with file, field, rank, block and operation if it is wrong, and DifferError if
        another rank's is wrong or another one: then no rank has it. Collective."""
        with self._arguments("add_plan"):
            text, path, result = plan.text, plan.path, bool(plan.result)
        plan.name = self._held.add_plan(text, path, result)
        return plan.name

    def check(self) -> None:
        """Raises the failures of calls on streams. Does not wait. Local."""
        self._held.check()

    def free(self) -> None:
        """Frees the memory. Later calls raise StateError. Ranks that are in another call get a DifferError there.
        Collective over all PEs."""
        self._held.free()

    def __repr__(self) -> str:
        return f"<symrail.collectives.Communicator: rank {self.rank} of {self.size}, {self.device}>"
