"""Compiles the kernels of gpu/triton_kernels.py without a GPU: `python triton_compiled.py BITCODE`."""

import re
import sys
from pathlib import Path

import torch.utils._triton
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

sys.path.insert(0, str(Path(__file__).parents[1] / "gpu"))
import triton_kernels as kernels

# PyTorch defines its functions only where there is a GPU.
torch.utils._triton.has_triton = lambda: True
import torch.distributed._symmetric_memory._nvshmem_triton as nvshmem  # noqa: E402
from symrail.triton import jit  # noqa: E402

FLOATS, WORDS = "*fp32", "*i64"
COPIES = {"there": FLOATS, "here": FLOATS, "back": FLOATS, "n": "i32", "pe": "i32"}
SIGNALLED = {"inbox": WORDS, "outbox": WORDS, "signal": WORDS, "out": WORDS, "n": "i32", "lap": "i32", "pe": "i32"}


@jit
def written_for_nvshmem(dest, source, n, signal, value, op, pe):
    """PyTorch's functions for NVSHMEM."""
    nvshmem.put(dest, source, n, pe)
    nvshmem.get(dest, source, n, pe)
    nvshmem.putmem_signal_block(dest, source, n, signal, value, op, pe)
    nvshmem.signal_wait_until(signal, op, value)
    nvshmem.signal_op(signal.to(tl.int64), value, op, pe)
    nvshmem.fence()
    nvshmem.quiet()
    nvshmem.barrier_all()
    nvshmem.sync_all()
    tl.store(dest, (nvshmem.my_pe() + nvshmem.n_pes()).to(tl.float32))


def cases():
    """Each kernel with the types of its arguments, and its constants."""
    for scope in ("thread", "warp", "block"):
        for nbi in (False, True):
            yield kernels.copies, COPIES, {"SCOPE": scope, "NBI": nbi}
            yield kernels.signalled, SIGNALLED, {"SCOPE": scope, "NBI": nbi}
    for word in ("*i8", "*u16", "*bf16", "*u32", "*fp32", "*u64", "*fp64"):
        yield kernels.values, {"word": word, "value": word, "out": word, "pe": "i32"}, {}
    for word in ("*i32", "*u32", "*i64", "*u64", "*fp32", "*fp64"):
        yield kernels.atomics, {"word": word, "out": word, "pe": "i32"}, {"WHOLE": "fp" not in word}
    yield kernels.meeting, {"word": WORDS, "out": WORDS, "laps": "i32", "pe": "i32"}, {}
    yield kernels.peers, {"x": FLOATS, "out": FLOATS, "pe": "i32"}, {"BLOCK": 1024}
    reduced = {"shared": FLOATS, "arrived": WORDS, "out": FLOATS, "n": "i32", "lap": "i32"}
    yield kernels.triton_all_reduce.one_shot_all_reduce, reduced, {"PES": 8, "BLOCK": 4096}
    passed = {"inbox": FLOATS, "outbox": FLOATS, "ready": WORDS, "taken": WORDS, "out": FLOATS, "chunks": "i32"}
    passed |= {"next": "i32", "last": "i32"}
    yield kernels.triton_all_reduce.pipeline, passed, {"BLOCK": 1024, "SLOTS": 4}
    yield kernels.in_team, {"word": WORDS, "out": WORDS, "team": "i64", "pe": "i32"}, {}
    for what, scope in (("broadcast", "block"), ("fcollect", "warp"), ("alltoall", "thread")):
        types = {"there": FLOATS, "here": FLOATS, "n": "i32", "team": "i64", "root": "i32"}
        yield kernels.collected, types, {"WHAT": what, "SCOPE": scope}
    types = {"inbox": FLOATS, "outbox": FLOATS, "back": FLOATS, "word": "*i32", "signal": WORDS, "out": WORDS}
    yield kernels.for_nvshmem, {**types, "n": "i32", "pe": "i32"}, {}
    yield kernels.names, {"out": WORDS, "team": "i64"}, {}
    for kind in ("get", "put", "put_signal"):
        yield kernels.rows, {"data": FLOATS, "signals": WORDS, "n": "i32"}, {"KIND": kind, "SCOPE": "warp", "NBI": True}
    yield kernels.signals_only, {"signal": WORDS, "laps": "i32", "me": "i32"}, {}
    yield kernels.stream, {"there": FLOATS, "here": FLOATS, "n": "i32", "laps": "i32"}, {"WAIT": True}
    matrices = {"a": "*fp16", "b": "*fp16", "c": FLOATS, "arrived": WORDS, "rows": "i32", "n": "i32", "k": "i32", "lap": "i32"}
    blocks = {"PES": 2, "BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32}
    yield kernels.triton_all_gather_matmul.all_gather_matmul, matrices, blocks
    put = {"dest": FLOATS, "source": FLOATS, "n": "i32", "signal": WORDS, "value": "i64", "op": "i32", "pe": "i32"}
    yield written_for_nvshmem, put, {}


def compiled(kernel, types, constants, arch, bitcode):
    source = ASTSource(kernel, {**types, **dict.fromkeys(constants, "constexpr")}, constants)
    options = {"extern_libs": {"symrail_device": bitcode}}
    return triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)


def main():
    bitcode = sys.argv[1]
    for kernel, types, constants in cases():
        made = compiled(kernel, types, constants, 90, bitcode)
        ptx = made.asm["ptx"]
        assert re.search(r"\.visible \.const .*\bsymrail_state\[", ptx), "the state is not visible"
        # Calls by an address are calls with other types than the definition's, which are not inlined.
        assert "prototype" not in ptx, kernel
        assert ".shared" not in ptx or made.metadata.shared > 0, "static shared memory"
        assert made.asm["cubin"], kernel
    for arch in (80, 100):
        assert compiled(kernels.values, {"word": FLOATS, "value": FLOATS, "out": FLOATS, "pe": "i32"}, {}, arch, bitcode)
    print("compiled for 80, 90 and 100")


main()
