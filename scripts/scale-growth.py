#!/usr/bin/env python3
"""Draws the growth of a PE's memory with the job, from files of `symrail perf scale --json`.

Usage: scale-growth.py FILE ... > docs/scale-growth.svg
"""

import json
import sys

WIDTH, HEIGHT, LEFT, BELOW = 760, 380, 70, 60
COLOURS = ["#1f77b4", "#2ca02c", "#d62728", "#9467bd"]

jobs = []
for name in sys.argv[1:]:
    with open(name) as file:
        figures = json.load(file)
    jobs.append(figures.get("after", figures))
jobs.sort(key=lambda job: job["pes"])
first, last = jobs[0]["pes"], jobs[-1]["pes"]
wanted = {"after the all-to-all": "AllToAll(64)", "with a team of all PEs": "Team"}


def held(job, work):
    return next(row["held"]["mean"] for row in job["rows"] if row["work"] == work)


lines = {"joined": [job["joined"]["mean"] for job in jobs]}
lines |= {title: [held(job, work) for job in jobs] for title, work in wanted.items()}
lines = {title: [bytes - values[0] for bytes in values] for title, values in lines.items()}
lines["64 bytes for each further PE"] = [64 * (job["pes"] - first) for job in jobs]
most = max(max(values) for values in lines.values())
x = lambda pes: LEFT + (WIDTH - LEFT - 20) * (pes - first) / (last - first)
y = lambda bytes: HEIGHT - BELOW - (HEIGHT - BELOW - 30) * bytes / most

print(f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" font-size="12">')
print('<rect width="100%" height="100%" fill="white"/>')
print(f'<text x="{LEFT}" y="18">KiB that a PE holds more than in a job of {first} PEs (simulated)</text>')
for step in range(5):
    at = y(most * step / 4)
    print(f'<path d="M{LEFT} {at:.1f}H{WIDTH - 20}" stroke="#ddd"/>')
    print(f'<text x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{most * step / 4 / 1024:.0f}</text>')
for job in jobs:
    print(f'<text x="{x(job["pes"]):.1f}" y="{HEIGHT - BELOW + 18}" text-anchor="middle">{job["pes"]}</text>')
for number, (title, values) in enumerate(lines.items()):
    points = " ".join(f"{x(job['pes']):.1f},{y(bytes):.1f}" for job, bytes in zip(jobs, values))
    dashed = ' stroke-dasharray="5 4"' if title.startswith("64") else ""
    print(f'<polyline points="{points}" fill="none" stroke="{COLOURS[number]}" stroke-width="2"{dashed}/>')
    where = LEFT + 170 * number
    print(f'<text x="{where}" y="{HEIGHT - 12}" fill="{COLOURS[number]}">{title}</text>')
print("</svg>")
