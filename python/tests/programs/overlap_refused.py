"""symrail.overlap.cuda refuses plans of which PEs pass different ones, and tensors that a plan is not for."""

import torch

import symrail
import symrail.overlap.cuda as overlap
from symrail.errors import ArgumentError, DifferError, SymrailError, UnsupportedError


def refused(kind: type[SymrailError], word: str, call) -> None:
    try:
        call()
    except kind as error:
        assert word in str(error), error
    else:
        raise AssertionError(f"not refused: {word}")


def plans(other: int) -> None:
    """The last PE passes something else. The heap is the last thing that is refused: it is in host memory here."""
    half = torch.float16
    gather, reduce = overlap.AllGatherMatmul, overlap.MatmulReduceScatter
    refused(DifferError, "rows", lambda: gather(8 + other, 4, half))
    refused(DifferError, "numbers of a row", lambda: reduce(8, 4 + other, half))
    # As many bytes as the others.
    refused(DifferError, "the dtype", lambda: gather(8, 4, torch.bfloat16 if other else half))
    refused(DifferError, "rows", lambda: gather(*((4, 8) if other else (8, 4)), half))
    refused(DifferError, "the product", lambda: (reduce if other else gather)(8, 4, half))
    refused(UnsupportedError, "float64", lambda: gather(8, 4, torch.float64))
    refused(UnsupportedError, "host memory", lambda: gather(8, 4, half))


def tensors() -> None:
    rows = torch.ones(3, 4)

    def check(array, dtype=torch.float32, shape=(3, 4)):
        return lambda: overlap._check(array, "own", dtype, shape)

    refused(ArgumentError, "own is of float32; the plan is of bfloat16", check(rows, torch.bfloat16))
    # What copies would repeat, or products cut.
    refused(ArgumentError, "(1, 4); wanted is 3 x 4", check(rows[:1]))
    refused(ArgumentError, "(3, 4); wanted is any x 5", check(rows, shape=(None, 5)))
    refused(ArgumentError, "(4,); wanted is 3 x 4", check(rows[0]))
    refused(ArgumentError, "ndarray", check(rows.numpy()))
    refused(UnsupportedError, "cpu", check(rows))


with symrail.init(heap_bytes=16 << 20):
    plans(int(symrail.my_pe() == symrail.n_pes() - 1))
    tensors()
    print(f"PE {symrail.my_pe()} was told\n", end="")
