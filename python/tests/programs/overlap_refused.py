"""Refusals of products of a GPU's tensors, before anything is sent: objects that look like tensors are enough."""

from refused import refused

import symrail
import symrail.overlap as overlap
from symrail.errors import ArgumentError, UnsupportedError


class Tensor:
    """Like one of torch in GPU memory."""

    __module__ = "torch"

    class device:
        type, index = "cuda", 0

    def __init__(self, dtype: str, *shape: int) -> None:
        self.dtype, self.shape, self.requires_grad = f"torch.{dtype}", shape, False

    def detach(self) -> "Tensor":
        return self

    contiguous = detach

    def is_conj(self) -> bool:
        return False

    is_neg = is_conj

    def reshape(self, *_: int) -> "Tensor":
        return self

    def data_ptr(self) -> int:
        return 1 << 40


def call(rows, weight, *rest, **named):
    return lambda: overlap.all_gather_matmul(rows, weight, *rest, group=group, **named)


rows, weight, bias = Tensor("bfloat16", 3, 4), Tensor("bfloat16", 5, 4), Tensor("bfloat16", 5)
short, one = Tensor("float8_e4m3fn", 16, 16), Tensor("float32", 1)
with symrail.init(heap_bytes=16 << 20), overlap.Group(heap_bytes=1 << 20) as group:
    assert group.device is None
    refused(UnsupportedError, call(rows, weight), text="on a machine with a GPU")
    refused(UnsupportedError, lambda: overlap.matmul_all_reduce(rows, weight, group=group), text="on a machine with a GPU")
    group.device = 1
    refused(ArgumentError, call(rows, weight), text="this PE's GPU, cuda:1")
    group.device = 0
    refused(ArgumentError, call(rows, bias), text="weight has the shape (5,)")
    refused(ArgumentError, call(rows, weight, one), text="bias is of float32; wanted is bfloat16")
    refused(ArgumentError, call(short, short), text="need scales")
    refused(ArgumentError, call(rows, weight, scales=(one, one)), text="take no scales")
    refused(ArgumentError, call(short, short, scales=(one, Tensor("float32", 2)), dtype=rows.dtype), text="one number for all rows")
    refused(ArgumentError, call(short, short, scales=(one,), dtype=rows.dtype), text="one number for all rows")
    refused(UnsupportedError, call(Tensor("float64", 3, 4), weight), text="float64")
    # Everything is right, except that no GPU can access the heap.
    refused(UnsupportedError, call(rows, weight, bias), text="SYMRAIL_HEAP_KIND")
    refused(UnsupportedError, call(short, short, scales=(one, one), dtype=rows.dtype), text="SYMRAIL_HEAP_KIND")
    group.check()
    print(f"PE {symrail.my_pe()} was told\n", end="")
