"""NumPy's results for the arrays of collectives' tests."""

import numpy as np

KINDS = [f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)]
KINDS += ["float32", "float64", "complex64", "complex128"]
OPS = {
    "sum": np.add.reduce,
    "prod": np.multiply.reduce,
    "min": np.minimum.reduce,
    "max": np.maximum.reduce,
    "and": np.bitwise_and.reduce,
    "or": np.bitwise_or.reduce,
    "xor": np.bitwise_xor.reduce,
}


def values(dtype, count, pe, lap=0):
    return ((np.arange(count) * 3 + pe * 5 + lap) % 4 + 1).astype(dtype)


def of_all(dtype, count, n, lap=0):
    return np.stack([values(dtype, count, pe, lap) for pe in range(n)])
