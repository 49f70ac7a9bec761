#!/usr/bin/env python3
"""Makes a site of README, CONTRIBUTING and docs/: `scripts/site.py [FOLDER]` (default: target/site).

A page of HTML for each page, with the same links; a link that leads nowhere is an error. Needs the Python package
`markdown`.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import markdown

ROOT = Path(__file__).resolve().parents[1]
STYLE = """body{max-width:60rem;margin:2rem auto;padding:0 1rem;font:1rem/1.5 sans-serif}
pre{background:#f4f4f4;padding:.7rem;overflow:auto}code{font-size:.9em}img{max-width:100%}
table{border-collapse:collapse}td,th{border:1px solid #ccc;padding:.2rem .5rem;text-align:left;vertical-align:top}"""
PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{title}</title><style>{style}</style><nav><a href="{top}README.html">Symrail</a> ·
<a href="{top}docs/run.html">run</a> · <a href="{top}docs/environment.html">settings</a> ·
<a href="{top}docs/architecture.html">architecture</a> · <a href="{top}docs/benchmarks/README.html">figures</a></nav>
{body}</html>
"""


def slug(heading: str, _separator: str) -> str:
    """The anchor of a heading, as in the sources' links."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def main(out: Path) -> int:
    """Writes the site; returns the number of links that lead nowhere."""
    sources = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    shutil.rmtree(out, ignore_errors=True)
    bodies: dict[Path, str] = {}
    anchors: dict[Path, set[str]] = {}
    for source in sources:
        extensions = ["tables", "fenced_code", "toc", "sane_lists"]
        bodies[source] = markdown.markdown(
            source.read_text(), extensions=extensions, extension_configs={"toc": {"slugify": slug}}, tab_length=2
        )
        anchors[source] = set(re.findall(r'<h\d id="([^"]+)"', bodies[source]))
    broken = []
    for source, body in bodies.items():

        def target(match: re.Match[str], source: Path = source) -> str:
            attribute, link = match[1], match[2]
            path, _, anchor = link.partition("#")
            if re.match(r"[a-z]+:", link):
                return match[0]
            to = (source.parent / path).resolve() if path else source
            if not to.exists() or (anchor and to in anchors and anchor not in anchors[to]):
                broken.append(f"{source.relative_to(ROOT)}: {link}")
            if to in bodies:
                path = re.sub(r"\.md$", ".html", path)
            elif to.is_file():
                copied = out / to.relative_to(ROOT)
                copied.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(to, copied)
            return f'{attribute}="{path}{"#" + anchor if anchor else ""}"'

        body = re.sub(r'(href|src)="([^"]+)"', target, body)
        page = out / source.relative_to(ROOT).with_suffix(".html")
        page.parent.mkdir(parents=True, exist_ok=True)
        title = re.search(r"^# (.*)$", source.read_text(), re.M)
        top = "../" * (len(page.relative_to(out).parts) - 1)
        page.write_text(PAGE.format(title=title[1] if title else source.stem, style=STYLE, top=top, body=body))
    print(f"site: {len(bodies)} pages in {out}")
    for link in broken:
        print(f"site: leads nowhere: {link}", file=sys.stderr)
    return len(broken)


if __name__ == "__main__":
    sys.exit(min(main(Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else ROOT / "target" / "site"), 1))
