"""Tensors that go to the neighbours in the ring of ranks (`pp_send`, `pp_recv`).

A rank has slots for tensors from the rank before and from the one behind. A sender puts a tensor in the next slot and sets
the slot's word to the tensor's number and bytes; it waits first until the receiver has emptied the slot.
"""

from __future__ import annotations

from typing import Any

from ..errors import ArgumentError, DifferError
from ._on_gpu import must_not_capture
from ._symmetric import array, of_bytes, tensor, up

# Slots begin at multiples of so many bytes. A word has a tensor's number above its bytes.
_ALIGN = 32
_NUMBER_AT = 40


class Pipeline:
    """Slots for `most` tensors of at most `bytes` in each direction."""

    def __init__(self, runtime: Any, bytes: int, most: int, timeout: float | None) -> None:
        """Collective. Raises DifferError if ranks ask for different numbers, HeapExhaustedError."""
        self.runtime, self.timeout = runtime, timeout
        self.rank, self.ranks, self.gpu = runtime.my_pe(), runtime.n_pes(), runtime.device
        self.bytes, self.most = up(bytes, _ALIGN), most
        text = f"pp_set_config({bytes}, {most})"
        all_mapped = runtime.world.all_agree(all(runtime.is_mapped(rank) for rank in range(self.ranks)), timeout=timeout)
        slots = (2, most, self.bytes)
        self.slots = array(runtime, slots, "uint8", text, timeout)
        self.inbox = tensor(self.slots)
        # What NICs read is in the heap.
        self.outbox = None if all_mapped else tensor(array(runtime, slots, "uint8", text, timeout))
        # For each direction and slot the tensor that has come; then for each direction the tensors that were taken there.
        self.words = array(runtime, (2 * most + 2,), "uint64", text, timeout)
        self.sent, self.received = [0, 0], [0, 0]
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
        if self.gpu is None:
            return None
        import torch

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
        if self.outbox is not None:
            # The slot's last tensor was taken, so it is not read any more.
            data = self.outbox[direction, slot, :size].copy_(data)
        word, value = direction * self.most + slot, (number + 1) << _NUMBER_AT | size
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
        word, value = direction * self.most + slot, (number + 1) << _NUMBER_AT
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
        to.copy_(self.inbox[direction, slot, :size])
        self.received[direction] += 1
        taken = 2 * self.most + direction
        self.runtime.signal_op(self.words, number + 1, "set", rank, offset=taken, stream=stream)
        self._end(of, stream)
