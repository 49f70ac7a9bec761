"""Agents on two GPUs: every byte, notifications behind data, bandwidth beside copies of PyTorch, a peer that is killed.

`python agents.py` starts a second process, for the owner of the memory on the last GPU; the first one uses GPU 0. With
SYMRAIL_DISABLE_P2P=1 all goes through host memory and the rails. `python agents.py short` leaves out the figures.
"""

import multiprocessing
import os
import statistics
import sys
import time

# Odd lengths end in words and single bytes.
ODD = [1, 3, 4, 8, 13, 24, 100, 4093, 4099, 65537, (1 << 20) + 5]
LISTS = [(1, 64 << 20), (1, 1 << 20), (256, 4 << 10), (512, 64 << 10), (4096, 16 << 10)]
TOTAL = 1 << 30
MAPPED = os.environ.get("SYMRAIL_DISABLE_P2P", "0") in ("", "0")
TIMEOUT_S = 5


def pattern(torch, count, page, seed):
    """`count` pages that differ from one another and from those of other seeds."""
    words = torch.arange(count * page // 8, device="cuda", dtype=torch.int64)
    return (words * 2654435761 + seed).view(torch.uint8).view(count, page)


def places(count, page, seed):
    """Where the pages of a list are: scattered, none behind the one before it, and none twice."""
    slots = min(TOTAL // page, 4 * count)
    step = next(step for step in (7, 11, 13, 17, 1) if slots % step)
    return [(seed + index * step) % slots for index in range(count)]


def owner(pipe):
    import torch

    from symrail.agent import Agent

    torch.cuda.set_device(torch.cuda.device_count() - 1)
    agent = Agent("owner")
    memory = torch.zeros(TOTAL, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    blocks = agent.register(memory)
    pipe.send((agent.metadata(), blocks.address))
    while True:
        command, *arguments = pipe.recv()
        if command == "load":
            agent.load(*arguments)
        elif command == "clear":
            memory.zero_()
            torch.cuda.synchronize()
        elif command == "fill":
            count, page, seed, at = arguments
            memory[: TOTAL // page * page].view(-1, page)[at] = pattern(torch, count, page, seed)
            torch.cuda.synchronize()
        elif command == "check":
            # At once behind the notification: the bytes must be there.
            count, page, seed, at = arguments
            while (found := agent.notification(timeout=60)) is not None and not found.message:
                pass
            assert found is not None and found.message == b"%d" % seed, found
            pages = memory[: TOTAL // page * page].view(-1, page)
            right = bool((pages[at] == pattern(torch, count, page, seed)).all())
            pages[at] = 0
            pipe.send((right, int(memory.count_nonzero())))
            continue
        elif command == "cupy":
            import cupy

            array = cupy.arange(1 << 16, dtype=cupy.uint8).reshape(16, -1)
            cupy.cuda.Device().synchronize()
            other = agent.register(array)
            agent.write(other, arguments[0], "user").wait(timeout=60)
            agent.deregister(other)
        elif command == "deregister":
            begun = time.perf_counter()
            agent.deregister(blocks)
            pipe.send(time.perf_counter() - begun)
            blocks = agent.register(memory)
            pipe.send((agent.metadata(), blocks.address))
            continue
        elif command == "end":
            return
        pipe.send(True)


def ask(pipe, *command):
    pipe.send(command)
    return pipe.recv()


def checks(torch, agent, memory, blocks, pipe, base):
    for number, (count, page) in enumerate(LISTS):
        if not MAPPED and count * page > 16 << 20:
            count = (16 << 20) // page or 1
        seed, here, there = 1000 + number, places(count, page, 3), places(count, page, 0)
        local = [(blocks.address + at * page, page) for at in here]
        remote = [(base + at * page, page) for at in there]
        pages = memory[: TOTAL // page * page].view(-1, page)
        ask(pipe, "clear")
        pages[here] = pattern(torch, count, page, seed)
        torch.cuda.synchronize()
        transfer = agent.write(local, remote, "owner", notify=b"%d" % seed)
        right, rest = ask(pipe, "check", count, page, seed, there)
        transfer.wait(timeout=60)
        assert right and rest == 0, f"{count} x {page} bytes written: right {right}, {rest} other bytes changed"
        ask(pipe, "fill", count, page, seed + 1, there)
        memory.zero_()
        torch.cuda.synchronize()
        agent.read(local, remote, "owner").wait(timeout=60)
        assert (pages[here] == pattern(torch, count, page, seed + 1)).all(), f"{count} x {page} bytes read"
        pages[here] = 0
        assert int(memory.count_nonzero()) == 0, f"{count} x {page} bytes read: others changed"
        torch.cuda.synchronize()
        print(f"every byte of {count} x {page} bytes is right, written and read", flush=True)


def odd_lengths(torch, agent, memory, blocks, base):
    """Of all parts at once, at addresses that are no multiples either; and back, to another place."""
    places = [(index * (2 << 20) + index, length) for index, length in enumerate(ODD)]
    pattern_of = pattern(torch, 1, 64 << 20, 77).view(-1)
    memory.zero_()
    memory[: 64 << 20] = pattern_of
    torch.cuda.synchronize()
    local = [(blocks.address + at, length) for at, length in places]
    remote = [(base + at + 3, length) for at, length in places]
    back = [(blocks.address + (512 << 20) + at + 1, length) for at, length in places]
    agent.write(local, remote, "owner").wait(timeout=60)
    agent.read(back, remote, "owner").wait(timeout=60)
    for at, length in places:
        found = memory[(512 << 20) + at + 1 :][:length]
        assert (found == pattern_of[at : at + length]).all(), f"{length} bytes at {at}"
    print("odd lengths are right", flush=True)


def host_memory(torch, agent, memory, blocks, pipe, base):
    """Between a GPU's memory and that of the host, at the other agent and here."""
    import numpy as np

    host = np.arange(3 << 20, dtype=np.uint32).view(np.uint8)
    of_host = agent.register(host)
    size = host.nbytes
    agent.write([(of_host.address, size)], [(base + 4096, size)], "owner").wait(timeout=60)
    agent.read([(blocks.address, size)], [(base + 4096, size)], "owner").wait(timeout=60)
    assert (memory[:size].cpu().numpy() == host).all()
    host[:] = 0
    agent.read([(of_host.address, size)], [(base + 4096, size)], "owner").wait(timeout=60)
    agent.write([(blocks.address + size, size)], [(of_host.address, size)], "user").wait(timeout=60)
    agent.write([(of_host.address, size)], [(blocks.address + 2 * size, size)], "user").wait(timeout=60)
    assert (memory[size : 3 * size].view(2, -1).cpu().numpy()[1] == host).all()
    agent.deregister(of_host)
    theirs = blocks.address + (512 << 20)
    ask(pipe, "cupy", [(theirs + index * 8192, 4096) for index in range(16)])
    found = memory[512 << 20 :][: 16 * 8192].view(16, 8192)[:, :4096].cpu().numpy()
    assert (found == np.arange(1 << 16, dtype=np.uint8).reshape(16, -1)).all()
    print("host memory and CuPy's arrays are right", flush=True)


def figures(torch, agent, memory, blocks, pipe, base):
    """Times in turns: transfers, and the same bytes by PyTorch between the two GPUs in this process alone."""
    last = torch.cuda.device_count() - 1
    other = torch.empty(256 << 20, dtype=torch.uint8, device=f"cuda:{last}")
    here = torch.empty(256 << 20, dtype=torch.uint8, device="cuda:0")
    if last > 0:
        other.copy_(here)

    def timed(work):
        torch.cuda.synchronize(0)
        torch.cuda.synchronize(last)
        begun = time.perf_counter()
        work()
        return time.perf_counter() - begun

    def row(name, total, ours, theirs, rounds=15):
        mine, other = [], []
        for turn in range(rounds + 2):
            pair = timed(ours), timed(theirs)
            if turn > 1:
                mine.append(pair[0])
                other.append(pair[1])
        mine, other = statistics.median(mine), statistics.median(other)
        print(
            f"{name:34} {total / mine / 1e9:8.1f} GB/s, {mine * 1e6:9.1f} us;"
            f" PyTorch {total / other / 1e9:8.1f} GB/s, {other * 1e6:9.1f} us; ratio {other / mine:.2f}",
            flush=True,
        )

    def synchronize():
        torch.cuda.synchronize(0)

    largest = 256 << 20 if MAPPED else 16 << 20
    for direction in ("write", "read"):
        for size in (1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20):
            if size > largest:
                continue
            transfer = agent.prepare(direction, [(blocks.address, size)], [(base, size)], "owner")

            def one(transfer=transfer):
                transfer.post().wait()

            def copy(size=size):
                if direction == "write":
                    other[:size].copy_(here[:size], non_blocking=True)
                else:
                    here[:size].copy_(other[:size], non_blocking=True)
                synchronize()

            row(f"{direction} 1 x {size >> 10} KiB", size, one, copy)
        size = 1 << 20
        told = agent.prepare(direction, [(blocks.address, size)], [(base, size)], "owner")

        def notified(told=told):
            told.post(b"").wait()

        def copied(size=size):
            other[:size].copy_(here[:size], non_blocking=True)
            synchronize()

        row(f"{direction} 1 x 1024 KiB, notification", size, notified, copied)
        size, count = 1 << 20, 16
        many = [
            agent.prepare(direction, [(blocks.address + i * size, size)], [(base + i * size, size)], "owner")
            for i in range(count)
        ]

        def posted(many=many):
            for transfer in many:
                transfer.post()
            for transfer in many:
                transfer.wait()

        def copies(size=size):
            for i in range(count):
                other[i * size : (i + 1) * size].copy_(here[i * size : (i + 1) * size], non_blocking=True)
            synchronize()

        row(f"{direction} 16 transfers of 1 MiB", count * size, posted, copies)
        for count, page in LISTS[2:]:
            if not MAPPED and count * page > largest:
                count = largest // page
            local = [(blocks.address + at * page, page) for at in places(count, page, 3)]
            remote = [(base + at * page, page) for at in places(count, page, 0)]
            transfer = agent.prepare(direction, local, remote, "owner")

            def pages(transfer=transfer):
                transfer.post().wait()

            def loop(count=count, page=page):
                for i in range(count):
                    other[i * page : (i + 1) * page].copy_(here[i * page : (i + 1) * page], non_blocking=True)
                synchronize()

            row(f"{direction} {count} x {page >> 10} KiB, scattered", count * page, pages, loop, rounds=7)


def main():
    os.environ.setdefault("SYMRAIL_TRANSPORT", "libfabric")
    os.environ.setdefault("SYMRAIL_LIBFABRIC_PROVIDER", "tcp;ofi_rxm")
    os.environ.setdefault("SYMRAIL_NIC_LIST", "127.0.0.2,127.0.0.3")
    os.environ.setdefault("SYMRAIL_TIMEOUT_S", str(TIMEOUT_S))
    context = multiprocessing.get_context("spawn")
    pipe, theirs = context.Pipe()
    process = context.Process(target=owner, args=(theirs,), daemon=True)
    process.start()

    import torch

    from symrail.agent import Agent
    from symrail.errors import PeerLostError

    torch.cuda.set_device(0)
    agent = Agent("user")
    memory = torch.zeros(TOTAL, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    blocks = agent.register(memory)
    metadata, base = pipe.recv()
    assert agent.load(metadata) == "owner"
    ask(pipe, "load", agent.metadata())
    print("two processes,", torch.cuda.device_count(), "GPUs;", "mapped" if MAPPED else "staged", flush=True)
    checks(torch, agent, memory, blocks, pipe, base)
    odd_lengths(torch, agent, memory, blocks, base)
    host_memory(torch, agent, memory, blocks, pipe, base)
    last = torch.cuda.device_count() - 1
    torch.cuda.set_device(last)
    for _ in range(20):
        agent.write([(blocks.address, 1 << 20)], [(base, 1 << 20)], "owner", notify=b"").wait(timeout=60)
    assert torch.empty(1, device="cuda").get_device() == torch.cuda.current_device() == last, "another GPU is current"
    torch.cuda.set_device(0)
    if "short" not in sys.argv:
        figures(torch, agent, memory, blocks, pipe, base)

    # Deregistered while transfers go on: these fail or end, and memory that is registered again is used again.
    size = 16 << 20
    going = [agent.write([(blocks.address, size)], [(base, size)], "owner") for _ in range(4)]
    took = ask(pipe, "deregister")
    for transfer in going:
        try:
            transfer.wait(timeout=60)
        except Exception as error:
            print("a transfer that lost its memory:", error, flush=True)
    metadata, base = pipe.recv()
    agent.load(metadata)
    agent.write([(blocks.address, size)], [(base, size)], "owner").wait(timeout=60)
    print(f"deregistered within {took * 1e3:.1f} ms under transfers, and used again", flush=True)

    transfers = [agent.prepare("write", [(blocks.address, size)], [(base, size)], "owner") for _ in range(4)]
    for transfer in transfers:
        transfer.post()
    process.kill()
    begun = time.monotonic()
    try:
        while time.monotonic() < begun + 60:
            for transfer in transfers:
                transfer.wait(timeout=60)
                transfer.post()
        sys.exit("the killed process was not noticed")
    except PeerLostError as error:
        print(f"a killed process is lost after {time.monotonic() - begun:.2f} s: {error}", flush=True)
        assert time.monotonic() < begun + 2 * TIMEOUT_S + 2
    agent.deregister(blocks)
    print("OK", flush=True)


if __name__ == "__main__":
    main()
