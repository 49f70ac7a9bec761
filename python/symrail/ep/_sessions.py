"""Sessions of all-gathers (AGRS): results stay in symmetric memory until all ranks have ended the session."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .. import _symrail
from ..errors import ArgumentError, StateError
from ._on_gpu import must_not_capture
from ._stream import CommunicationStream
from ._symmetric import array, bytes_of, of_bytes, tensor, up

# Gathered tensors begin at multiples of so many bytes.
ALIGN = 32


class Sessions:
    """Memory for `bytes` of gathered tensors of a session, of at most `most` calls."""

    def __init__(
        self, runtime: Any, stream: CommunicationStream, bytes: int, most: int, timeout: float | None
    ) -> None:
        """Collective. Raises DifferError if ranks ask for different numbers, HeapExhaustedError."""
        self.runtime, self.stream, self.gpu = runtime, stream, runtime.device
        self.rank, self.ranks = runtime.my_pe(), runtime.n_pes()
        self.bytes, self.most, self.timeout = bytes, most, timeout
        text = f"agrs_set_config({bytes}, {most})"
        self.memory = array(runtime, (up(bytes, ALIGN),), "uint8", text, timeout)
        # What ranks exchange at the end of a session.
        self.ends = array(runtime, (self.ranks,), "uint64", text, timeout)
        on_gpu = self.gpu is not None
        self.collectives = _symrail.Collectives(runtime, runtime.world, None, on_gpu, False, not on_gpu)
        self.number, self.is_open, self.next, self.calls = 0, False, 0, 0

    def free(self) -> None:
        """Frees the memory, but for tensors that exist. Collective."""
        self.collectives.free()

    def begin(self) -> None:
        """Begins a session. Local."""
        if self.is_open:
            raise StateError("create_agrs_session: a session is open; destroy_agrs_session ends it")
        self.number, self.is_open, self.next, self.calls = self.number + 1, True, 0, 0

    def end(self) -> None:
        """Ends the session when all ranks do, in the order of the communication stream on a GPU. Collective."""
        self._must_be_open("destroy_agrs_session")
        stream = None
        if self.gpu is not None:
            import torch

            must_not_capture("no session ends")
            stream = self.stream.get()
            stream.wait_stream(torch.cuda.current_stream(self.gpu))
        self.is_open = False
        # It is complete when all ranks have begun it.
        own = self.ends[self.rank : self.rank + 1]
        self.collectives.run("all_gather", own, self.ends, "sum", 0, None, None, stream)

    def _must_be_open(self, call: str) -> None:
        if not self.is_open:
            raise StateError(f"{call} outside of a session: create_agrs_session begins one")

    def _places(self, call: str, sizes: Sequence[int]) -> list[int]:
        """Where gathered tensors of the next call begin, of so many bytes from each rank; behind them, the next one."""
        self._must_be_open(call)
        if not sizes:
            raise ArgumentError(f"{call}: no tensors")
        if self.calls >= self.most:
            raise StateError(f"{call}: this session has had its {self.most} all-gathers (agrs_set_config)")
        places = [self.next]
        for size in sizes:
            places.append(up(places[-1] + size * self.ranks, ALIGN))
        end = places[-2] + sizes[-1] * self.ranks
        if end > self.bytes:
            raise StateError(
                f"{call}: tensors of {list(sizes)} bytes from each rank end at {end}; a session has {self.bytes} bytes "
                "(agrs_set_config)"
            )
        return places

    def _part(self, first: int, size: int) -> Any:
        """A new tensor each time: changes of one are not changes of another for autograd."""
        return tensor(self.memory[first : first + size])

    def _own(self, place: int, size: int) -> Any:
        return self._part(place + self.rank * size, size)

    def own(self, shapes: Sequence[Any], dtype: Any) -> list[Any]:
        """Tensors to fill for the next all-gather: this rank's parts of its results."""
        call, sizes = "agrs_get_inplace_tensor", [bytes_of(shape, dtype) for shape in shapes]
        places = self._places(call, sizes)
        if self.gpu is not None:
            import torch

            # Earlier sessions may still use this memory.
            torch.cuda.current_stream(self.gpu).wait_stream(self.stream.get())
        parts = zip(places, sizes, shapes)
        return [self._own(place, size).view(dtype).reshape(tuple(shape)) for place, size, shape in parts]

    def all_gather(self, given: Sequence[Any]) -> tuple[list[Any], Callable[[], None]]:
        """Gathers tensors of all ranks. Collective. Returns [ranks, ...] for each, and a function that waits."""
        call = "all_gather"
        data = [of_bytes(one, f"t[{i}]", self.gpu, call) for i, one in enumerate(given)]
        sizes = [len(one) for one in data]
        places = self._places(call, sizes)
        first = self._part(0, 1).data_ptr()
        owns = [self._own(place, size) for place, size in zip(places, sizes)]
        for i, (one, own) in enumerate(zip(data, owns)):
            at = one.data_ptr() - first
            if len(one) and 0 <= at + len(one) - 1 and at < len(self.memory) and one.data_ptr() != own.data_ptr():
                raise ArgumentError(
                    f"{call}: t[{i}] is in the session's memory, {at} bytes behind its beginning, but not where "
                    f"agrs_get_inplace_tensor has it for this call: {own.data_ptr() - first} bytes behind it"
                )
        wholes = [self._part(place, self.ranks * size) for place, size in zip(places, sizes)]
        self.next, self.calls = places[-1], self.calls + 1
        wait = self._gather(given, data, owns, wholes)
        shapes = [(self.ranks, *one.shape) for one in given]
        return [whole.view(one.dtype).reshape(shape) for whole, one, shape in zip(wholes, given, shapes)], wait

    def _gather(self, given: Sequence[Any], data: list[Any], owns: list[Any], wholes: list[Any]) -> Callable[[], None]:
        def gather(stream: Any) -> None:
            for one, own, whole in zip(data, owns, wholes):
                if one.data_ptr() != own.data_ptr():
                    own.copy_(one)
                if len(own):
                    self.collectives.run("all_gather", own, whole, "sum", 0, None, None, stream)

        number = self.number
        if self.gpu is None:
            gather(None)
            return lambda: self._must_be_in(number)
        import torch

        must_not_capture("no tensors are gathered in a session: their places are chosen by the host")
        stream, current = self.stream.get(), torch.cuda.current_stream(self.gpu)
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            gather(stream)
        for one in given:
            one.record_stream(stream)
        done = stream.record_event()

        def wait() -> None:
            self._must_be_in(number)
            torch.cuda.current_stream(self.gpu).wait_event(done)

        return wait

    def _must_be_in(self, number: int) -> None:
        if not self.is_open or number != self.number:
            raise StateError("the handle of an all_gather is called within its session, which has ended")
