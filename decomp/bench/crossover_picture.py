#!/usr/bin/env python3
"""Draws bandwidths of all-to-alls by multiprocessors and by copy engines over the size of a block.

Usage: crossover_picture.py FILE > docs/decomp-crossover.svg

FILE has the output of `pe gpu_decomp crossover`; the script reads its line in JSON.
"""

import json
import math
import sys

WIDTH, HEIGHT, LEFT, BELOW, TOP = 760, 360, 60, 66, 34
COLOURS = {"multiprocessors": "#1f77b4", "engines": "#d62728"}

with open(sys.argv[1]) as file:
    blocks = next(json.loads(line)["blocks"] for line in file if line.startswith('{"unit"'))
rates = {way: [(block["bytes"], block["bytes"] / block[way] / 1e3) for block in blocks] for way in COLOURS}
first, last = (math.log2(block["bytes"]) for block in (blocks[0], blocks[-1]))
most = 100 * math.ceil(max(rate for line in rates.values() for _, rate in line) / 100)


def x(size):
    return LEFT + (WIDTH - LEFT - 20) * (math.log2(size) - first) / (last - first)


def y(rate):
    return HEIGHT - BELOW - (HEIGHT - BELOW - TOP) * rate / most


def named(size):
    """A size as people write it."""
    unit = min(int(math.log2(size)) // 10, 3)
    return f"{size >> 10 * unit} {['B', 'KiB', 'MiB', 'GiB'][unit]}"


size = f'width="{WIDTH}" height="{HEIGHT}"'
print(f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">')
print('<rect width="100%" height="100%" fill="white"/>')
print(f'<text x="{LEFT}" y="18">GB/s of a block of an all-to-all, one way, over its size</text>')
for rate in range(0, most + 1, 100):
    print(f'<path d="M{LEFT} {y(rate):.1f}H{WIDTH - 20}" stroke="#ddd"/>')
    print(f'<text x="{LEFT - 8}" y="{y(rate) + 4:.1f}" text-anchor="end">{rate}</text>')
for block in blocks:
    at = f'x="{x(block["bytes"]):.1f}" y="{HEIGHT - BELOW + 18}"'
    print(f'<text {at} text-anchor="middle">{named(block["bytes"])}</text>')
for number, (way, line) in enumerate(rates.items()):
    points = " ".join(f"{x(size):.1f},{y(rate):.1f}" for size, rate in line)
    print(f'<polyline points="{points}" fill="none" stroke="{COLOURS[way]}" stroke-width="2"/>')
    title = "copy engines" if way == "engines" else way
    print(f'<text x="{LEFT + 170 * number}" y="{HEIGHT - 14}" fill="{COLOURS[way]}">{title}</text>')
print("</svg>")
