"""Tensors that go to the neighbours in the ring of ranks (`pp_send`, `pp_recv`).

A rank has slots for tensors from the rank before and from the one behind. A sender puts a tensor in the next slot and
sets the slot's word to the number of the slot's tensor and its bytes; it waits first until the receiver has emptied the
slot. Behind a wait that timed out nothing is copied or signalled: on the host it raises, on a GPU a chain ends.
"""

from __future__ import annotations

from typing import Any

from ..errors import ArgumentError, DifferError, StateError, SymrailError, TimeoutError
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
        # For each direction and slot the tensor that has come; for each direction the tensors that were taken there;
        # for each kind of call and direction whether a stream's wait has timed out.
        self.words = array(runtime, (2 * most + 2 + 4,), "uint64", text, timeout)
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
                if isinstance(error, StateError):
                    raise
                torch.cuda.synchronize(self.gpu)
                self.failure = self._named(error)
                raise self.failure from None
        raise StateError(f"after a failure no tensors are sent or received before another pp_set_config: {self.failure}")

    def _named(self, error: SymrailError) -> SymrailError:
        """The error of the wait that has timed out, if one has."""
        ended = tensor(self.words.view("int64")[self._ended("send", 0) :]).tolist()
        for of, has_ended in zip((("send", 0), ("send", 1), ("receive", 0), ("receive", 1)), ended):
            # Otherwise a failure elsewhere has kept its operations from starting.
            if has_ended == 1:
                return self._late(of, f": {error}")
        return error

    def _ended(self, kind: str, direction: int) -> int:
        """The word that is not 0 when a stream's wait of this kind has timed out."""
        return 2 * self.most + 2 + 2 * (kind == "receive") + direction

    def _late(self, of: tuple[str, int], more: str) -> TimeoutError:
        kind, direction = of
        rank = (self.rank + (1 if (direction == 0) == (kind == "send") else -1)) % self.ranks
        receive, send = f"pp_recv: no such tensor of rank {rank} came", f"pp_send: rank {rank} has taken no tensor"
        text = f"{send if kind == 'send' else receive} in time{more}"
        return TimeoutError(text, {"pe": rank, "pes": (rank,)})

    def _current(self, torch: Any) -> Any:
        must_not_capture("no tensors are sent to neighbours, nor received: slots are chosen by the host")
        return torch.cuda.current_stream(self.gpu)

    def _begin(self, of: tuple[str, int], stream: Any) -> None:
        if stream is not None and of in self.last:
            stream.wait_event(self.last[of])

    def _end(self, of: tuple[str, int], stream: Any) -> None:
        if stream is not None:
            self.last[of] = stream.record_event()

    def _wait(self, of: tuple[str, int], word: int, least: int) -> int:
        """Waits on the host until a word is at least so large."""
        try:
            return int(self.runtime.wait_until(self.words, ">=", least, offset=word, timeout=self.timeout))
        except TimeoutError as error:
            raise self._late(of, f": {error}") from None

    def _value(self, number: int, size: int) -> int:
        value = (number // self.most + 1) << self.number_at | size
        if value >> _BITS:
            raise StateError(f"{number} tensors have gone this way: pp_set_config counts anew")
        return value

    def _take(self, to: Any, come: Any, ended: int) -> None:
        """Copies what has come; on a GPU only if no wait has timed out."""
        if self.gpu is None:
            to.copy_(come)
            return
        import torch

        has_come = tensor(self.words.view("int64")[ended : ended + 1]) == 0
        both = [one.view(torch.int32) if len(to) % 4 == 0 and one.data_ptr() % 4 == 0 else one for one in (come, to)]
        if both[0].dtype != both[1].dtype:
            both = [come, to]
        torch.where(has_come, both[0], both[1], out=both[1])

    def _put(self, both: tuple[Any, Any] | None, word: int, value: int, rank: int, ended: int, stream: Any) -> None:
        """Copies to a slot of a rank, if there is something to copy, and then sets a word there."""
        if stream is not None:
            self.runtime.put_in_chain(both, self.words, word, value, ended, rank, stream)
        elif both is not None:
            self.runtime.put_signal(*both, self.words, value, "set", rank, offset=word)
        else:
            self.runtime.signal_op(self.words, value, "set", rank, offset=word)

    def _bytes(self, given: Any, call: str) -> Any:
        found = of_bytes(given, "t", self.gpu, call)
        if len(found) > self.bytes:
            raise ArgumentError(f"{call}: t has {len(found)} bytes; pp_set_config has said at most {self.bytes}")
        return found

    def send(self, given: Any, rank: int) -> None:
        """Sends a tensor, which may be changed behind the call."""
        data, direction = self._bytes(given, "pp_send"), self._direction("pp_send", rank, 1)
        number, of, stream = self.sent[direction], ("send", direction), self._stream()
        slot, size, ended = number % self.most, len(data), self._ended(*of)
        self._begin(of, stream)
        if number >= self.most:
            taken, least = 2 * self.most + direction, number - self.most + 1
            if stream is None:
                self._wait(of, taken, least)
            else:
                self.runtime.wait_in_chain(self.words, taken, least, number, ended, rank, stream)
        if self.outgoing is not None:
            # The slot's last tensor was taken, so it is not read any more.
            self._take(tensor(self.outgoing[direction, slot, :size]), data, ended)
            data = tensor(self.outgoing[direction, slot, :size])
        both = (self.slots[direction, slot, :size], data) if size else None
        self._put(both, direction * self.most + slot, self._value(number, size), rank, ended, stream)
        self.sent[direction] += 1
        self._end(of, stream)

    def receive(self, given: Any, rank: int) -> None:
        """Receives a tensor of the same size as was sent."""
        to, direction = self._bytes(given, "pp_recv"), self._direction("pp_recv", rank, -1)
        number, of, stream = self.received[direction], ("receive", direction), self._stream()
        slot, size, ended = number % self.most, len(to), self._ended(*of)
        word, value = direction * self.most + slot, self._value(number, 0)
        self._begin(of, stream)
        if stream is None:
            come = self._wait(of, word, value) - value
            if come != size:
                raise DifferError(
                    f"pp_recv: t has {size} bytes on rank {self.rank}, and rank {rank} has sent {come}", {"pe": rank}
                )
        else:
            # With another size it times out.
            self.runtime.wait_in_chain(self.words, word, value + size, value + size, ended, rank, stream)
        self._take(to, tensor(self.slots[direction, slot, :size]), ended)
        self.received[direction] += 1
        self._put(None, 2 * self.most + direction, number + 1, rank, ended, stream)
        self._end(of, stream)
