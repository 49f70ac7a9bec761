"""Refusals of products of a GPU's tensors, before anything is sent: objects that look like tensors are enough."""

import symrail
import symrail.overlap as overlap
from symrail.errors import ArgumentError, SymrailError, UnsupportedError


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


def refused(kind: type[SymrailError], word: str, call) -> None:
    try:
        call()
    except kind as error:
        assert word in str(error), error
    else:
        raise AssertionError(f"not refused: {word}")


def call(rows, weight, *rest, **named):
    return lambda: overlap.all_gather_matmul(rows, weight, *rest, group=group, **named)


rows, weight, bias = Tensor("bfloat16", 3, 4), Tensor("bfloat16", 5, 4), Tensor("bfloat16", 5)
short, one = Tensor("float8_e4m3fn", 16, 16), Tensor("float32", 1)
with symrail.init(heap_bytes=16 << 20), overlap.Group(heap_bytes=1 << 20) as group:
    assert group.device is None
    refused(UnsupportedError, "on a machine with a GPU", call(rows, weight))
    refused(UnsupportedError, "on a machine with a GPU", lambda: overlap.matmul_all_reduce(rows, weight, group=group))
    group.device = 1
    refused(ArgumentError, "this PE's GPU, cuda:1", call(rows, weight))
    group.device = 0
    refused(ArgumentError, "weight has the shape (5,)", call(rows, bias))
    refused(ArgumentError, "bias is of float32; wanted is bfloat16", call(rows, weight, one))
    refused(ArgumentError, "need scales", call(short, short))
    refused(ArgumentError, "take no scales", call(rows, weight, scales=(one, one)))
    refused(ArgumentError, "one number for all rows", call(short, short, scales=(one, Tensor("float32", 2)), dtype=rows.dtype))
    refused(ArgumentError, "one number for all rows", call(short, short, scales=(one,), dtype=rows.dtype))
    refused(UnsupportedError, "float64", call(Tensor("float64", 3, 4), weight))
    # Everything is right, except that no GPU can access the heap.
    refused(UnsupportedError, "SYMRAIL_HEAP_KIND", call(rows, weight, bias))
    refused(UnsupportedError, "SYMRAIL_HEAP_KIND", call(short, short, scales=(one, one), dtype=rows.dtype))
    group.check()
    print(f"PE {symrail.my_pe()} was told\n", end="")
