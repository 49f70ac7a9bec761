"""Agents: processes that know one another by name, read and write one another's arrays, join and leave at any time.

    import numpy as np
    from symrail.agent import Agent

    cache = np.zeros((1024, 65536), np.uint8)          # pages of a KV cache, or a tensor of PyTorch or CuPy on a GPU
    agent = Agent("decode-7")
    pages = agent.register(cache)                      # one block for each index of the first axis
    send(agent.metadata(), pages)                      # by any channel of the program

    other = agent.load(metadata)                       # another agent's, with its blocks
    transfer = agent.write(pages[3, 5, 8], theirs[0, 1, 2], other, notify=b"request 42")
    transfer.wait(timeout=10)                          # or: await transfer
    agent.notification(timeout=10)                     # the sender's name and the message, or None

No job is needed. `SYMRAIL_` variables choose the rails. A notification becomes visible behind the data of its transfer.
An agent that is lost raises PeerLostError in what concerns it, and in nothing else.
"""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from . import _symrail
from .errors import ArgumentError, TimeoutError

__all__ = ["Agent", "Blocks", "Notification", "Transfer"]

# Where a wait has no time limit of its own: operations end by themselves within SYMRAIL_TIMEOUT_S
# (notifications when the target takes the 64 MiB that wait there).
_FOR_EVER = float("inf")
# The longest pause of a coroutine that waits.
_PAUSE_S = 0.001

Descriptors = Iterable[tuple[int, int]]


@dataclass(frozen=True)
class Blocks:
    """`count` blocks of `nbytes` each, one behind the other from `address` on, in the memory of the agent that made it.

    `blocks[3]`, `blocks[1:5]` and `blocks[3, 5, 8]` are descriptors of some of them. Others get it by any channel of
    the program; `id` is the number of the registration.
    """

    address: int
    nbytes: int
    count: int
    id: int

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(self[:])

    def __getitem__(self, index: Any) -> list[tuple[int, int]]:
        if isinstance(index, slice):
            chosen: Iterable[Any] = range(*index.indices(self.count))
        elif hasattr(index, "__iter__"):
            chosen = index
        else:
            chosen = (index,)
        return [(self.address + self._checked(one) * self.nbytes, self.nbytes) for one in chosen]

    def _checked(self, index: Any) -> int:
        at = operator.index(index)
        if not -self.count <= at < self.count:
            raise ArgumentError(f"block {at}: there are {self.count}")
        return at % self.count


class Notification(NamedTuple):
    """A message, and the name of the agent that has sent it."""

    agent: str
    message: bytes


class Transfer:
    """Lists of descriptors at two agents: prepared once, posted any number of times. `Agent` makes it.

    Dropping it cancels it. `await transfer` waits for its end in a coroutine.
    """

    def __init__(self, transfer: _symrail.AgentTransfer) -> None:
        self._transfer = transfer

    @property
    def operations(self) -> int:
        """The number of operations that the descriptors became: those that are contiguous at both ends are one."""
        return self._transfer.operations

    def post(self, notify: bytes | None = None) -> Transfer:
        """Starts it, with a notification for the other agent. Raises StateError while it is under way."""
        self._transfer.post(notify)
        return self

    def done(self) -> bool:
        """Whether it has ended. Raises the exception of what has failed."""
        return self._transfer.wait(0.0)

    def wait(self, timeout: float | None = None) -> None:
        """Waits until it has ended. Raises TimeoutError after so many seconds; it goes on then."""
        if not self._transfer.wait(_FOR_EVER if timeout is None else timeout):
            raise TimeoutError(f"the transfer has not ended within {timeout} s")

    def cancel(self) -> None:
        """Cancels it, without waiting. It may be posted again."""
        self._transfer.cancel()

    def __await__(self) -> Generator[Any, None, None]:
        return self._end().__await__()

    async def _end(self) -> None:
        pause = 0.0
        while not self.done():
            await asyncio.sleep(pause)
            pause = min(_PAUSE_S, pause + _PAUSE_S / 64)


class Agent:
    """An agent with this name over the rails that the `SYMRAIL_` variables choose. Any thread may call any method.

    Dropping it cancels its transfers, waits for what is under way, and sends the notifications that wait.
    """

    def __init__(self, name: str) -> None:
        self._agent = _symrail.Agent(name)

    @property
    def name(self) -> str:
        """Its name."""
        return self._agent.name

    @property
    def rails(self) -> list[str]:
        """Its rails."""
        return self._agent.rails

    def register(self, array: Any) -> Blocks:
        """Registers a contiguous array of NumPy, PyTorch or CuPy, on the host or a GPU. The agent keeps it until
        `deregister`.

        Each index of the first axis is a block; an array with fewer than two axes is one block. Work on streams that
        uses an array on a GPU has to have ended before a transfer with it starts.
        """
        shape = array.shape if hasattr(array, "shape") else array.__cuda_array_interface__["shape"]
        id, address, nbytes = self._agent.register(array)
        count = int(shape[0]) if len(shape) > 1 else 1
        return Blocks(address, nbytes // count, count, id)

    def deregister(self, blocks: Blocks) -> None:
        """Deregisters an array. Raises StateError while a transfer uses it that does not end in time."""
        self._agent.deregister(blocks.id)

    def metadata(self, *blocks: Blocks, connection: bool = True) -> bytes:
        """What other agents load: how to connect, and all registrations or these.

        Whoever reads it can access the memory. Without `connection`, only agents that have loaded a way to connect
        accept it.
        """
        if blocks or not connection:
            return self._agent.partial_metadata([one.id for one in blocks], connection)
        return self._agent.metadata()

    def load(self, metadata: bytes) -> str:
        """Loads another agent's metadata, and returns its name. Raises ArgumentError if it is not accepted."""
        return self._agent.load(metadata)

    def unload(self, metadata: bytes) -> None:
        """Forgets the memory that metadata names."""
        self._agent.unload(metadata)

    def forget(self, agent: str) -> None:
        """Forgets an agent's metadata."""
        self._agent.forget(agent)

    def agents(self) -> list[str]:
        """The names of the agents whose metadata was loaded."""
        return self._agent.agents()

    def memory_of(self, agent: str) -> list[tuple[int, int]]:
        """The registered memory of an agent that is known here, as descriptors."""
        return self._agent.memory_of(agent)

    def connect(self, agent: str, timeout: float = 0.0) -> bool:
        """Connects, as the first transfer does otherwise. Returns whether the connection is there."""
        return self._agent.connect(agent, timeout)

    def prepare(self, direction: str, local: Descriptors, remote: Descriptors, agent: str) -> Transfer:
        """A transfer to post: descriptor by descriptor; direction "write" to the other agent, or "read" from it."""
        if direction not in ("read", "write"):
            raise ArgumentError(f"direction {direction!r}: use 'read' or 'write'")
        return Transfer(self._agent.prepare(direction == "write", list(local), list(remote), agent))

    def write(self, local: Descriptors, remote: Descriptors, agent: str, notify: bytes | None = None) -> Transfer:
        """Starts to write from here to the other agent."""
        return self.prepare("write", local, remote, agent).post(notify)

    def read(self, local: Descriptors, remote: Descriptors, agent: str, notify: bytes | None = None) -> Transfer:
        """Starts to read from the other agent."""
        return self.prepare("read", local, remote, agent).post(notify)

    def notify(self, agent: str, message: bytes) -> None:
        """Sends a notification by itself. It does not wait."""
        self._agent.notify(agent, message)

    def notification(self, timeout: float = 0.0) -> Notification | None:
        """The next notification, at once or after at most so many seconds."""
        found = self._agent.notification(timeout)
        return None if found is None else Notification(*found)

    async def next_notification(self) -> Notification:
        """The next notification, for a coroutine; `asyncio.wait_for` limits the time."""
        pause = 0.0
        while (found := self.notification()) is None:
            await asyncio.sleep(pause)
            pause = min(_PAUSE_S, pause + _PAUSE_S / 64)
        return found
