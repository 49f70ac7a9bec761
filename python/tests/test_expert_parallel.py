"""symrail.ep: dispatch and combine against NumPy, and the unchanged example of docs/ep.md."""

from __future__ import annotations

import re
import subprocess
import sys
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


@pytest.mark.parametrize("options", [(), HOSTS])
def test_takes_tensors(options: tuple[str, ...]) -> None:
    command = [launcher(), "run", "-n", "4", *options, "--", python_with_torch()]
    (ended,) = finish([start([*command, str(PROGRAMS / "expert_parallel_torch.py")])])
    assert ended.returncode == 0, ended
    assert ended.stdout.count("is well") == 4, ended


def test_example(tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n(# experts\.py.*?)```", PAGE.read_text(), re.DOTALL)
    program = tmp_path / "experts.py"
    program.write_text(example)
    (ended,) = finish([start([launcher(), "run", "-n", "4", *HOSTS, "--", sys.executable, str(program)])])
    assert ended.returncode == 0, ended
    assert len(re.findall(r"^PE \d: \d+ tokens came$", ended.stdout, re.MULTILINE)) == 4, ended


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
    for hook in (False, True):
        *_, dispatched, _ = buffer.low_latency_dispatch(None, None, 1, 1, return_recv_hook=hook)
        _, combined, _ = buffer.low_latency_combine(None, None, None, (), return_recv_hook=hook)
        for event in (dispatched, combined):
            event.current_stream_wait()
            with pytest.raises(Late):
                event.synchronize()


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
        low.prepare(1, 16, 1, 1, False)


def test_low_latency_calls_on_a_gpu_come_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    from symrail.ep._device import DeviceLowLatency, _Round
    from symrail.errors import StateError

    captures = [False]
    cuda = SimpleNamespace(is_current_stream_capturing=lambda: captures[0])
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    sources, others = (SimpleNamespace(data_ptr=lambda at=at: at) for at in (64, 128))
    low = DeviceLowLatency.__new__(DeviceLowLatency)
    low.round = None

    def refused(named: str, call: int, of: Any = None) -> None:
        with pytest.raises(StateError, match=named):
            low._begin(call, of)

    def made(call: int) -> None:
        low._begin(call, sources)
        low._end(call)

    for _ in range(2):
        low._begin(0)
        low.round = _Round(sources)
        refused("before the dispatch was received", 2, sources)
        refused("one at a time", 0)
        made(1)
        refused("a second", 1, sources)
        refused("handle is not that", 2, others)
        made(2)
        refused("a second low_latency_combine", 2, sources)
        refused("one at a time", 0)
        made(3)
        refused("a second low_latency_combine", 2, sources)
        refused("a second", 3, sources)
    # What a graph's replays make is not known.
    captures[0] = True
    low._begin(2, others)
    captures[0] = False
    low._begin(0)


def test_the_dtype_of_indices_is_torchs() -> None:
    of_torch = "import torch; from symrail.ep import topk_idx_t; assert topk_idx_t is torch.int64"
    of_numpy = "import sys, numpy; sys.modules['torch'] = None; from symrail.ep import topk_idx_t as t; assert t is numpy.int64"
    for python, code in ((sys.executable, of_numpy), (python_with_torch(), of_torch)):
        told = subprocess.run([python, "-c", code], capture_output=True, text=True, env=environment(), timeout=600)
        assert told.returncode == 0, told
