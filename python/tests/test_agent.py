"""Agents: transfers by name between arrays, notifications, errors, coroutines."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from symrail.agent import Agent, Blocks
from symrail.errors import ArgumentError, PeerLostError, TimeoutError

PAGES, PAGE = 64, 4096


@pytest.fixture(autouse=True)
def rails(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("SYMRAIL_") and not name.startswith("SYMRAIL_TEST")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SYMRAIL_TRANSPORT", "libfabric")
    monkeypatch.setenv("SYMRAIL_LIBFABRIC_PROVIDER", "tcp;ofi_rxm")
    monkeypatch.setenv("SYMRAIL_NIC_LIST", "127.0.0.2")
    monkeypatch.setenv("SYMRAIL_TIMEOUT_S", "20")


class Member:
    def __init__(self, name: str) -> None:
        self.agent = Agent(name)
        self.cache = np.zeros((PAGES, PAGE), np.uint8)
        self.pages = self.agent.register(self.cache)


@pytest.fixture
def two() -> Iterator[tuple[Member, Member]]:
    left, right = Member("left"), Member("right")
    assert left.agent.load(right.agent.metadata()) == "right"
    yield left, right


def test_pages_move_and_notifications_come_behind_them(two: tuple[Member, Member]) -> None:
    left, right = two
    left.cache[:] = np.arange(PAGES)[:, None]
    transfer = left.agent.write(left.pages[3, 5, 8], right.pages[0:6:2], "right", notify=b"three")
    assert right.agent.notification(timeout=30) == ("left", b"three")
    assert [int(right.cache[page].min()) for page in (0, 2, 4)] == [3, 5, 8]
    transfer.wait(timeout=30)
    assert transfer.done() and transfer.operations == 3
    for round in range(3):
        left.cache[:] = round + 1
        transfer.post(b"again %d" % round).wait()
        assert right.agent.notification(timeout=30) == ("left", b"again %d" % round)
        assert (right.cache[4] == round + 1).all()
    right.cache[:] = np.arange(PAGES)[::-1, None]
    whole = left.agent.prepare("read", left.pages, right.pages, "right")
    assert whole.operations == 1
    whole.post().wait()
    assert (left.cache == right.cache).all()
    left.agent.notify("left", b"to myself")
    assert left.agent.notification(timeout=5) == ("left", b"to myself")
    assert left.agent.notification() is None


def test_other_threads_go_on_while_an_agent_is_dropped() -> None:
    turns, ends = 0, threading.Event()

    def count() -> None:
        nonlocal turns
        while not ends.is_set():
            turns += 1
            time.sleep(0)

    thread, interval = threading.Thread(target=count), sys.getswitchinterval()
    thread.start()
    # This thread keeps Python's lock until it gives it up by itself.
    sys.setswitchinterval(1000)
    try:
        for number in range(100):
            agent = Agent(f"dropped {number}")
            before = turns
            del agent
            if turns > before:
                break
        else:
            raise AssertionError("no other thread had a turn")
    finally:
        sys.setswitchinterval(interval)
        ends.set()
        thread.join()


def test_what_is_not_accepted_raises_and_changes_nothing(two: tuple[Member, Member]) -> None:
    left, right = two
    with pytest.raises(ArgumentError, match="load its metadata"):
        left.agent.write(left.pages[0], right.pages[0], "nobody")
    with pytest.raises(ArgumentError, match="not inside one registration"):
        left.agent.write([(left.pages.address, PAGE)], [(right.pages.address + PAGES * PAGE, PAGE)], "right")
    with pytest.raises(ArgumentError, match="use as many"):
        left.agent.write(left.pages[0, 1], right.pages[0], "right")
    with pytest.raises(ArgumentError, match="there are 64"):
        left.pages[PAGES]
    with pytest.raises(ArgumentError, match="use 'read' or 'write'"):
        left.agent.prepare("put", left.pages[0], right.pages[0], "right")
    with pytest.raises(ArgumentError, match="not contiguous"):
        left.agent.register(np.zeros((8, 8))[:, ::2])
    with pytest.raises(ArgumentError, match="not accepted"):
        left.agent.load(right.agent.metadata()[:-1] + b"\0")
    with pytest.raises(ArgumentError, match="1 to 1024"):
        Agent("")
    read_only = np.zeros(8)
    read_only.flags.writeable = False
    with pytest.raises(ArgumentError, match="writeable"):
        left.agent.register(read_only)

    class OnGpu:
        shape = (PAGES, PAGE)
        __cuda_array_interface__ = {
            "data": (left.pages.address, False),
            "shape": shape,
            "typestr": "|u1",
            "version": 3,
        }

    # Host memory is no GPU's, and a machine without a driver says what it lacks.
    with pytest.raises(ArgumentError, match="no CUDA driver|GPU"):
        left.agent.register(OnGpu())


def test_memory_joins_later_and_is_deregistered(two: tuple[Member, Member]) -> None:
    left, right = two
    more = np.zeros(100, np.float32)
    blocks = right.agent.register(more)
    assert (len(blocks), blocks.nbytes) == (1, 400) and isinstance(blocks, Blocks)
    with pytest.raises(ArgumentError):
        left.agent.write([(left.pages.address, 400)], blocks, "right")
    left.agent.load(right.agent.metadata(blocks, connection=False))
    left.cache[0, :400] = np.full(100, 2.5, np.float32).view(np.uint8)
    left.agent.write([(left.pages.address, 400)], blocks, "right").wait(30)
    assert (more == 2.5).all()
    left.agent.unload(right.agent.metadata(blocks, connection=False))
    right.agent.deregister(blocks)
    with pytest.raises(ArgumentError, match="no registration"):
        right.agent.deregister(blocks)
    assert left.agent.memory_of("right") == [(right.pages.address, PAGES * PAGE)]


def test_coroutines_wait_for_transfers_and_notifications(two: tuple[Member, Member]) -> None:
    left, right = two
    left.cache[:] = 9

    async def move() -> None:
        waiting = asyncio.create_task(right.agent.next_notification())
        transfers = [left.agent.write(left.pages[at], right.pages[at], "right") for at in range(PAGES)]
        await asyncio.gather(*(transfer._end() for transfer in transfers))
        await left.agent.prepare("write", left.pages[0], right.pages[0], "right").post(b"all")
        assert (await asyncio.wait_for(waiting, 30)).message == b"all"

    asyncio.run(move())
    assert (right.cache == 9).all()


def test_an_agent_that_leaves_raises_and_others_go_on(two: tuple[Member, Member]) -> None:
    left, right = two
    third = Member("third")
    left.agent.load(third.agent.metadata())
    assert left.agent.connect("right", timeout=30)
    transfer = left.agent.prepare("write", left.pages[0], right.pages[0], "right")
    del right.agent
    with pytest.raises(PeerLostError, match="right is lost"):
        for _ in range(1000):
            transfer.post().wait(timeout=60)
    left.agent.write(left.pages[0], third.pages[0], "third").wait(timeout=30)
    with pytest.raises(TimeoutError):
        silent = left.agent.prepare("read", left.pages, third.pages, "third").post()
        silent.wait(timeout=-1.0)
        raise TimeoutError("it had ended")


def test_a_paged_kv_cache_moves_between_processes() -> None:
    example = Path(__file__).parent.parent / "examples" / "kv_cache.py"
    ended = subprocess.run([sys.executable, str(example)], capture_output=True, text=True, timeout=170)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "prefill: 100 requests" in ended.stdout and "decode-1: 40 requests" in ended.stdout, ended.stdout
