"""Moves a paged KV cache by agents: one process fills pages, two others use them. One joins later, one leaves.

    python kv_cache.py

The processes tell one another their metadata through pipes; everything else is Symrail's.
"""

from __future__ import annotations

import multiprocessing
from multiprocessing.connection import Connection

import numpy as np

from symrail.agent import Agent

PAGES, PAGE_BYTES = 512, 16384
LAYERS = 4


def page_of(request: int, layer: int) -> int:
    return (37 * request + layer) % PAGES


def decode(name: str, requests: int, pipe: Connection) -> None:
    """Receives pages in a cache of its own, checks them, and leaves after so many requests."""
    cache = np.zeros((LAYERS, PAGES // 2, PAGE_BYTES), np.uint8)
    agent = Agent(name)
    layers = [agent.register(layer) for layer in cache]
    pipe.send((agent.metadata(), layers))
    agent.load(pipe.recv())
    for _ in range(requests):
        found = agent.notification(timeout=60)
        assert found is not None, "no request within 60 s"
        request, slot = (int(word) for word in found.message.split())
        # The notification has come behind the pages.
        for layer in range(LAYERS):
            expected = (page_of(request, layer) * 7 + layer) % 251
            assert (cache[layer, slot] == expected).all(), f"{name}: request {request}, layer {layer}"
        agent.notify(found.agent, b"done %d" % request)
    print(f"{name}: {requests} requests", flush=True)


def start(name: str, requests: int) -> tuple[multiprocessing.Process, Connection]:
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=decode, args=(name, requests, there))
    process.start()
    there.close()
    return process, here


def main() -> None:
    cache = np.zeros((LAYERS, PAGES, PAGE_BYTES), np.uint8)
    for layer in range(LAYERS):
        cache[layer] = ((np.arange(PAGES) * 7 + layer) % 251)[:, None]
    agent = Agent("prefill")
    layers = [agent.register(layer) for layer in cache]

    def join(pipe: Connection) -> tuple[str, list]:
        metadata, theirs = pipe.recv()
        pipe.send(agent.metadata())
        return agent.load(metadata), theirs

    def serve(request: int, to: tuple[str, list]) -> None:
        name, theirs = to
        slot = request % (PAGES // 2)
        local = [one for layer in range(LAYERS) for one in layers[layer][page_of(request, layer)]]
        remote = [one for layer in range(LAYERS) for one in theirs[layer][slot]]
        agent.write(local, remote, name, notify=b"%d %d" % (request, slot)).wait(timeout=60)
        done = agent.notification(timeout=60)
        assert done == (name, b"done %d" % request), done

    first, pipe = start("decode-1", 40)
    one = join(pipe)
    for request in range(20):
        serve(request, one)
    second, pipe = start("decode-2", 60)  # It joins while the other one is served.
    two = join(pipe)
    for request in range(20, 60):
        serve(request, one if request % 2 else two)
    first.join(60)  # It leaves, and is forgotten.
    agent.forget(one[0])
    for request in range(60, 100):
        serve(request, two)
    second.join(60)
    assert first.exitcode == 0 and second.exitcode == 0, (first.exitcode, second.exitcode)
    print(f"prefill: 100 requests, {100 * LAYERS * PAGE_BYTES >> 10} KiB")


if __name__ == "__main__":
    main()
