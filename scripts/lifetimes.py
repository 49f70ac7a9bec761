#!/usr/bin/env python3
"""Finds casts that lengthen a lifetime; handles own what they need instead (docs/decisions/handles-own.md).

    scripts/lifetimes.py

Prints each place and exits with 1 if there is one. It refuses, outside of tests and comments:
- a transmute to a type with a lifetime,
- a reference that is made anew from its own address (`&*ptr::from_ref(…)`),
- a leaked box that becomes a reference,
- `&'static` in the same statement as, or as the result of a function with, a dereferenced raw pointer.
"""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
STATIC = r"&'static (?!str\b|\[|dyn )"
POINTER = r"&(?:mut )?\*|\.as_ref\(\)|\.as_mut\(\)|from_raw"
RULES = {
    "a transmute to a type with a lifetime": r"transmute(?:::<[^;]*?&?'[a-z_]+|(?:_copy)?\([^;]*?\)\s*as [^;]*'[a-z]+)",
    "a reference made anew from its address": r"&(?:mut )?\*\s*(?:std::|core::)?ptr::from_(?:ref|mut)\b",
    "a leaked box": r"\bBox::leak\(",
    "`&'static` of a raw pointer": rf"{STATIC}[^;{{}}]*=\s*unsafe\s*\{{[^}}]*(?:{POINTER})",
}
FUNCTION = re.compile(rf"fn \w+[^;{{]*->[^;{{]*{STATIC}[^;{{]*\{{")


def code(text: str) -> str:
    """The text without comments, strings and what follows the tests' module; lines stay where they are."""
    text = re.sub(r"(?m)^#\[cfg\(test\)\]\s*\n(?:#\[.*\]\s*\n)*mod \w+ \{[\s\S]*", "", text)
    text = re.sub(r'"(?:\\.|[^"\\\n])*"', '""', text)
    return re.sub(r"//.*", "", text)


def body(text: str, start: int) -> str:
    """The block that opens before `start`."""
    depth = 1
    for at in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if depth == 0:
            return text[start:at]
    return text[start:]


def found(text: str) -> list[tuple[int, str]]:
    places = [(match.start(), what) for what, rule in RULES.items() for match in re.finditer(rule, text)]
    for match in FUNCTION.finditer(text):
        inside = re.search(rf"unsafe\s*\{{[^}}]*(?:{POINTER})", body(text, match.end()))
        if inside:
            places.append((match.start(), "a function that makes `&'static` of a raw pointer"))
    return sorted(places)


def main() -> int:
    files = subprocess.run(["git", "ls-files", "*.rs"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    bad = 0
    for name in files.split():
        if "/tests/" in f"/{name}" or name.endswith("tests.rs") or "/examples/" in name:
            continue
        text = code((ROOT / name).read_text())
        for at, what in found(text):
            print(f"{name}:{text.count(chr(10), 0, at) + 1}: {what}")
            bad += 1
    return min(bad, 1)


if __name__ == "__main__":
    sys.exit(main())
