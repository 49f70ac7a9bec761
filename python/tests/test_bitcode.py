"""The device functions as LLVM bitcode, without a GPU: clang makes them, and Triton compiles kernels with them."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).parent / "programs" / "triton_compiled.py"
BITCODE = ROOT / "kernels/bitcode"


def clang():
    names = [os.environ.get("CLANG"), *(f"clang-{version}" for version in range(14, 31)), "clang"]
    return next(found for name in names if name and (found := shutil.which(name)))


@pytest.fixture(scope="module")
def bitcode(tmp_path_factory):
    """The file that scripts/bitcode.sh makes, without the one that the package has."""
    file = tmp_path_factory.mktemp("bitcode") / "libsymrail_device.bc"
    done = subprocess.run([ROOT / "scripts/bitcode.sh", file], capture_output=True, text=True, check=False)
    if done.returncode == 77:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stderr
    return file


def as_text(file):
    command = [clang(), "-x", "ir", "--target=nvptx64-nvidia-cuda", "-O0", "-S", "-emit-llvm", file, "-o", "-"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module")
def text(bitcode):
    """The bitcode as text."""
    return as_text(bitcode)


def exported(text):
    """The functions that other modules can call."""
    return set(re.findall(r"^define (?!internal ).*?@([\w.]+)\(", text, re.MULTILINE))


def of_headers():
    """The functions that api.cuh and symrail_nvshmem.cuh define."""
    options = ["-x", "cuda", "--cuda-device-only", "--cuda-gpu-arch=sm_70", "-nocudainc", "-nocudalib", "-std=c++17"]
    includes = ["-include", BITCODE / "clang.cuh", ROOT / "kernels/include/symrail_nvshmem.cuh"]
    command = [clang(), *options, "-E", *includes]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    found, file = set(), ""
    for line in lines:
        if marker := re.match(r'# \d+ "([^"]*)"', line):
            file = Path(marker.group(1)).name
        elif file in ("api.cuh", "symrail_nvshmem.cuh"):
            found.update(re.findall(r"always_inline\)\)[^(;{}]*?\b(\w+)\(", line))
    return found


def test_it_has_the_functions_of_the_headers(text):
    there, wanted = exported(text), of_headers()
    assert len(wanted) > 1000, len(wanted)
    assert wanted <= there, sorted(wanted - there)
    # Functions that other headers define.
    assert {f"symrail_{name}" for name in ("my_pe", "n_pes", "ptr", "fence", "quiet", "team_my_pe")} <= there
    others = {name for name in there - wanted if not name.startswith(("symrail_program_", "symrail_"))}
    assert not others, others


# Names that PyTorch's and Triton-distributed's kernels call.
NVSHMEM = """nvshmem_my_pe nvshmem_n_pes nvshmem_ptr nvshmem_team_my_pe nvshmem_team_n_pes nvshmem_team_translate_pe
nvshmem_barrier nvshmemx_barrier_warp nvshmemx_barrier_block nvshmem_team_sync nvshmemx_team_sync_block nvshmem_int_p nvshmem_fence nvshmem_quiet nvshmem_barrier_all
nvshmem_sync_all nvshmem_signal_wait_until nvshmem_longlong_wait_until nvshmem_uint64_wait_until_any nvshmem_int_test
nvshmemx_signal_op nvshmemx_barrier_all_block nvshmemx_sync_all_warp nvshmem_uint64_atomic_fetch_add nvshmem_float_g
nvshmem_int_atomic_compare_swap nvshmemx_broadcastmem_block nvshmemx_fcollectmem_warp nvshmem_alltoallmem nvshmem_float_broadcast
nvshmemx_double_fcollect_block""".split() + [
    f"nvshmem{x}_{name}{scope}"
    for x, scope in (("", ""), ("x", "_warp"), ("x", "_block"))
    for name in ("putmem", "putmem_nbi", "getmem", "getmem_nbi", "putmem_signal", "putmem_signal_nbi", "float_put")
]


def test_it_has_nvshmem_names(text):
    assert set(NVSHMEM) <= exported(text), set(NVSHMEM) - exported(text)


def test_triton_gets_only_the_functions_that_its_kernels_call(bitcode, text):
    small = bitcode.with_name("libsymrail_program.bc")
    assert exported(as_text(small)) == {name for name in exported(text) if name.startswith("symrail_program_")}
    assert small.stat().st_size * 10 < bitcode.stat().st_size


def test_the_header_is_whole(bitcode):
    """All headers in one, for numba: what it includes is in it, and it defines what api.cuh defines."""
    header = bitcode.with_name("symrail_device.cuh")
    assert "#include" not in header.read_text(encoding="utf-8").replace("#include <", "").replace("* Include", "")
    assert header.read_text(encoding="utf-8").count("#define SYMRAIL_API_CUH") == 1


def test_it_needs_nothing_but_the_compiler(text):
    needed = set(re.findall(r"^declare .*@([\w.]+)\(", text, re.MULTILINE))
    assert all(name.startswith("llvm.") for name in needed), needed
    # Intrinsics with a PTX instruction in their name have other names in other versions of LLVM.
    assert all("sreg" in name for name in needed if name.startswith("llvm.nvvm.")), needed
    constants = re.findall(r"^@(\w+) = .*$", text, re.MULTILINE)
    assert "symrail_state" in constants
    assert re.search(r"^@symrail_state = .*addrspace\(4\) externally_initialized constant ", text, re.MULTILINE)
    assert "addrspace(3) global" not in text, "static shared memory"


def test_it_has_no_target_of_its_own(text):
    assert not re.findall(r"target-cpu|target-features|!llvm.module.flags", text)


def needs(*packages):
    for package in packages:
        try:
            found = importlib.util.find_spec(package)
        except ModuleNotFoundError:
            found = None
        if found is None:
            pytest.skip(f"SKIPPED: {package} is not installed")


def needs_triton():
    needs("torch", "triton")


def package_with(bitcode, folder):
    """The package with the files that scripts/bitcode.sh made for this test, as PYTHONPATH."""
    import symrail

    staged = folder / "symrail"
    staged.mkdir()
    for file in Path(symrail.__file__).parent.iterdir():
        if file.suffix not in (".bc", ".cuh"):
            (staged / file.name).symlink_to(file.resolve())
    for name in ("libsymrail_device.bc", "libsymrail_program.bc", "symrail_device.cuh"):
        (staged / name).symlink_to(bitcode.with_name(name))
    return str(folder)


def compiled(program, bitcode, folder, *args):
    (folder / "package").mkdir()
    environment = {**os.environ, "PYTHONPATH": package_with(bitcode, folder / "package")}
    command = [sys.executable, PROGRAM.with_name(program), *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    missing = re.search(r"DynamicLibNotFoundError: (.*)", done.stderr)
    if missing:
        pytest.skip(f"SKIPPED: {missing.group(1)}")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()[-1]


def test_numba_kernels_compile(bitcode, tmp_path):
    needs("numba", "numba_cuda")
    said = compiled("numba_compiled.py", bitcode, tmp_path)
    assert "not called: none" in said, said


def test_cute_kernels_compile(bitcode, tmp_path):
    needs("cutlass.cute")
    made = tmp_path / "made"
    made.mkdir()
    assert compiled("cute_compiled.py", bitcode, tmp_path, made) == "compiled for sm_90a"


def test_triton_kernels_compile(bitcode, tmp_path):
    needs_triton()
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, PROGRAM, bitcode], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "compiled for 80, 90 and 100", done.stdout


def test_launches_without_a_job_are_refused():
    needs_triton()
    program = Path(__file__).parent / "programs" / "triton_refused.py"
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "refused\n", done.stdout
