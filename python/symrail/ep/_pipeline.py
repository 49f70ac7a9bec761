"""Tensors that go to the neighbours in the ring of ranks (`pp_send`, `pp_recv`).

A rank has slots for tensors from the rank before and from the one behind. A sender puts a tensor in the next slot and
sets the slot's word to the number of the slot's tensor and its bytes; it waits first until the receiver has emptied the
slot.
"""

from __future__ import annotations

from typing import Any

from ..errors import ArgumentError, DifferError, StateError, SymrailError
from ._on_gpu import must_not_capture
from ._symmetric import array, of_bytes, tensor, up

# Slots begin at multiples of so many bytes.
_ALIGN = 32
# The bits of a slot's word, which a GPU compares as a signed number.
_BITS = 63


class Pipeline:
    """Slots for `most` tensors of at most `bytes` in each direction."""

    def __init__(self, runtime: Any, bytes: int, most: int, timeout: float | None) -> None:
        """Collective. Raises DifferError if ranks ask for different numbers, HeapExhaustedError."""
        self.runtime, self.timeout = runtime, timeout
        self.rank, self.ranks, self.gpu = runtime.my_pe(), runtime.n_pes(), runtime.device
        self.bytes, self.most = up(bytes, _ALIGN), most
        text = f"pp_set_config({bytes}, {most})"
        is_mapped = all(runtime.is_mapped(rank) for rank in range(self.ranks))
        all_mapped = runtime.world.all_agree(is_mapped, timeout=timeout)
        slots = (2, most, self.bytes)
        self.slots = array(runtime, slots, "uint8", text, timeout)
        # What NICs read is in the heap.
        self.outgoing = None if all_mapped else array(runtime, slots, "uint8", text, timeout)
        # For each direction and slot the tensor that has come; then for each direction the tensors that were taken there.
        self.words = array(runtime, (2 * most + 2,), "uint64", text, timeout)
        # A word has the number of the slot's tensor, counted from 1, above the tensor's bytes.
        self.number_at = self.bytes.bit_length()
        self.sent, self.received = [0, 0], [0, 0]
        self.failure: SymrailError | None = None
        # The last call of each kind and direction: later ones are behind it, whatever their streams.
        self.last: dict[tuple[str, int], Any] = {}

    def _direction(self, call: str, rank: int, first: int) -> int:
        """0 for tensors that go to the next rank, 1 for those to the one before; `first` is the distance of the former."""
        for direction, distance in enumerate((first, -first)):
            if rank == (self.rank + distance) % self.ranks:
                return direction
        near = sorted({(self.rank + 1) % self.ranks, (self.rank - 1) % self.ranks})
        raise ArgumentError(f"{call}: rank {rank} of {self.ranks}; the neighbours of rank {self.rank} are {near}")

    def _stream(self) -> Any:
        """The current stream, if no earlier wait has timed out."""
        if self.gpu is None:
            return None
        import torch

        if self.failure is None:
            try:
                self.runtime.check()
                return self._current(torch)
            except SymrailError as error:
                if not isinstance(error, StateError):
                    self.failure = error
                raise
        raise StateError(f"after a failure no tensors are sent or received before another pp_set_config: {self.failure}")

    def _current(self, torch: Any) -> Any:

        must_not_capture("no tensors are sent to neighbours, nor received: slots are chosen by the host")
        return torch.cuda.current_stream(self.gpu)

    def _begin(self, of: tuple[str, int], stream: Any) -> None:
        if stream is not None and of in self.last:
            stream.wait_event(self.last[of])

    def _end(self, of: tuple[str, int], stream: Any) -> None:
        if stream is not None:
            self.last[of] = stream.record_event()

    def _wait(self, word: int, least: int, stream: Any) -> int:
        """Waits until a word is at least so large. Unlike ">=", ">" has a time limit on streams."""
        if stream is not None:
            self.runtime.wait_on_stream(self.words, ">", least - 1, word, stream)
            return least
        return int(self.runtime.wait_until(self.words, ">", least - 1, offset=word, timeout=self.timeout))

    def _value(self, number: int, size: int) -> int:
        value = (number // self.most + 1) << self.number_at | size
        if value >> _BITS:
            raise StateError(f"{number} tensors have gone this way: pp_set_config counts anew")
        return value

    def _take(self, to: Any, come: Any, word: int, value: int) -> None:
        """Copies what has come; on a GPU only if a slot's word says so: a wait may have timed out."""
        if self.gpu is None:
            to.copy_(come)
            return
        import torch

        has_come = tensor(self.words.view("int64")[word : word + 1]) == value
        both = [one.view(torch.int32) if len(to) % 4 == 0 and one.data_ptr() % 4 == 0 else one for one in (come, to)]
        if both[0].dtype != both[1].dtype:
            both = [come, to]
        torch.where(has_come, both[0], both[1], out=both[1])

    def _bytes(self, given: Any, call: str) -> Any:
        found = of_bytes(given, "t", self.gpu, call)
        if len(found) > self.bytes:
            raise ArgumentError(f"{call}: t has {len(found)} bytes; pp_set_config has said at most {self.bytes}")
        return found

    def send(self, given: Any, rank: int) -> None:
        """Sends a tensor, which may be changed behind the call."""
        data, direction = self._bytes(given, "pp_send"), self._direction("pp_send", rank, 1)
        number, of, stream = self.sent[direction], ("send", direction), self._stream()
        slot, size = number % self.most, len(data)
        self._begin(of, stream)
        if number >= self.most:
            self._wait(2 * self.most + direction, number - self.most + 1, stream)
        if self.outgoing is not None:
            # The slot's last tensor was taken, so it is not read any more.
            data = tensor(self.outgoing[direction, slot, :size]).copy_(data)
        word, value = direction * self.most + slot, self._value(number, size)
        if size:
            to = self.slots[direction, slot, :size]
            self.runtime.put_signal(to, data, self.words, value, "set", rank, offset=word, stream=stream)
        else:
            self.runtime.signal_op(self.words, value, "set", rank, offset=word, stream=stream)
        self.sent[direction] += 1
        self._end(of, stream)

    def receive(self, given: Any, rank: int) -> None:
        """Receives a tensor of the same size as was sent."""
        to, direction = self._bytes(given, "pp_recv"), self._direction("pp_recv", rank, -1)
        number, of, stream = self.received[direction], ("receive", direction), self._stream()
        slot, size = number % self.most, len(to)
        word, value = direction * self.most + slot, self._value(number, 0)
        self._begin(of, stream)
        if stream is None:
            come = self._wait(word, value, stream) - value
            if come != size:
                raise DifferError(
                    f"pp_recv: t has {size} bytes on rank {self.rank}, and rank {rank} has sent {come}", {"pe": rank}
                )
        else:
            # With another size one of these waits times out.
            self._wait(word, value + size, stream)
            self.runtime.wait_on_stream(self.words, "<", value + size + 1, word, stream)
        self._take(to, tensor(self.slots[direction, slot, :size]), word, value + size)
        self.received[direction] += 1
        taken = 2 * self.most + direction
        self.runtime.signal_op(self.words, number + 1, "set", rank, offset=taken, stream=stream)
        self._end(of, stream)
