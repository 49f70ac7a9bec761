#!/usr/bin/env python3
"""Bandwidth of puts and gets of 8 B to 16 MiB over 1, 2 and 4 rails and mapped, by host threads and CPU devices.

Usage: rail-sweep.py measure FILE [TURNS]   appends the figures of TURNS turns (3) to FILE, as lines of JSON
       rail-sweep.py table FILE             a table of medians in Markdown, and the sizes that are slower than wanted
       rail-sweep.py plot FILE              an SVG of the medians

SYMRAIL names the program (target/release/symrail). PREFIX are words before it, for example "chrt -f 10"; between two
minutes of such runs this script waits as long, so that others get the machine.
"""

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROGRAM = os.environ.get("SYMRAIL", str(Path(__file__).parents[1] / "target/release/symrail"))
PREFIX = os.environ.get("PREFIX", "").split()
TESTS, DEVICES, WAYS = ("put-bw", "get-bw"), ("host", "cpu"), ("1", "2", "4", "mapped")
# Sizes, the operations in a window, and the windows.
RANGES = (("8", "64K", "64", "200"), ("128K", "16M", "8", "20"))
BUSY_S = 60
COLOURS = {"1": "#1f77b4", "2": "#2ca02c", "4": "#d62728", "mapped": "#9467bd"}


def run(test, device, way):
    """The figures of one series, by size, in MB/s."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("SYMRAIL_")}
    where = ["--hosts", "1"] if way == "mapped" else ["--rails", way]
    if way != "mapped":
        env["SYMRAIL_LIBFABRIC_PROVIDER"] = "tcp;ofi_rxm"
    found = {}
    for least, most, window, count in RANGES:
        with tempfile.NamedTemporaryFile(suffix=".json") as file:
            sizes = ["-b", least, "-e", most, "-W", window, "-i", count, "-w", "2"]
            command = [*PREFIX, PROGRAM, "perf", test, *sizes, "--device", device, *where, "--json", file.name]
            subprocess.run(command, env=env, check=True, stdout=subprocess.DEVNULL, timeout=60)
            found |= {row["size"]: row["value"] for row in json.load(open(file.name))}
    return found


def measure(path, turns):
    busy = time.monotonic()
    for turn in range(turns):
        for way in WAYS:
            for test in TESTS:
                for device in DEVICES:
                    if PREFIX and time.monotonic() - busy > BUSY_S:
                        time.sleep(BUSY_S)
                        busy = time.monotonic()
                    load = float(open("/proc/loadavg").read().split()[0])
                    row = {"test": test, "device": device, "way": way, "load": load, "values": run(test, device, way)}
                    with open(path, "a") as file:
                        print(json.dumps(row), file=file)
        print("turn", turn + 1, "of", turns, file=sys.stderr)


def medians(path):
    """Medians by series and size; the loads."""
    series, loads = {}, []
    for row in map(json.loads, open(path)):
        loads.append(row["load"])
        for size, value in row["values"].items():
            series.setdefault((row["test"], row["device"], row["way"]), {}).setdefault(int(size), []).append(value)
    return {name: {size: statistics.median(v) for size, v in of.items()} for name, of in series.items()}, loads


def words(size):
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size // unit} {name}"
    return f"{size} B"


def figure(value):
    return "" if value is None else f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def table(path):
    found, loads = medians(path)
    print(f"Load {min(loads)} to {max(loads)}.\n")
    columns = [(device, way) for device in DEVICES for way in WAYS]
    for test in TESTS:
        print(f"| `{test}` | " + " | ".join(f"{device}, {way}" for device, way in columns) + " |")
        print("|---:|" + "---:|" * len(columns))
        for size in sorted({size for (name, *_), of in found.items() if name == test for size in of}):
            values = [found.get((test, *column), {}).get(size) for column in columns]
            print(f"| {words(size)} | " + " | ".join(map(figure, values)) + " |")
        print()
    print("Below what is wanted:\n")
    for (test, device, way), of in sorted(found.items()):
        one, host = found.get((test, device, "1"), {}), found.get((test, "host", way), {})
        sizes = sorted(of)
        for before, size in zip([None, *sizes], sizes):
            if before and of[size] < 0.9 * of[before]:
                print(f"- {test}, {device}, {way}: {words(size)} has {of[size] / of[before]:.2f} of {words(before)}")
            if way in "24" and of[size] < one.get(size, 0):
                print(f"- {test}, {device}, {way}: {words(size)} has {of[size] / one[size]:.2f} of one rail")
            if device == "cpu" and of[size] < 0.9 * host.get(size, 0):
                print(f"- {test}, {device}, {way}: {words(size)} has {of[size] / host[size]:.2f} of the host's")


def plot(path):
    found, _ = medians(path)
    width, height, left, top, pitch = 380, 300, 60, 40, 430
    print(f'<svg xmlns="http://www.w3.org/2000/svg" width="{2 * pitch}" height="780"')
    print('font-family="sans-serif" font-size="12">')
    print('<rect width="100%" height="100%" fill="white"/>')
    for row, test in enumerate(TESTS):
        for column, device in enumerate(DEVICES):
            x0, y0 = left + column * pitch, top + row * 360
            print(f'<text x="{x0}" y="{y0 - 12}">{test}, {device}: MB/s, medians</text>')
            x = lambda size: x0 + (size.bit_length() - 4) / 21 * (width - 20)
            y = lambda value: y0 + height - math.log10(min(max(value, 1), 1e5)) / 5 * height
            for power in range(6):
                at = y(10**power)
                print(f'<path d="M{x0} {at:.1f}H{x0 + width - 20}" stroke="#ddd"/>')
                print(f'<text x="{x0 - 6}" y="{at + 4:.1f}" text-anchor="end">{10**power:,}</text>')
            for size in (8, 256, 8 << 10, 256 << 10, 8 << 20):
                print(f'<text x="{x(size):.1f}" y="{y0 + height + 16}" text-anchor="middle">{words(size)}</text>')
            for way in WAYS:
                of = found.get((test, device, way), {})
                points = " ".join(f"{x(size):.1f},{y(of[size]):.1f}" for size in sorted(of))
                print(f'<polyline points="{points}" fill="none" stroke="{COLOURS[way]}" stroke-width="2"/>')
    for number, way in enumerate(WAYS):
        name = "mapped" if way == "mapped" else f"{way} rail" + "s" * (way != "1")
        print(f'<text x="{left + number * 120}" y="765" fill="{COLOURS[way]}">{name}</text>')
    print("</svg>")


def main():
    match sys.argv[1:]:
        case ["measure", path, *turns]:
            measure(path, int(turns[0]) if turns else 3)
        case ["table", path]:
            table(path)
        case ["plot", path]:
            plot(path)
        case _:
            sys.exit(__doc__)


main()
