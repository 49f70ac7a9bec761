"""The pipeline's calls on a GPU without one: a rank that is its own neighbour, streams whose operations are done at
once, and waits that time out at once. Behind a wait that timed out nothing may be copied, nor signalled."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from symrail.ep import _pipeline
from symrail.errors import OperationError, StateError, SymrailError, TimeoutError


class Memory(np.ndarray):
    gpu = None


class Runtime:
    """A job of one rank. `failed` is the GPU's record, which anyone's check may take."""

    device, world = 0, SimpleNamespace(all_agree=lambda is_mapped, timeout: is_mapped)

    def __init__(self, is_mapped: bool) -> None:
        self.mapped, self.failed = is_mapped, False

    def my_pe(self) -> int:
        return 0

    def n_pes(self) -> int:
        return 1

    def is_mapped(self, rank: int) -> bool:
        return self.mapped

    def allocate(self, bytes: int, text: str, timeout: Any) -> Any:
        return np.zeros(bytes, np.uint8).view(Memory)

    def check(self) -> None:
        failed, self.failed = self.failed, False
        if failed:
            raise OperationError("a wait took too long")

    def goes_on(self, words: Any, ended: int) -> bool:
        self.failed |= bool(words[ended] != 0)
        return bool(words[ended] == 0)

    def wait_in_chain(self, words: Any, offset: int, least: int, most: int, ended: int, pe: int, stream: Any) -> None:
        if self.goes_on(words, ended) and not least <= words[offset] <= most:
            self.failed, words[ended] = True, 1

    def put_in_chain(self, both: Any, words: Any, offset: int, value: int, ended: int, pe: int, stream: Any) -> None:
        if self.goes_on(words, ended):
            if both is not None:
                torch.from_numpy(both[0]).copy_(both[1])
            words[offset] = value


def some(number: int) -> torch.Tensor:
    return torch.full((6,), number, dtype=torch.int32)


def fails(error: type[SymrailError], text: str, call: Any, tensor: torch.Tensor) -> None:
    try:
        call(tensor, 0)
    except error as found:
        assert text in str(found), found
        return
    raise AssertionError(f"not refused: {text}")


def late_receive(runtime: Runtime, pipeline: Any, taken: bool) -> None:
    """A receive whose tensor comes behind it leaves its slot full."""
    to = some(7)
    pipeline.receive(to, 0)
    assert torch.equal(to, some(7)) and not pipeline.words[2 * 2], pipeline.words
    pipeline.words[0] = pipeline._value(0, 24)
    if taken:
        runtime.failed = False
        # The program's own check has taken the record. The next call is another error.
        pipeline.receive(to, 0)
        assert torch.equal(to, some(7)) and not pipeline.words[2 * 2], pipeline.words
    # What was sent behind the wait was left out.
    pipeline.words[pipeline._ended("send", 0)] = 2
    fails(TimeoutError, "pp_recv: no such tensor of rank 0", pipeline.receive, to)
    fails(StateError, "another pp_set_config", pipeline.send, to)


def late_send(runtime: Runtime, pipeline: Any) -> None:
    """A send that has waited for a slot in vain does not overwrite it."""
    for number in range(3):
        pipeline.send(some(number), 0)
    assert pipeline.slots[0, 0, 0] == 0 and pipeline.words[0] == pipeline._value(0, 24), pipeline.words
    if pipeline.outgoing is not None:
        assert pipeline.outgoing[0, 0, 0] == 0
    fails(TimeoutError, "pp_send: rank 0 has taken no tensor", pipeline.send, some(3))


def in_order(runtime: Runtime, pipeline: Any) -> None:
    """Two are under way."""
    pipeline.send(some(0), 0)
    for number in range(9):
        pipeline.send(some(number + 1), 0)
        to = some(77)
        pipeline.receive(to, 0)
        assert torch.equal(to, some(number)), to
    runtime.check()


_pipeline.of_bytes = lambda given, *_: given.reshape(-1).view(torch.uint8)
torch.cuda.synchronize = lambda gpu: None
stream = SimpleNamespace(record_event=lambda: None, wait_event=lambda event: None)
_pipeline.Pipeline._current = lambda self, torch: stream
for is_mapped in (True, False):
    for check in (in_order, late_send, lambda *of: late_receive(*of, False), lambda *of: late_receive(*of, True)):
        runtime = Runtime(is_mapped)
        check(runtime, _pipeline.Pipeline(runtime, 24, 2, None))
print("well")
