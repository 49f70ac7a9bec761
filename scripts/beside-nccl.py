#!/usr/bin/env python3
"""Draws times of collectives beside NCCL's over the size, from the file of collectives/nccl/bench/beside_nccl.c --json.

Usage: beside-nccl.py FILE > docs/collectives.svg
"""

import json
import math
import sys

WIDTH, PANEL, LEFT, BELOW, TOP = 760, 330, 60, 46, 24
COLOURS = {"all-reduce": "#1f77b4", "all-gather": "#2ca02c", "reduce-scatter": "#d62728"}

with open(sys.argv[1]) as file:
    rows = [json.loads(line) for line in file]
rows = [row for row in rows if row["mode"] == "graph/plain" and row["type"] == "bf16" and not row["sockets"]]
rows.sort(key=lambda row: row["bytes"])
sizes = sorted({row["bytes"] for row in rows})
first, last = math.log2(sizes[0]), math.log2(sizes[-1])


def named(size):
    """A size as people write it."""
    unit = min(int(math.log2(size)) // 10, 3)
    return f"{size >> 10 * unit} {['B', 'KiB', 'MiB', 'GiB'][unit]}"


def x(size):
    return LEFT + (WIDTH - LEFT - 20) * (math.log2(size) - first) / (last - first)


def panel(top, title, values, low, high, ticks, scale=math.log10):
    """Lines over the sizes: {collective: {library: [(size, value)]}}."""

    def y(value):
        part = (scale(value) - scale(low)) / (scale(high) - scale(low))
        return top + PANEL - BELOW - (PANEL - BELOW - TOP) * part

    print(f'<text x="{LEFT}" y="{top + 14}">{title}</text>')
    for tick in ticks:
        print(f'<path d="M{LEFT} {y(tick):.1f}H{WIDTH - 20}" stroke="#ddd"/>')
        print(f'<text x="{LEFT - 8}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick:g}</text>')
    shown = -100.0
    for size in sizes:
        if x(size) - shown < 52:
            continue
        shown = x(size)
        print(f'<text x="{shown:.1f}" y="{top + PANEL - BELOW + 18}" text-anchor="middle">{named(size)}</text>')
    for collective, lines in values.items():
        for whose, line in lines.items():
            points = " ".join(f"{x(size):.1f},{y(value):.1f}" for size, value in line)
            dashed = ' stroke-dasharray="5 4"' if whose == "NCCL" else ""
            print(f'<polyline points="{points}" fill="none" stroke="{COLOURS[collective]}" stroke-width="2"{dashed}/>')


def lines(of):
    """The result of `of` for each row's time."""
    of_rows = lambda collective, key: [(r["bytes"], of(r, r[key])) for r in rows if r["collective"] == collective]
    return {
        collective: {"Symrail": of_rows(collective, "symrail_us"), "NCCL": of_rows(collective, "nccl_us")}
        for collective in COLOURS
        if of_rows(collective, "nccl_us")
    }


def bus(row, microseconds):
    moved = row["bytes"] * (row["ranks"] - 1) / row["ranks"] * (2 if row["collective"] == "all-reduce" else 1)
    return moved / microseconds / 1e3


def reach(values, scales):
    """The scale's steps around all values."""
    all_values = [value for kinds in values.values() for line in kinds.values() for _, value in line]
    low = max([step for step in scales if step <= min(all_values)], default=scales[0])
    high = min([step for step in scales if step >= max(all_values)], default=scales[-1])
    return low, high, [step for step in scales if low <= step <= high]


height = 2 * PANEL + 30
size = f'width="{WIDTH}" height="{height}"'
print(f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">')
print('<rect width="100%" height="100%" fill="white"/>')
times, rates = lines(lambda _, time: time), lines(bus)
what = f"{rows[0]['ranks']} × {rows[0]['device']}, bf16, in a CUDA graph"
panel(0, f"µs of a call: {what}", times, *reach(times, [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000]))
steps = [0, 100, 200, 300, 400, 500, 600, 700, 800]
panel(PANEL, "bus bandwidth, GB/s", rates, *reach(rates, steps), scale=float)
for number, collective in enumerate(times):
    print(f'<text x="{LEFT + 150 * number}" y="{height - 14}" fill="{COLOURS[collective]}">{collective}</text>')
print(f'<text x="{LEFT + 460}" y="{height - 14}">dashed: NCCL {rows[0]["nccl_version"]}</text>')
print("</svg>")
