#!/usr/bin/python3
"""A barrier of all PEs in SimGrid: shmem/src/barrier_plan.rs, with the costs of perftest/scale/src/model.rs.

For comparison with `symrail perf scale`. Needs Debian's python3-simgrid. Usage: scale-simgrid.py PES HOSTS
"""

import os
import sys
import tempfile

from simgrid import Actor, Engine, Host, Mailbox, this_actor

POST, LATENCY, ARRIVAL = (1.7e-6, 0.1e-6), (2.0e-6, 0.15e-6), (1.8e-6, 0.1e-6)

pes, hosts = int(sys.argv[1]), int(sys.argv[2])
each = pes // hosts
rounds = lambda n: (n - 1).bit_length()
ended = []


def send(me, to, what):
    near = me // each == to // each
    this_actor.sleep_for(POST[near])
    # Zero bytes cost the latency alone.
    Mailbox.by_name(f"{to}:{what}").put_init(near, 0).detach()


def wait(me, what):
    near = Mailbox.by_name(f"{me}:{what}").get()
    this_actor.sleep_for(ARRIVAL[near])


def pe(me):
    first, place = me - me % each, me % each
    below = rounds(each) if place == 0 else (place & -place).bit_length() - 1
    children = [bit for bit in range(below) if place + (1 << bit) < each]
    for bit in children:
        wait(me, f"gather{bit}")
    if place == 0:
        for k in range(rounds(hosts)):
            send(me, (me + (each << k)) % pes, f"round{k}")
            wait(me, f"round{k}")
    else:
        send(me, first + place - (1 << below), f"gather{below}")
        wait(me, "release")
    for bit in reversed(children):
        send(me, me + (1 << bit), "release")
    ended.append(Engine.clock)


def platform():
    """PEs behind separate links, half of the latency each, on hosts behind such links."""
    yield "<?xml version='1.0'?><!DOCTYPE platform SYSTEM 'https://simgrid.org/simgrid.dtd'><platform version='4.1'>"
    yield "<zone id='all' routing='Floyd'>"
    far = (LATENCY[0] - LATENCY[1]) / 2
    for host in range(hosts):
        yield f"<zone id='z{host}' routing='Floyd'><router id='r{host}'/>"
        numbers = range(host * each, (host + 1) * each)
        yield from (f"<host id='h{n}' speed='1Gf'/>" for n in numbers)
        yield from (f"<link id='l{n}' bandwidth='1TBps' latency='{LATENCY[1] / 2}s'/>" for n in numbers)
        yield from (f"<route src='h{n}' dst='r{host}'><link_ctn id='l{n}'/></route>" for n in numbers)
        yield "</zone>"
    yield "<zone id='middle' routing='Floyd'><router id='core'/></zone>"
    yield from (f"<link id='up{host}' bandwidth='1TBps' latency='{far}s'/>" for host in range(hosts))
    for host in range(hosts):
        yield f"<zoneRoute src='z{host}' dst='middle' gw_src='r{host}' gw_dst='core'>"
        yield f"<link_ctn id='up{host}'/></zoneRoute>"
    yield "</zone></platform>"


options = ["network/model:CM02", "network/latency-factor:1.0", "network/TCP-gamma:0", "network/crosstraffic:0"]
engine = Engine([sys.argv[0], *(f"--cfg={option}" for option in options), "--log=root.thresh:error"])
with tempfile.NamedTemporaryFile("w", suffix=".xml", delete=False) as file:
    file.write("\n".join(platform()))
engine.load_platform(file.name)
os.unlink(file.name)
for number in range(pes):
    Actor.create(f"pe{number}", Host.by_name(f"h{number}"), pe, number)
engine.run()
print(f"{pes} PEs on {hosts} hosts: {max(ended) * 1e6:.2f} us")
