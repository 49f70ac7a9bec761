"""Compiles a kernel of the CuTe DSL with the functions of symrail.cute without a GPU, to PTX: `python … FOLDER`."""

import os
import re
import sys
from pathlib import Path

folder = Path(sys.argv[1])
os.environ |= {"CUTE_DSL_ARCH": "sm_90a", "CUTE_DSL_KEEP": "ptx,cubin", "CUTE_DSL_DUMP_DIR": str(folder)}

import cutlass  # noqa: E402
import cutlass.cute as cute  # noqa: E402
import symrail.cute as shmem  # noqa: E402
from cutlass.cute.runtime import make_ptr  # noqa: E402
from symrail.errors import StateError  # noqa: E402


@cute.kernel
def kernel(data: cute.Pointer, words: cute.Pointer, n: cutlass.Int32, lap: cutlass.Int32):
    inbox, outbox, back = data, data + n, data + 2 * n
    pe = (shmem.my_pe() + 1) % shmem.n_pes()
    thread, _, _ = cute.arch.thread_idx()
    shmem.put_signal_block(inbox, outbox, n, words, lap, shmem.SIGNAL_SET, pe)
    if thread == 0:
        shmem.signal_wait_until(words, shmem.CMP_GE, lap)
        shmem.put(back, inbox, 1, pe)
        shmem.quiet()
        shmem.get(back + 1, inbox, n - 1, pe)
        shmem.signal_op(words + 1, 1, shmem.SIGNAL_ADD, pe)
        shmem.atomic_add(words + 2, 3, pe)
        shmem.p(words + 3, shmem.atomic_fetch_add(words + 2, 4, pe) + shmem.peer(inbox, pe), pe)
        shmem.fence()
    shmem.barrier_all_block()
    if thread == 0:
        shmem.p(words + 4, shmem.g(words + 2, pe), shmem.my_pe())
        shmem.quiet()


@cute.jit
def launch(data: cute.Pointer, words: cute.Pointer, n: cutlass.Int32, lap: cutlass.Int32):
    kernel(data, words, n, lap).launch(grid=[1, 1, 1], block=[128, 1, 1])


def main():
    pointers = [make_ptr(kind, 4096, cute.AddressSpace.gmem, assumed_align=16) for kind in (cutlass.Float32, cutlass.Int64)]
    run = shmem.compile(launch, *pointers, cutlass.Int32(1024), cutlass.Int32(1))
    ptx = next(file for file in folder.iterdir() if "ptx" in file.name).read_text()
    assert re.search(r"\.const .*\bsymrail_state\[", ptx), "the state is not visible"
    assert "prototype" not in ptx and ".extern .func symrail" not in ptx, "calls that are not linked"
    assert any("cubin" in file.name and file.stat().st_size > 0 for file in folder.iterdir())
    try:
        run(*pointers, 1024, 1)
    except StateError as error:
        assert "init" in str(error), error
    else:
        raise AssertionError("a call without a job is not refused")
    print("compiled for sm_90a")


main()
