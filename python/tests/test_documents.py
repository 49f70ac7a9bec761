"""README and docs: links resolve, and what they print as examples runs, or compiles, as it stands.

A block that cannot run here stands behind a comment with the reason, `<!-- not run: … -->`. If it is Python or a kernel
it is compiled all the same; if it is a shell's, the files that it names must exist. Blocks of Python and C that begin with their file's name are files for the other blocks of
their page. Rust runs by documentation tests of crates. Shell commands run in a folder that looks like a clone in which
everything was built and installed in ~/symrail, from the programs of this test run.
"""

from __future__ import annotations

import ctypes
import functools
import glob
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import LIMIT_S, environment, launcher

ROOT = Path(__file__).parents[2]
PAGES = sorted({ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")})
BLOCK = re.compile(r"^(?:<!-- not run: (?P<why>[^>]+) -->\n)?```(?P<language>[\w+]+)\n(?P<text>.*?)^```$", re.M | re.S)
# The first line of a block that is a file: `# ring.py: …` or `/* hello.c: …`.
FILE = re.compile(r"(?:# |/\* )(\w+\.(?:py|c)):")


@dataclass
class Block:
    """A block of code."""

    page: Path
    line: int
    language: str
    text: str
    why: str | None

    @property
    def file(self) -> str | None:
        """The name of the file that it is."""
        found = FILE.match(self.text)
        return found[1] if found else None

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path) -> list[Block]:
    """The blocks of a page."""
    text = page.read_text()
    return [
        Block(page, text.count("\n", 0, it.start("text")), it["language"], it["text"], it["why"])
        for it in BLOCK.finditer(text)
    ]


BLOCKS = [block for page in PAGES for block in blocks(page)]


def of(*languages: str) -> pytest.MarkDecorator:
    """All blocks of these languages, each by its place."""
    chosen = [block for block in BLOCKS if block.language in languages]
    return pytest.mark.parametrize("block", chosen, ids=str)


def cannot_run(block: Block) -> None:
    """Skips a block that says why it cannot run here."""
    if block.why:
        pytest.skip(f"{block}: {block.why}")


@functools.cache
def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    text = BLOCK.sub("", page.read_text())
    headings = (re.sub(r"[`*]|\[|\]\([^)]*\)", "", it).strip().lower() for it in re.findall(r"^#+ (.*)$", text, re.M))
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links(page: Path) -> None:
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", BLOCK.sub("", page.read_text())):
        if re.match(r"https?://", link):
            continue
        path, _, anchor = link.partition("#")
        to = (page.parent / path).resolve() if path else page
        if not to.exists():
            broken.append(f"{link}: there is no {to.relative_to(ROOT)}")
        elif anchor and anchor not in anchors(to):
            broken.append(f"{link}: {to.name} has no heading of this name")
    assert not broken, f"{page.relative_to(ROOT)}: " + "; ".join(broken)


def test_site(tmp_path: Path) -> None:
    if importlib.util.find_spec("markdown") is None:
        pytest.skip("there is no markdown")
    ended = subprocess.run([sys.executable, ROOT / "scripts" / "site.py", tmp_path], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "docs" / "benchmarks" / "README.html").exists()


def test_named_files_exist() -> None:
    """README and the table of maturity name their proofs, the architecture the places of what it explains."""
    folders = r"(?:collectives|core|cuda|decomp|ep|heap|kernels|nvshmem|overlap|perftest|proxy|python|scripts|shmem|tests|transport)"
    missing = []
    for page in (ROOT / "README.md", ROOT / "docs" / "maturity.md", ROOT / "docs" / "architecture.md"):
        for name in re.findall(rf"`({folders}/[\w./*-]+)", page.read_text()):
            if not name.startswith("target/") and not glob.glob(str(ROOT / name)):
                missing.append(f"{page.name}: {name}")
    assert not missing, missing


def test_claims_have_proofs() -> None:
    """Each row of the tables below "Why" ends with a link, and each line of the table of maturity that says more than
    "never" names what shows it."""
    why = (ROOT / "README.md").read_text().partition("\n## Why\n")[2].partition("\n## ")[0]
    rows = [line for line in why.splitlines() if line.startswith("| ") and "---" not in line]
    proofs = {line: line.strip("| ").split(" | ")[-1] for line in rows if not line.endswith(("shown by |", "date |"))}
    assert len(proofs) >= 12
    assert not [line for line, proof in proofs.items() if not re.search(r"\]\(\S+\)", proof)]
    for line in (ROOT / "docs" / "maturity.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| ") and cells[1] not in ("never", "state"):
            assert cells[2], f"maturity.md: nothing shows: {line}"


def test_only_benchmarks_are_dated() -> None:
    """A date outside of docs/benchmarks is part of a link there."""
    dated = []
    for page in PAGES:
        if page.parent.name != "benchmarks":
            text = re.sub(r"\]\([^)]*\)", "", page.read_text())
            dated += [f"{page.relative_to(ROOT)}: {date}" for date in re.findall(r"\b20\d\d-\d\d-\d\d\b", text)]
    assert not dated, dated


def test_docs_are_short() -> None:
    """docs/ without the figures has 25,000 words at most."""
    words = sum(len(page.read_text().split()) for page in (ROOT / "docs").rglob("*.md") if page.parent.name != "benchmarks")
    assert words <= 25_000, words


def test_languages() -> None:
    known = {"sh", "python", "rust", "toml", "text", "c", "c++"}
    assert not [str(block) for block in BLOCKS if block.language not in known]
    fences = {page: len(re.findall(r"^```", page.read_text(), re.M)) for page in PAGES}
    # A block without a language would be tested by nothing.
    assert not [str(page) for page, count in fences.items() if count != 2 * len(blocks(page))]


# Programs of users that pages compile, and what stands in for them.
PROGRAMS = {"program.c": "pencils.c", "program.F90": "pencils.F90"}

# What a page calls that it has not compiled: a program for cuDecomp and MPI.
FOR_CUDECOMP = "mpicc -DWITH_MPI -I {0}/include/symrail/cudecomp program.c -L {0}/lib/symrail/cudecomp -lcudecomp -o program"

# What is built here already: it succeeds if that is there.
CARGO = """#!/bin/sh
while [ $# -gt 0 ]; do
  case $1 in
    --profile) shift ;;
    --example) shift; [ -x "target/release/examples/$1" ] || { echo "no example $1" >&2; exit 1; } ;;
    --bin) shift; [ -x "target/release/$1" ] || { echo "no program $1" >&2; exit 1; } ;;
    -p) shift; grep -qx "name = \\"$1\\"" */Cargo.toml */*/Cargo.toml || { echo "no package $1" >&2; exit 1; } ;;
  esac
  shift
done
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A home in which Symrail is installed."""
    home = tmp_path_factory.mktemp("home")
    settings = {**os.environ, "SYMRAIL_INSTALL_FROM": str(Path(launcher()).resolve().parent)}
    for script in ("install.sh", "nvshmem-install.sh"):
        subprocess.run([ROOT / "scripts" / script, "--prefix", home / "symrail"], env=settings, check=True)
    yield home
    shutil.rmtree(home)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that looks like a clone, with the commands that examples use in `bin`."""
    program = Path(launcher()).resolve()
    for entry in ROOT.iterdir():
        if entry.name not in ("target", "bin"):
            (tmp_path / entry.name).symlink_to(entry)
    (tmp_path / "target").mkdir()
    for profile in ("release", "quick"):
        (tmp_path / "target" / profile).symlink_to(program.parent)
    for name, source in PROGRAMS.items():
        (tmp_path / name).write_text(f'#include "{ROOT}/decomp/capi/tests/programs/{source}"\n')
    commands = tmp_path / "bin"
    commands.mkdir()
    for name in ("symrail", "oshcc", "oshc++", "oshrun"):
        (commands / name).symlink_to(program)
    for name in ("python", "python3"):
        (commands / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
        (commands / name).chmod(0o755)
    (commands / "cargo").write_text(CARGO)
    (commands / "cargo").chmod(0o755)
    return tmp_path


def files_of(page: Path, folder: Path) -> None:
    """Writes the files of a page, but those that cannot run here."""
    for block in blocks(page):
        if block.file and not block.why:
            (folder / block.file).write_text(block.text)


def needs(text: str) -> None:
    """Skips a program whose modules are not there."""
    for module in ("torch", "cupy", "matplotlib", "mpi4py"):
        if re.search(rf"^\s*(?:import|from) (?:[\w., ]+, )?{module}\b", text, re.M) and module != "matplotlib":
            if importlib.util.find_spec(module) is None:
                pytest.skip(f"there is no {module}")


def succeed(command: list[str], folder: Path, **more: str) -> None:
    """Runs a command in the folder, with its commands first in the path and more variables; it must succeed."""
    path = f"{folder / 'bin'}:{os.environ['PATH']}"
    as_root = {name: "1" for name in ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")}
    settings = environment(PATH=path, OMPI_MCA_rmaps_base_oversubscribe="1", **as_root, **more)
    ended = subprocess.run(
        command, cwd=folder, env=settings, capture_output=True, text=True, timeout=LIMIT_S, stdin=subprocess.DEVNULL
    )
    assert ended.returncode == 0, f"{command}: exit code {ended.returncode}\n{ended.stdout}\n{ended.stderr}"


@of("python")
def test_python(block: Block, folder: Path) -> None:
    compile(block.text, str(block), "exec")
    cannot_run(block)
    needs(block.text)
    program = folder / (block.file or "example.py")
    program.write_text(block.text)
    succeed(["symrail", "run", "-n", "2", "--", "python", str(program)], folder)


@of("sh")
def test_shell(block: Block, folder: Path, home: Path) -> None:
    subprocess.run(["bash", "-n", "-c", block.text], check=True)
    names_what_exists(block.text, folder, home)
    cannot_run(block)
    files_of(block.page, folder)
    shell(block.text, folder, home)


def names_what_exists(text: str, folder: Path, home: Path) -> None:
    """Files of this project that commands name must exist."""
    named = re.findall(r"(?:^|[\s=])((?:~/symrail|scripts|target/release|shmem|transport)/[\w./-]+)", text)
    places = [(home / path[2:]) if path.startswith("~/") else folder / path for path in named]
    assert not [str(path) for path in places if not path.exists()], text


def shell(text: str, folder: Path, home: Path) -> None:
    """Runs commands in the folder; skips those whose tools or modules are not there."""
    for name in re.findall(r"\bpython3? (\w+\.py)", text):
        needs((folder / name).read_text())
    for tool in ("mpirun", "gfortran"):
        if re.search(rf"\b{tool} ", text) and not shutil.which(tool):
            pytest.skip(f"there is no {tool}")
    built = str((folder / "target" / "release").resolve())
    settings = {"HOME": str(home), "SYMRAIL_INSTALL_FROM": built, "CARGO_TARGET_DIR": str(folder / "target")}
    if "mpirun" in text and "./program" in text and "-o program" not in text:
        succeed(["bash", "-c", FOR_CUDECOMP.format("~/symrail")], folder, **settings)
    succeed(["bash", "-eu", "-c", text], folder, **settings)


# The table "Use it": a command for each kind of user, and the page that has its files.
COMMAND = re.compile(r"^\| [^|]+ \| `([^`]+)`[^|]*\| (?:\[[^\]]+\]\(([\w/.-]+)|below)", re.M)
COMMANDS = COMMAND.findall((ROOT / "README.md").read_text().partition("| you have |")[2].partition("\n\n")[0])


@pytest.mark.parametrize(("command", "page"), COMMANDS, ids=lambda it: str(it)[:40])
def test_commands_of_readme(command: str, page: str, folder: Path, home: Path) -> None:
    names_what_exists(command, folder, home)
    if command.startswith("NCCL_NET_PLUGIN="):
        ctypes.CDLL(str(home / command.partition("~/")[2])).ncclNetPlugin_v10
        return
    if "torchrun" in command:
        pytest.skip("two GPUs and PyTorch")
    if page:
        files_of(ROOT / page, folder)
    # What stands for NVSHMEM's folder: the names that the script looks for.
    nvshmem = folder / "DIR"
    nvshmem.mkdir()
    for name in ("libnvshmem_host.so.3", "nvshmem_transport_ibrc.so.3"):
        (nvshmem / name).touch()
    # Without `gpu` on CPU threads, as the line says.
    shell(command.removesuffix(" gpu"), folder, home)


def test_each_kind_of_user_has_a_command() -> None:
    assert len(COMMANDS) >= 9


@of("c")
def test_c(block: Block, folder: Path) -> None:
    cannot_run(block)
    (folder / "example.c").write_text(block.text)
    succeed(["oshcc", "-Wall", "-Werror", "-o", "example", "example.c"], folder)
    succeed(["oshrun", "-np", "2", "./example"], folder)


@of("c++")
def test_kernel(block: Block) -> None:
    cannot_run(block)
    # Loaded first, the library that NVRTC looks for by name is found.
    names = ("libnvrtc-builtins.so", "libnvrtc.so")
    found = [sorted(glob.glob(str(ROOT / f"target/cuda/nvidia/cu13/lib/{name}.*"))) for name in names]
    try:
        nvrtc = [ctypes.CDLL(paths[0] if paths else name) for paths, name in zip(found, names)][1]
    except OSError:
        pytest.skip("there is no NVRTC; scripts/setup.sh --tests provides it")
    program = ctypes.c_void_p()
    source = block.text.encode()
    assert nvrtcs(nvrtc, "nvrtcCreateProgram", ctypes.byref(program), source, b"example.cu", 0, None, None) == 0
    options = [b"--gpu-architecture=sm_90", b"--std=c++17", b"--include-path=" + bytes(ROOT / "kernels/include")]
    code = nvrtcs(nvrtc, "nvrtcCompileProgram", program, len(options), (ctypes.c_char_p * len(options))(*options))
    size = ctypes.c_size_t()
    nvrtcs(nvrtc, "nvrtcGetProgramLogSize", program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    nvrtcs(nvrtc, "nvrtcGetProgramLog", program, log)
    nvrtcs(nvrtc, "nvrtcDestroyProgram", ctypes.byref(program))
    assert code == 0, f"{block}: {log.value.decode()}"


def nvrtcs(nvrtc: ctypes.CDLL, name: str, *args: object) -> int:
    """Calls a function of NVRTC."""
    return int(getattr(nvrtc, name)(*args))


def test_rust() -> None:
    """A page with Rust is documentation of a crate, whose documentation tests run it."""
    tested = set()
    for source in ROOT.glob("*/src/*.rs"):
        for page in re.findall(r'doc = include_str!\("([^"]+\.md)"\)', source.read_text()):
            tested.add((source.parent / page).resolve())
    untested = [str(it) for it in BLOCKS if it.language == "rust" and it.page not in tested and not it.why]
    assert not untested, untested
