"""Makes a table and a picture of the output of products.py: `python3 products_figures.py FILE.json [PICTURE.svg]`

The table is Markdown, on the standard output. The picture shows the hidden share of the moves, by shape.
"""

import json
import sys
from html import escape

# The candidates in the picture, by their names in products.py, with their colours.
SHOWN = [("symrail", "#1f6feb"), ("torch async", "#d29922"), ("torch", "#8b949e")]
TITLES = {"gather": "all-gather", "reduce": "reduce-scatter", "all-reduce": "all-reduce"}
LOWEST, HIGHEST = -1.0, 1.0
LEFT, TOP, HEIGHT, BAR, GAP, FOOT = 44, 44, 180, 16, 22, 52


def read(path: str) -> dict:
    """Figures of each shape, by name: the ones written last."""
    shapes: dict = {}
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            figure = json.loads(line)
            if figure["kind"] != "copy":
                shapes.setdefault((figure["kind"], tuple(figure["shape"])), {})[figure["name"]] = figure
    return shapes


def table(shapes: dict) -> str:
    names = ["symrail", "torch async", "torch", "product alone", "copies alone", "nccl alone"]
    heads = ["product and", "M, K, N", "Symrail, us (TFLOP/s)", "torch async", "torch, NCCL"]
    heads += ["alone", "copies", "NCCL", "hidden"]
    lines = [f"| {' | '.join(heads)} |", "|---|---|" + "---:|" * 7]
    for (kind, shape), figures in shapes.items():
        cells = [TITLES[kind], ", ".join(f"{size:,}" for size in shape)]
        for name in names:
            figure = figures.get(name)
            text = "-" if figure is None else f"{figure['us']:,.0f}"
            rated = figure is not None and not name.endswith("alone")
            cells.append(f"{text} ({figure['tflops']:.0f})" if rated else text)
        hidden = figures.get("symrail", {}).get("efficiency")
        cells.append("-" if hidden is None else f"{hidden:.2f}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def picture(shapes: dict) -> str:
    """Bars from 0: a value below the lowest mark ends there, with its number beside it."""
    group = BAR * len(SHOWN) + GAP
    width, bottom = LEFT + group * len(shapes) + 120, TOP + HEIGHT

    def y(value: float) -> float:
        value = min(max(value, LOWEST), HIGHEST)
        return TOP + (HIGHEST - value) / (HIGHEST - LOWEST) * HEIGHT

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{bottom + FOOT}" '
        'font-family="sans-serif" font-size="10" fill="#24292f">',
        f'<rect width="{width}" height="{bottom + FOOT}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="16" font-size="12">Share of the moves that is hidden (1: all of them)</text>',
    ]
    for tick in (-1.0, -0.5, 0.0, 0.5, 1.0):
        colour = "#57606a" if tick == 0 else "#d0d7de"
        out.append(f'<line x1="{LEFT}" x2="{width - 110}" y1="{y(tick)}" y2="{y(tick)}" stroke="{colour}"/>')
        out.append(f'<text x="{LEFT - 6}" y="{y(tick) + 3}" text-anchor="end">{tick:g}</text>')
    for i, ((kind, shape), figures) in enumerate(shapes.items()):
        left = LEFT + GAP / 2 + i * group
        for j, (name, colour) in enumerate(SHOWN):
            hidden = figures.get(name, {}).get("efficiency")
            if hidden is None:
                continue
            top, low = y(max(hidden, 0)), y(min(hidden, 0))
            x = left + j * BAR
            out.append(f'<rect x="{x}" y="{top}" width="{BAR - 3}" height="{max(low - top, 1)}" fill="{colour}"/>')
            if hidden < LOWEST:
                at = f'x="{x + BAR / 2}" y="{low - 4}" font-size="8" text-anchor="middle"'
                out.append(f"<text {at}>{hidden:.1f}</text>")
        middle = left + BAR * len(SHOWN) / 2
        rows = [kind, f"{shape[0]}", f"x {shape[1]}", f"x {shape[2]}"]
        for line, text in enumerate(rows):
            out.append(f'<text x="{middle}" y="{bottom + 12 + 11 * line}" text-anchor="middle">{escape(text)}</text>')
    for j, (name, colour) in enumerate(SHOWN):
        out.append(f'<rect x="{width - 100}" y="{TOP + 16 * j}" width="10" height="10" fill="{colour}"/>')
        out.append(f'<text x="{width - 86}" y="{TOP + 9 + 16 * j}">{escape(name)}</text>')
    return "\n".join([*out, "</svg>", ""])


def main() -> None:
    shapes = read(sys.argv[1])
    print(table(shapes))
    if len(sys.argv) > 2:
        with open(sys.argv[2], "w", encoding="utf-8") as out:
            out.write(picture(shapes))


main()
