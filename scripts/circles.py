#!/usr/bin/env python3
"""Lists circles of source files that depend on each other; fails if one has more than four files.

Usage: circles.py [MOST] [--edges]

A file depends on the files of its crate whose items its code names by `crate::` or `super::` paths, or by the modules
below it. A re-export counts as its target. Declarations of modules and re-exports are no dependences, and tests are
left out.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TESTS = re.compile(r"#\[cfg\(test\)\]\s*(?:#\[[^\]]*\]\s*)*mod \w+ \{")
REEXPORT = re.compile(r"\bpub\s+use\s+([^;]+);")
USE = re.compile(r"\buse\s+([^;]+);")
PATH = re.compile(r"\b(?:crate|super)(?:::\w+)+")


def source(file: Path) -> str:
    """A file's code, without its tests and comments, and without the places that may see an item."""
    return re.sub(r"//.*|(?<=\bpub)\([^)]*\)", "", TESTS.split(file.read_text(), maxsplit=1)[0])


def expand(tree: str) -> list[str]:
    """The paths of a `use` tree."""
    found = re.match(r"^(.*?)\{(.*)\}$", tree.strip(), re.S)
    if not found:
        return [tree]
    paths, depth, branch = [], 0, ""
    for each in found[2] + ",":
        depth += {"{": 1, "}": -1}.get(each, 0)
        if each == "," and depth == 0:
            paths += expand(found[1] + branch.strip()) if branch.strip() else []
            branch = ""
        else:
            branch += each
    return paths


class Crate:
    """The modules of a crate, by their paths, and the modules that each depends on."""

    def __init__(self, src: Path) -> None:
        self.code: dict[tuple[str, ...], str] = {}
        for file in sorted(src.rglob("*.rs")):
            parts = file.relative_to(src).with_suffix("").parts
            if parts[0] != "bin" and not {"tests"} & set(parts):
                self.code[parts[:-1] if parts[-1] in ("mod", "lib", "main") else parts] = source(file)
        # The module that an exported name comes from.
        self.exports = {module: self.exported(module) for module in self.code}
        self.needs = {module: self.needed(module) for module in self.code}

    def owner(self, path: tuple[str, ...]) -> tuple[str, ...]:
        """The innermost module of a path."""
        while path and path not in self.code:
            path = path[:-1]
        return path

    def absolute(self, module: tuple[str, ...], path: str) -> tuple[str, ...] | None:
        """A path from the crate's root; `None` for those of other crates."""
        parts = re.sub(r"\s+as\s+\w+", "", path).replace("\n", "").replace(" ", "").split("::")
        if parts[0] == "crate":
            return tuple(parts[1:])
        if parts[0] == "self":
            return module + tuple(parts[1:])
        if parts[0] == "super":
            while parts and parts[0] == "super":
                module, parts = module[:-1], parts[1:]
            return module + tuple(parts)
        return module + tuple(parts) if module + (parts[0],) in self.code else None

    def exported(self, module: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
        names = {}
        for path in (path for tree in REEXPORT.findall(self.code[module]) for path in expand(tree)):
            if at := self.absolute(module, path):
                renamed = re.search(r"\bas\s+(\w+)", path)
                names[renamed[1] if renamed else at[-1]] = self.owner(at)
        return names

    def needed(self, module: tuple[str, ...]) -> set[tuple[str, ...]]:
        code = REEXPORT.sub("", self.code[module])
        paths = [path for tree in USE.findall(code) for path in expand(tree)] + PATH.findall(code)
        found = set()
        for at in filter(None, (self.absolute(module, path) for path in paths)):
            owner = self.owner(at)
            rest = at[len(owner) :]
            while rest and rest[0] in self.exports.get(owner, {}) and self.exports[owner][rest[0]] != owner:
                owner, rest = self.exports[owner][rest[0]], rest[1:]
            found.add(owner)
        return found & self.code.keys() - {module}

    def circles(self) -> list[list[tuple[str, ...]]]:
        """Sets of modules each of which reaches all others."""
        reach = {}
        for module in self.code:
            seen, left = set(), [module]
            while left:
                new = self.needs[left.pop()] - seen
                seen |= new
                left += new
            reach[module] = seen
        circles = {frozenset(other for other in seen if module in reach[other]) for module, seen in reach.items()}
        return [sorted(circle) for circle in circles if len(circle) > 1]


def main() -> int:
    numbers = [int(argument) for argument in sys.argv[1:] if argument.isdigit()]
    most, edges, crates, large = numbers[0] if numbers else 4, "--edges" in sys.argv, 0, 0
    for manifest in sorted(ROOT.rglob("Cargo.toml")):
        src = manifest.parent / "src"
        if "target" in manifest.relative_to(ROOT).parts or not src.is_dir():
            continue
        crates += 1
        crate = Crate(src)
        for circle in (circle for circle in crate.circles() if len(circle) > most):
            large += 1
            print(f"{src.relative_to(ROOT)}: {len(circle)} files:", *("::".join(at) or "lib" for at in circle))
            for at in circle if edges else []:
                needs = sorted(crate.needs[at] & set(circle))
                print(f"  {'::'.join(at) or 'lib'} ->", *("::".join(to) or "lib" for to in needs))
    print(f"{crates} crates: {large} circles of more than {most} files")
    return int(large > 0)


if __name__ == "__main__":
    sys.exit(main())
