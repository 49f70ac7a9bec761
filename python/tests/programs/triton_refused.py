"""Launches of symrail.triton's kernels without a GPU: each is refused by name, and modules get their job's state."""

import symrail
import symrail.triton as shmem
import triton.language as tl
from symrail.errors import StateError, UnsupportedError
from symrail.triton import _kernel


@shmem.jit
def kernel(x, N: tl.constexpr):
    shmem.p(x, N, 0)


def refused(error, text):
    try:
        kernel[(1,)](None, 1)
    except error as found:
        assert text in str(found), found
        return
    raise AssertionError("not refused")


class Job:
    """A job that notes to which modules it passes its state."""

    def __init__(self):
        self.modules = []

    def attach_module(self, module):
        self.modules.append(module)
        return module != 4


def states():
    modules, first, second = _kernel._Modules(), Job(), Job()
    modules.prepare(first)
    modules.loaded(1, None, "a kernel of another library")
    modules.of_thread.launches = True
    modules.loaded(2, None, "kernel")
    modules.loaded(3, None, "kernel")
    modules.loaded(4, None, "a kernel without functions")
    modules.prepare(first)
    assert first.modules == [2, 3, 4], first.modules
    modules.unloaded(3)
    modules.prepare(second)
    assert second.modules == [2], second.modules


states()
# The functions need not be there: the job is looked at first.
_kernel.library = lambda: "libsymrail_device.bc"
refused(StateError, "init")
with symrail.init(heap_bytes=1 << 20):
    refused(UnsupportedError, "heap")
refused(StateError, "finalized")
print("refused")
