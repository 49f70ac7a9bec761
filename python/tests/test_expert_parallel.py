"""symrail.ep: dispatch and combine against NumPy, and the unchanged example of docs/ep.md."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import PROGRAMS, environment, finish, launcher, python_with_torch, run, start
from symrail.errors import ArgumentError, UnsupportedError

PAGE = Path(__file__).parents[2] / "docs" / "ep.md"
HOSTS = ("--hosts", "2", "--rails", "2")


@pytest.mark.parametrize(
    "what, pes, options",
    [
        ("high", 2, ()),
        ("high", 3, ()),
        ("high", 4, HOSTS),
        ("low", 2, ()),
        ("low", 3, ()),
        ("low", 4, HOSTS),
        ("refuse", 3, ()),
        ("refuse", 2, HOSTS),
        ("shrink", 3, ()),
        ("shrink", 4, HOSTS),
    ],
)
def test_equals_numpy(what: str, pes: int, options: tuple[str, ...]) -> None:
    out = run("expert_parallel.py", what, pes=pes, options=options)
    assert all(f"PE {pe} is well" in out for pe in range(pes))


@pytest.mark.parametrize("plan", ["no_expansion", "expansion", "contraction", "fault"])
def test_ranks_leave_and_take_part_again(plan: str) -> None:
    out = run("elastic.py", plan, pes=4, options=HOSTS if plan == "contraction" else ())
    assert all(f"PE {pe} is well" in out for pe in range(4))


@pytest.mark.parametrize("options", [(), HOSTS])
@pytest.mark.parametrize("what", ["calls", "members", "late", "absent", "left"])
def test_groups_that_are_smaller_than_the_job(what: str, options: tuple[str, ...]) -> None:
    command = [launcher(), "run", "-n", "4", *options, "--", sys.executable, str(PROGRAMS / "groups.py"), what]
    (ended,) = finish([start(command)])
    assert (ended.returncode, ended.stderr) == (0, ""), ended
    assert all(f"PE {pe} is well" in ended.stdout for pe in range(4)), ended


@pytest.mark.parametrize("what", ["fails", "differ", "heaps", "captures"])
def test_ranks_of_a_group_that_are_not_alike(what: str) -> None:
    out = run("groups.py", what, pes=4)
    assert all(f"PE {pe} is well" in out for pe in range(4)), out


def test_a_trace_has_the_job_of_the_process(tmp_path: Path) -> None:
    out = run("groups.py", "late", pes=4, SYMRAIL_TRACE=str(tmp_path / "trace.json"))
    assert all(f"PE {pe} is well" in out for pe in range(4)), out
    events = json.loads((tmp_path / "trace.json").read_text())
    named = sorted(event["pid"] for event in events if event["name"] == "process_name")
    # The PE that ends the file names itself twice.
    assert named == [0, 0, 1, 2, 3], events


def test_a_forked_process_is_another_one_in_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    from symrail.ep import _groups

    monkeypatch.setitem(_groups._jobs, "of the parent", None)
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writes, _groups._PROCESS + bytes([len(_groups._jobs)]))
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writes)
    with open(reads, "rb") as told:
        name = told.read()
    assert name[:8] != _groups._PROCESS and name[8:] == bytes([0])


def test_process_groups_of_torch_without_a_job(tmp_path: Path) -> None:
    program = [python_with_torch(), str(PROGRAMS / "groups.py"), "torch", str(tmp_path / "store")]
    ended = finish([start([*program, str(rank)]) for rank in range(4)])
    assert all(one.returncode == 0 and f"PE {rank} is well" in one.stdout for rank, one in enumerate(ended)), ended


@pytest.mark.parametrize("options", [(), HOSTS])
def test_takes_tensors(options: tuple[str, ...]) -> None:
    command = [launcher(), "run", "-n", "4", *options, "--", python_with_torch()]
    (ended,) = finish([start([*command, str(PROGRAMS / "expert_parallel_torch.py")])])
    assert ended.returncode == 0, ended
    assert ended.stdout.count("is well") == 4, ended


@pytest.mark.parametrize("options", [(), HOSTS])
def test_elastic_buffer(options: tuple[str, ...]) -> None:
    program = [python_with_torch(), str(PROGRAMS / "elastic_buffer.py"), "cpu"]
    (ended,) = finish([start([launcher(), "run", "-n", "4", *options, "--", *program])])
    assert ended.returncode == 0, ended
    assert ended.stdout.count("is well") == 4, ended


@pytest.mark.parametrize(
    "pes, options, more", [(1, (), ()), (2, (), ()), (4, (), ()), (4, HOSTS, ()), (4, HOSTS, ("groups",))]
)
def test_other_calls_of_the_elastic_buffer(pes: int, options: tuple[str, ...], more: tuple[str, ...]) -> None:
    program = [python_with_torch(), str(PROGRAMS / "elastic_calls.py"), "cpu", "6", *more]
    (ended,) = finish([start([launcher(), "run", "-n", str(pes), *options, "--", *program])])
    assert ended.returncode == 0, ended
    assert ended.stdout.count("is well") == pes, ended


def test_calls_in_the_order_of_deepeps_test_of_two_hosts() -> None:
    program = [python_with_torch(), str(PROGRAMS / "internode_order.py")]
    (ended,) = finish([start([launcher(), "run", "-n", "4", *HOSTS, "--", *program])])
    assert ended.returncode == 0 and ended.stdout.count("is well after") == 4, ended


def test_tokens_for_hosts_are_those_of_eight_ranks() -> None:
    from symrail.ep._high import for_hosts

    in_rank = np.random.default_rng(5).random((40, 24)) < 0.1
    found = for_hosts(in_rank, "int32")
    assert found.dtype == "int32"
    assert found.tolist() == [int(in_rank[:, first : first + 8].any(axis=1).sum()) for first in (0, 8, 16)]
    assert all(for_hosts(in_rank[:, :ranks], "int32") is None for ranks in (1, 8, 12))


def test_tensors_for_neighbours_on_a_gpu_behind_a_wait_that_timed_out() -> None:
    program = [python_with_torch(), str(PROGRAMS / "pipeline_on_gpu.py")]
    (ended,) = finish([start(program)])
    assert (ended.returncode, ended.stdout) == (0, "well\n"), ended


def test_calls_of_engines_on_two_buffers_at_once() -> None:
    """Long forms run on GPUs: 1,000 steps."""
    command = [launcher(), "run", "-n", "2", "--", python_with_torch(), str(PROGRAMS / "engines.py"), "12", "cpu"]
    (ended,) = finish([start(command)])
    assert ended.returncode == 0, ended
    assert ended.stdout.count("is well after 12 steps") == 2, ended


def test_example(tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n(# experts\.py.*?)```", PAGE.read_text(), re.DOTALL)
    program = tmp_path / "experts.py"
    program.write_text(example)
    (ended,) = finish([start([launcher(), "run", "-n", "4", *HOSTS, "--", sys.executable, str(program)])])
    assert ended.returncode == 0, ended
    assert len(re.findall(r"^PE \d: \d+ tokens came$", ended.stdout, re.MULTILINE)) == 4, ended


def test_hints_are_large_enough_for_gpus_where_one_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    from symrail.ep import Config, ElasticBuffer, _groups

    row, tokens = 14336, 4096
    monkeypatch.delenv("SYMRAIL_HEAP_KIND", raising=False)
    for name in ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"):
        monkeypatch.delenv(name, raising=False)
    hint = Config().get_nvl_buffer_size_hint
    on_host = hint(row, 8)
    assert on_host < 1.1 * 4 * 8 * 256 * row
    torch = SimpleNamespace(cuda=SimpleNamespace(is_initialized=lambda: True))
    monkeypatch.setitem(sys.modules, "torch", torch)
    # One host: each rank offers its tokens, and those of all others return to it. Several: rows cross through the proxy.
    assert tokens * 8 * row < hint(row, 8) < 1.1 * tokens * 8 * row
    assert hint(row, 16) > 3 * tokens * 16 * row
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    assert hint(row, 2) > (2 + 1 + 2) * tokens * row
    monkeypatch.setattr("symrail.ep._elastic.exchange", lambda *_: (0, 64, None))
    assert ElasticBuffer.get_buffer_size_hint(True, 1000, row // 2) > (64 + 16 + 64) * 1000 * row
    monkeypatch.setenv("SYMRAIL_HEAP_KIND", "host")
    assert hint(row, 8) == on_host
    assert not _groups.has_heap_for_gpu()


def test_a_buffer_joins_with_the_heap_that_is_set_if_that_is_larger(monkeypatch: pytest.MonkeyPatch) -> None:
    import symrail
    from symrail.ep import _groups

    joined: list[int] = []
    monkeypatch.setattr(symrail, "init", lambda *, heap_bytes, **_: joined.append(heap_bytes))
    monkeypatch.setattr(symrail, "current", lambda: None)
    # Each rank joins with the largest heap that one of them wants.
    others = lambda mine: [mine, (*mine[:4], 5 << 30, *mine[5:])]
    monkeypatch.setattr(_groups, "exchange", lambda *_: (0, 2, others))
    monkeypatch.setattr(_groups, "_has_all_processes", lambda *_: True)
    monkeypatch.setattr(_groups, "_joined", None)
    for size in (None, "1M", "3G"):
        monkeypatch.delenv("SYMRAIL_HEAP_SIZE", raising=False)
        if size is not None:
            monkeypatch.setenv("SYMRAIL_HEAP_SIZE", size)
        _groups.join(None, None, 100 << 20, None)
        _groups.join(True, None, 100 << 20, 1.0)
    assert joined == [100 << 20, 5 << 30, 100 << 20, 5 << 30, 3 << 30, 5 << 30]


def test_sizes_are_printed() -> None:
    command = [sys.executable, "-m", "symrail.ep", "--ranks", "8", "--tokens", "128", "--experts", "256"]
    told = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=60)
    assert told.returncode == 0, told
    high, low, both = (int(line.split()[-1].replace(",", "")) for line in told.stdout.splitlines())
    # Two slots at both ends for each of 8 ranks: 128 tokens of bfloat16, and 16 returned rows for each.
    assert 4 * 8 * (128 + 2048) * 14336 < low < 1.1 * 4 * 8 * (128 + 2048) * 14336
    assert 4 * 8 * 256 * 14336 < high < 1.1 * 4 * 8 * 256 * 14336 and both > high + low


def test_tensors_of_a_gpu_are_refused_by_name():
    from symrail._gpu import is_on_gpu, reached
    from symrail.ep._on_gpu import address

    def tensor(**changes):
        given = dict(
            device=SimpleNamespace(type="cuda", index=1),
            shape=(3, 16),
            dtype="torch.bfloat16",
            is_contiguous=lambda: True,
            data_ptr=lambda: 4096,
        )
        return SimpleNamespace(**{**given, **changes})

    assert address(tensor(), "x", 1, "bfloat16", (3, 16)) == 4096
    for wrong, named in (
        (tensor(device=SimpleNamespace(type="cuda", index=0)), "cuda:1"),
        (tensor(device=SimpleNamespace(type="cpu", index=None)), "cuda:1"),
        (tensor(shape=(4, 16)), r"\(4, 16\)"),
        (tensor(dtype="torch.float32"), "float32"),
        (tensor(is_contiguous=lambda: False), "contiguous"),
        (np.zeros((3, 16)), "cuda:1"),
    ):
        with pytest.raises(ArgumentError, match=named):
            address(wrong, "x", 1, "bfloat16", (3, 16))
    assert is_on_gpu(tensor()) and not is_on_gpu(np.zeros(3))
    with pytest.raises(UnsupportedError, match="heap"):
        reached(None)


def test_an_event_raises_what_went_wrong_before_it() -> None:
    from symrail.ep import EventOverlap
    from symrail.ep._events import EventHandle
    from symrail.errors import TimeoutError as Late

    def check() -> None:
        raise Late("rank 1 is late")

    EventOverlap().synchronize()
    EventOverlap(EventHandle()).synchronize()
    with pytest.raises(Late):
        EventOverlap(EventHandle(check)).synchronize()


def test_events_of_low_latency_on_a_gpu_raise_what_went_wrong() -> None:
    from symrail.ep import Buffer
    from symrail.ep._device import DeviceLowLatency
    from symrail.ep._stream import CommunicationStream
    from symrail.errors import TimeoutError as Late

    class Launched(DeviceLowLatency):
        """Calls in progress on a GPU, in which a rank will be late."""

        def __init__(self) -> None:
            pass

        def dispatch(self, *_: Any) -> Any:
            return None, None, (), lambda: None

        def combine(self, *_: Any) -> Any:
            return None, lambda: None

        def check(self) -> None:
            raise Late("rank 1 is late")

    buffer, low = Buffer.__new__(Buffer), Launched()
    buffer._low_for = lambda x: low  # type: ignore[method-assign]
    buffer._stream = CommunicationStream()
    for hook in (False, True):
        *_, dispatched, _ = buffer.low_latency_dispatch(None, None, 1, 1, return_recv_hook=hook)
        _, combined, _ = buffer.low_latency_combine(None, None, None, (), return_recv_hook=hook)
        for event in (dispatched, combined):
            event.current_stream_wait()
            with pytest.raises(Late):
                event.synchronize()


def test_a_hook_has_no_event_behind_it() -> None:
    from symrail.ep import Buffer

    buffer = Buffer.__new__(Buffer)
    for call in (
        lambda **how: buffer.low_latency_dispatch(None, None, 1, 1, **how),
        lambda **how: buffer.low_latency_combine(None, None, None, (), **how),
    ):
        with pytest.raises(ArgumentError, match="async_finish"):
            call(async_finish=True, return_recv_hook=True)


def test_buffers_that_cannot_be_made_have_no_size() -> None:
    from symrail.ep import Buffer
    from symrail.errors import ArgumentError

    # The figures of docs/ep.md, in which returned rows are the most.
    assert Buffer.get_low_latency_rdma_size_hint(128, 7168, 8, 256) > 4 * 8 * 128 * 16 * 2 * 7168
    for tokens, hidden, ranks, experts in ((1 << 62, 7168, 8, 256), (128, 1 << 63, 8, 256), (128, 7168, 8, 255)):
        with pytest.raises(ArgumentError):
            Buffer.get_low_latency_rdma_size_hint(tokens, hidden, ranks, experts)


def test_what_a_graph_cannot_hold_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    from symrail.ep._device import DeviceLowLatency
    from symrail.errors import StateError

    captures = SimpleNamespace(cuda=SimpleNamespace(is_current_stream_capturing=lambda: True))
    monkeypatch.setitem(sys.modules, "torch", captures)
    low = DeviceLowLatency.__new__(DeviceLowLatency)
    low.held, low.shape = None, None
    with pytest.raises(StateError, match="before"):
        low.prepare(1, 16, 1, 1)


class Tensor:
    """What is used of a tensor in a GPU's memory."""

    addresses = count(4096, 1 << 20)

    def __init__(self, shape: tuple[int, ...], dtype: str, device: Any = None, at: int | None = None) -> None:
        self.shape, self.dtype, self.device = shape, dtype, SimpleNamespace(type="cuda", index=0)
        self.at = next(self.addresses) if at is None else at

    def data_ptr(self) -> int:
        return self.at

    def is_contiguous(self) -> bool:
        return True

    def is_neg(self) -> bool:
        return False

    is_conj = is_neg

    def narrow(self, _: int, start: int, length: int) -> "Tensor":
        return Tensor((length,), self.dtype, at=self.at + start)

    def view(self, dtype: str) -> "Tensor":
        return Tensor(self.shape, dtype, at=self.at)

    def storage_offset(self) -> int:
        return 0

    def as_strided(self, sizes: tuple[int, ...], strides: tuple[int, ...], offset: int) -> "Tensor":
        return Tensor(sizes, self.dtype, at=self.at)


class Native:
    """The calls of the native module that one call of Python makes."""

    def __init__(self, *_: Any) -> None:
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *_: self.calls.append(name)


class NativeLowLatency(Native):
    """Native calls that make tensors and launch nothing."""

    def dispatch(self, stream: int, receives: bool, of: tuple[Any, ...], *arguments: Any) -> Any:
        from symrail import _symrail

        made = _symrail.ep_low_latency_dispatch_tensors(*of, *arguments)
        if made is None:
            return None
        self.calls.append("dispatch")
        return made

    def combine(
        self, stream: int, receives: bool, encodes: bool, held: list[int], of: tuple[Any, ...], *arguments: Any
    ) -> Any:
        from symrail import _symrail

        sums, ranges, _, to = _symrail.ep_low_latency_combine_tensors(*of, *arguments)
        if ranges not in held:
            return None, ranges, to
        self.calls.append("combine")
        return sums, ranges, to


def low_latency_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Native, dict[str, Any]]:
    """Low latency of 2 ranks whose kernels are not launched, and the first arguments of a dispatch, in their order."""
    from symrail.ep import _device, _on_gpu

    names = ("bfloat16", "float32", "int32", "int64", "bool", "uint8", "float8_e4m3fn")
    native = NativeLowLatency()
    fake = SimpleNamespace(
        **{name: name for name in names},
        cuda=SimpleNamespace(is_current_stream_capturing=lambda: False),
        empty_strided=lambda sizes, strides, dtype, device: Tensor(sizes, dtype),
    )
    monkeypatch.setitem(sys.modules, "torch", fake)
    monkeypatch.setattr(_on_gpu, "_NAMES", {name: name for name in names})
    monkeypatch.setattr(_device, "current_stream", lambda gpu: 7)
    monkeypatch.setattr(_device._symrail, "EpDeviceLowLatency", lambda *_: native)
    low = _device.DeviceLowLatency(SimpleNamespace(n_pes=lambda: 2, device=0), False, None)  # type: ignore[arg-type]
    given = dict(x=Tensor((3, 512), "bfloat16"), topk_idx=Tensor((3, 2), "int64"), most_tokens=4, experts=6, stats=None)
    return low, native, given


def test_low_latency_calls_on_a_gpu_are_one_native_call_each(monkeypatch: pytest.MonkeyPatch) -> None:
    low, native, given = low_latency_on_a_gpu(monkeypatch)
    weights = Tensor((3, 2), "float32")
    for fp8, power, packs, words, dtype in (
        (False, False, False, 0, ""),
        (True, False, False, 4, "float32"),
        (True, True, True, 1, "int32"),
    ):
        native.calls.clear()
        received, counts, handle, _ = low.dispatch((*given.values(), None, fp8, power, packs))
        rows = received
        if fp8:
            rows, scales = received
            assert (scales.shape, scales.dtype) == ((3, 8, words), dtype)
        assert rows.shape == (3, 8, 512) and counts.shape == (3,)
        # DeepEP's handle: the tokens' numbers, ranges of ranks, and three numbers.
        assert (handle[0].shape, handle[0].dtype) == ((3, 8), "int32")
        assert (handle[1].shape, handle[1].dtype) == ((3, 2), "int64") and handle[2:] == (4, 512, 6)
        x = Tensor((3, 8, 512), "bfloat16")
        # A dispatch may have several combines, or none.
        for _ in range(2):
            low.combine((x, given["topk_idx"], weights, handle, None, None))
        assert native.calls == ["dispatch", "combine", "combine"]


def test_where_late_ranks_are_masked_only_the_buffer_itself_is_collective(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks may leave before the first call, and before `destroy`."""
    from symrail.ep import _device

    _, native, given = low_latency_on_a_gpu(monkeypatch)
    made: list[Any] = []

    def reserved(*arguments: Any) -> NativeLowLatency:
        made.append(arguments[1])
        return native

    def anew(*_: Any) -> NativeLowLatency:
        raise AssertionError("collective")

    monkeypatch.setattr(native, "shape", lambda *shape: made.append(shape) or True, raising=False)
    monkeypatch.setattr(anew, "reserved", reserved, raising=False)
    monkeypatch.setattr(_device._symrail, "EpDeviceLowLatency", anew)
    low = _device.DeviceLowLatency(SimpleNamespace(n_pes=lambda: 2, device=0), True, None, 1 << 20)  # type: ignore[arg-type]
    low.dispatch((*given.values(), None, False, False, False))
    low.free()
    assert made == [1 << 20, (4, 512, 6, 2)] and native.calls == ["dispatch"]


def test_low_latency_calls_on_a_gpu_that_are_out_of_turn_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from symrail.errors import ArgumentError, StateError

    low, native, given = low_latency_on_a_gpu(monkeypatch)
    x, weights = Tensor((3, 8, 512), "bfloat16"), Tensor((3, 2), "float32")

    def sent() -> Any:
        return low.dispatch((*given.values(), None, False, False, False), False)

    def combine(handle: Any, receives: bool = True) -> Any:
        return low.combine((x, given["topk_idx"], weights, handle, None, None), receives)[1]

    def refused(named: str, call: Any, *arguments: Any) -> None:
        calls = list(native.calls)
        with pytest.raises(StateError, match=named):
            call(*arguments)
        assert native.calls == calls

    *_, first, hook = sent()
    refused("hook of the last one was not called", sent)
    refused("before the dispatch was received", combine, first)
    hook()
    refused("a second call", hook)
    received, receive = hook, combine(first, receives=False)
    refused("hook of the last one was not called", combine, first)
    # The next dispatch may be sent and received meanwhile; the tokens of both are there.
    *_, second, hook = sent()
    # An earlier call's hook does not receive a later call.
    refused("a second call", received)
    receive()
    refused("a second call", receive)
    later = combine(first, receives=False)
    refused("a second call", receive)
    later()
    hook()
    combine(first)
    combine(second)
    *_, third, hook = sent()
    hook()
    refused("memory of earlier ones|no low_latency_dispatch", combine, first)
    combine(second)
    combine(third)
    with pytest.raises(ArgumentError, match="multiple of 512"):
        odd = dict(given, x=Tensor((3, 128), "bfloat16"))
        low.dispatch((*odd.values(), None, True, True, True))


def test_a_dispatch_does_not_overwrite_what_the_hook_of_a_combine_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory holds two dispatches: which rows return for the tokens of each, too."""
    from symrail.errors import StateError

    low, native, given = low_latency_on_a_gpu(monkeypatch)
    x, weights = Tensor((3, 8, 512), "bfloat16"), Tensor((3, 2), "float32")

    def dispatch() -> Any:
        return low.dispatch((*given.values(), None, False, False, False))[2]

    def combine(handle: Any) -> Any:
        return low.combine((x, given["topk_idx"], weights, handle, None, None), False)[1]

    def refused() -> None:
        calls = list(native.calls)
        with pytest.raises(StateError, match="hook of a low_latency_combine was not called"):
            dispatch()
        assert native.calls == calls

    # Of the last dispatch but one: not even the next may be sent. Of the last one: the next, but not the second.
    first, second = dispatch(), dispatch()
    hook = combine(first)
    refused()
    hook()
    third = dispatch()
    hook = combine(third)
    fourth = dispatch()
    refused()
    hook()
    dispatch()
    # The handle of the dispatch before is still there.
    combine(fourth)
    refused()
    # Ranks that are connected again have abandoned it.
    low.connect([])
    dispatch()
    dispatch()


def test_what_a_call_on_the_communication_stream_reads_is_kept_until_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch may reuse a tensor that the caller drops: on the stream of its allocation, unless a call has recorded it."""
    from contextlib import nullcontext

    from symrail.ep import ElasticBuffer, _stream
    from symrail.ep._elastic import EPHandle
    from symrail.ep._high import Handle

    kept: list[str] = []

    class OnGpu:
        def __init__(self, name: str) -> None:
            self.name, self.device = name, SimpleNamespace(type="cuda", index=0)

        def record_stream(self, stream: Any) -> None:
            kept.append(f"{self.name} {stream}")

    class Comm:
        def wait_stream(self, stream: Any) -> None:
            pass

        def __str__(self) -> str:
            return "comm"

    fake = SimpleNamespace(cuda=SimpleNamespace(current_stream=lambda: "callers", stream=lambda stream: nullcontext()))
    monkeypatch.setitem(sys.modules, "torch", fake)
    of_handle = ("slots", "indices", "metadata", "buffer_slots", "ends", "of_ranks", "counts", "sources")
    handle = EPHandle.__new__(EPHandle)
    handle.slots, handle.topk_idx, handle.recv_src_metadata, handle.dst_buffer_slot_idx = map(OnGpu, of_handle[:4])
    handle.psum_num_recv_tokens_per_expert, handle.psum_num_recv_tokens_per_scaleup_rank = map(OnGpu, of_handle[4:6])
    handle.num_unaligned_recv_tokens_per_expert = OnGpu("counts")
    handle.routes = Handle(None, OnGpu("sources"), None, None, None)  # type: ignore[arg-type]

    class Launched(Exception):
        """Raised when a part of the call's work is under way."""

    def launched(*_: Any, **__: Any) -> Any:
        raise Launched

    buffer = ElasticBuffer.__new__(ElasticBuffer)
    stream = _stream.CommunicationStream()
    stream.stream = Comm()
    buffer.buffer = SimpleNamespace(_joined=lambda: SimpleNamespace(device=0), _stream=stream)  # type: ignore[assignment]
    buffer.num_max_tokens_per_rank = buffer.rank_idx = 1
    monkeypatch.setattr(buffer, "get_theoretical_num_sms", launched)
    monkeypatch.setattr(buffer, "_again", launched)

    def keeps(call: Any, names: tuple[str, ...], *arguments: Any, **named: Any) -> None:
        kept.clear()
        with pytest.raises(Launched):
            call(*arguments, **named, async_with_compute_stream=True)
        assert sorted(kept) == sorted(f"{name} comm" for name in names)

    x, scales, topk, weights, stats = map(OnGpu, ("x", "scales", "topk", "weights", "stats"))
    all_given = ("x", "scales", "topk", "weights", "stats")
    keeps(buffer.dispatch, all_given, (x, scales), topk, weights, stats, num_experts=4)
    handle.do_expand = False
    keeps(buffer.dispatch, ("x", "weights", *of_handle), x, topk_weights=weights, handle=handle)
    handle.do_expand = True
    x.new_zeros = launched  # type: ignore[attr-defined]
    x.shape = (1, 1)  # type: ignore[attr-defined]
    handle.slots.shape, handle.num_recv_tokens = (1, 1), 1
    keeps(buffer.combine, ("x", "weights", "bias", *of_handle), x, handle, weights, (OnGpu("bias"),))


MOST_PYTHON_CALLS, MOST_C_CALLS = 21, 10
HOST_WORK = """
import sys
from collections import Counter
from types import SimpleNamespace

import torch
from torch.overrides import TorchFunctionMode

from symrail import _symrail
from symrail.ep import Buffer, _buffer, _device, _on_gpu
from symrail.ep._stream import CommunicationStream
from symrail.errors import ArgumentError


class Seen(TorchFunctionMode):
    count = 0

    def __torch_function__(self, function, types, arguments=(), named=None):
        Seen.count += 1
        return function(*arguments, **(named or {}))


class Native:
    def __init__(self, *_):
        pass

    def dispatch(self, stream, receives, of, *arguments):
        made = _symrail.ep_low_latency_dispatch_tensors(*of, *arguments)
        return made

    def combine(self, stream, receives, encodes, held, of, *arguments):
        sums, ranges, _, to = _symrail.ep_low_latency_combine_tensors(*of, *arguments)
        assert ranges in held
        return sums, ranges, to


_on_gpu.reached = lambda gpu: None
_buffer.is_on_gpu, _device.current_stream = (lambda array: True), lambda gpu: 7
_device._symrail = SimpleNamespace(EpDeviceLowLatency=Native)
_device.must_not_capture = lambda why: None
buffer = Buffer.__new__(Buffer)
buffer._low_on_gpu = _device.DeviceLowLatency(SimpleNamespace(n_pes=lambda: 2, device=None), False, None)
buffer._low, buffer._stream = SimpleNamespace(free=lambda: None), CommunicationStream(0)
torch._C._cuda_getCurrentStream = lambda gpu: (7, 0, 1)
x, topk = torch.zeros((4, 512), dtype=torch.bfloat16), torch.zeros((4, 2), dtype=torch.int64)
weights, rows = torch.zeros((4, 2)), torch.zeros((3, 16, 512), dtype=torch.bfloat16)


def a_round():
    _, _, handle, _, _ = buffer.low_latency_dispatch(x, topk, 8, 6)
    buffer.low_latency_combine(rows, topk, weights, handle)


(rows_of_fp8, scales), counts, (sources, ranges, *_), _, _ = buffer.low_latency_dispatch(x, topk, 8, 6)
made = ((rows_of_fp8, (3, 16, 512)), (scales, (3, 16, 4)), (counts, (3,)), (sources, (3, 16)), (ranges, (3, 2)))
dtypes = (torch.float8_e4m3fn, torch.float32, torch.int32, torch.int32, torch.int64)
assert [(one.shape, one.dtype) for one, _ in made] == [(shape, dtype) for (_, shape), dtype in zip(made, dtypes)]
# The scales of a group lie one after the other; the number of the dispatch lies behind the ranges.
assert scales.stride() == (64, 1, 16)
behind = ranges.untyped_storage().nbytes() - 8 * (ranges.storage_offset() + ranges.numel())
assert behind == 8 and all(one.data_ptr() % 64 == 0 for one, _ in made), behind
for wrong in (dict(x=x.float()), dict(x=x[:, ::2]), dict(topk_idx=topk[0]), dict(topk_idx=topk.int()), dict(x=x.to("meta"))):
    try:
        buffer.low_latency_dispatch(**{**dict(x=x, topk_idx=topk, num_max_dispatch_tokens_per_rank=8, num_experts=6), **wrong})
    except ArgumentError as error:
        assert next(iter(wrong)) in str(error), error
    else:
        raise AssertionError(wrong)
a_round()
with Seen():
    a_round()
assert Seen.count == 0, f"a mode has seen {Seen.count} reads"
steps = Counter()
sys.setprofile(lambda frame, event, argument: steps.update([event]))
a_round()
sys.setprofile(None)
print(steps["call"], steps["c_call"])
"""


def test_a_round_of_low_latency_on_a_gpu_takes_few_steps_on_the_host() -> None:
    """Counts functions of Python and C that a dispatch and a combine call, which no mode of torch may see."""
    command = [python_with_torch("torch.float8_e4m3fn"), "-c", HOST_WORK]
    told = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=600)
    assert told.returncode == 0, told
    in_python, in_c = (int(number) for number in told.stdout.split())
    assert in_python <= MOST_PYTHON_CALLS and in_c <= MOST_C_CALLS, told.stdout


def test_buffers_of_high_throughput_serve_all_shapes_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    from symrail.ep import _device_high

    made: list[tuple[int, ...]] = []
    monkeypatch.setattr(_device_high, "must_not_capture", lambda why: None)
    monkeypatch.setattr(
        _device_high._symrail, "EpDeviceHighThroughput", lambda _, *shape: made.append(shape[2:6]) or Native()
    )
    high = _device_high.DeviceHighThroughput.__new__(_device_high.DeviceHighThroughput)
    high.held, high.shape, high.ranks, high.most_tokens, high.timeout = None, None, 2, 64, None
    high.runtime = SimpleNamespace(world=SimpleNamespace(all_agree=lambda *_, **__: True))  # type: ignore[assignment]
    for row, scales, k in ((1024, 4, 1), (512, 8, 1), (512, 4, 6), (1024, 8, 1), (1024, 4, 6)):
        high._prepare(row, scales, 16, k, 24)
    assert made == [(1024, 4, 16, 1), (1024, 8, 16, 1), (1024, 8, 16, 6)]


def test_the_dtype_of_indices_is_torchs() -> None:
    of_torch = "import torch; from symrail.ep import topk_idx_t; assert topk_idx_t is torch.int64"
    of_numpy = "import sys, numpy; sys.modules['torch'] = None; from symrail.ep import topk_idx_t as t; assert t is numpy.int64"
    for python, code in ((sys.executable, of_numpy), (python_with_torch(), of_torch)):
        told = subprocess.run([python, "-c", code], capture_output=True, text=True, env=environment(), timeout=600)
        assert told.returncode == 0, told


def test_a_first_job_has_a_heap_on_the_gpu_that_pytorch_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    from symrail.ep import _groups

    def kind(uses_gpu: bool) -> str | None:
        torch = SimpleNamespace(cuda=SimpleNamespace(is_initialized=lambda: uses_gpu))
        monkeypatch.setitem(sys.modules, "torch", torch)
        return _groups._heap_of_gpu()

    monkeypatch.delenv("SYMRAIL_HEAP_KIND", raising=False)
    assert (kind(True), kind(False)) == ("device", None)
    monkeypatch.setenv("SYMRAIL_HEAP_KIND", "pinned")
    assert kind(True) is None
