"""Prints tables of what `scripts/gpu.sh transposes` measured, from files with lines of JSON of several turns.

Usage: table.py FILE ...
"""

import json
import statistics
import sys

OURS, PEERS = "symrail", ("torch", "NVSHMEM")

figures = {}
wrong = []
for name in sys.argv[1:]:
    with open(name) as file:
        for line in file:
            if not line.startswith('{"system"'):
                continue
            one = json.loads(line)
            key = one["what"], one["edge"], one["system"]
            figures.setdefault(key, []).append((one["us"], one["moved"]))
            if not one["right"]:
                wrong.append(key)


def median(what, edge, system):
    found = figures.get((what, edge, system))
    return statistics.median(us for us, _ in found) if found else None


def best(what, edge, systems):
    """The least of the medians, in a graph or not, and its origin."""
    found = [
        (us, system + more)
        for system in systems
        for more in ("", ", graph")
        if (us := median(what + more, edge, system)) is not None
    ]
    return min(found, default=None)


systems = sorted({system for _, _, system in figures}, key=lambda system: (system in PEERS, system))
edges = sorted({edge for _, edge, _ in figures})
print("us (medians of turns)")
print(f"{'':34}" + "".join(f"{system:>18}" for system in systems))
for edge in edges:
    for what in sorted({what for what, at, _ in figures if at == edge}):
        row = [median(what, edge, system) for system in systems]
        print(f"{edge:>5} {what:28}" + "".join(f"{'-' if us is None else f'{us:.1f}':>18}" for us in row))

print("\nours beside the better peer, and what crosses NVLink each way")
for edge in edges:
    for what in ("four transposes", "the two that cross", "halo", "halo, periodic"):
        ours = best(what, edge, [system for system in systems if system.startswith(OURS)])
        peer = best(what, edge, PEERS)
        if ours is None:
            continue
        moved = next(found[0][1] for key, found in figures.items() if key[:2] == (what, edge))
        line = f"{edge:>5} {what:20} {ours[0]:>10.1f} us ({ours[1]}), {moved / ours[0] / 1e3:.0f} GB/s"
        if peer:
            line += f"; {peer[0]:.1f} us ({peer[1]}): {ours[0] / peer[0]:.2f} x"
        print(line)
alone = [(edge, what, system) for what, edge, system in figures if "alone" in what]
for edge, what, system in sorted(alone):
    found = figures[what, edge, system]
    us = median(what, edge, system)
    print(f"{edge:>5} {system}: {what} {us:.1f} us, {found[0][1] / us / 1e3:.0f} GB/s")
if wrong:
    print("WRONG:", sorted(set(wrong)))
    sys.exit(1)
