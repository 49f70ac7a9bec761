#!/usr/bin/env python3
"""A cable with latency between this network namespace and another one, where the kernel has no netem.

delayed-cable.py NAME MBIT MS NAMESPACE-FILE makes an interface NAME in both namespaces, and moves frames between them
until it is killed: at most MBIT Mbit/s in each direction, MS milliseconds after they were sent. It prints a line once
both interfaces exist.
"""

import collections
import ctypes
import fcntl
import os
import select
import struct
import sys
import time

TUNSETIFF, IFF_TAP, IFF_NO_PI, CLONE_NEWNET = 0x400454CA, 0x0002, 0x1000, 0x40000000
# Bytes that wait at an end: more are dropped, as by a switch.
LIMIT = 16 << 20


def tap(name):
    """Makes an interface in the present namespace, and returns the descriptor of its frames."""
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI))
    return fd


def main():
    name, rate, delay = sys.argv[1], float(sys.argv[2]) * 1e6 / 8, float(sys.argv[3]) / 1e3
    here = tap(name)
    with open(sys.argv[4]) as namespace:
        if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "setns")
    there = tap(name)
    print("both ends exist", flush=True)
    other = {here: there, there: here}
    # By the end that sends: frames with the times of their arrival, their bytes, and when the cable is free.
    frames = {end: collections.deque() for end in other}
    waiting = dict.fromkeys(other, 0)
    free = dict.fromkeys(other, 0.0)
    while True:
        due = min((queue[0][0] for queue in frames.values() if queue), default=None)
        pause = None if due is None else max(0.0, due - time.monotonic())
        readable, _, _ = select.select(list(other), [], [], pause)
        now = time.monotonic()
        for end in readable:
            for _ in range(64):
                try:
                    frame = os.read(end, 65536)
                except OSError:  # none left, or the interface is down
                    break
                if waiting[end] + len(frame) > LIMIT:
                    continue
                free[end] = max(free[end], now) + len(frame) / rate
                frames[end].append((free[end] + delay, frame))
                waiting[end] += len(frame)
        for end, queue in frames.items():
            while queue and queue[0][0] <= now:
                frame = queue.popleft()[1]
                waiting[end] -= len(frame)
                try:
                    os.write(other[end], frame)
                except OSError:  # the other end is down
                    pass


main()
