"""What symrail.numba needs of numba-cuda, whose versions have it in different places."""

from symrail.errors import UnsupportedError

try:
    from numba.cuda.cudadrv.linkable_code import CUSource
except ImportError as error:
    raise UnsupportedError("symrail.numba needs numba-cuda 0.4 or newer: pip install numba-cuda") from error
try:
    from numba.cuda import cgutils
    from numba.cuda.core.errors import TypingError
    from numba.cuda.extending import intrinsic
except ImportError:
    from numba.core import cgutils
    from numba.core.errors import TypingError
    from numba.extending import intrinsic

__all__ = ["CUSource", "TypingError", "cgutils", "intrinsic"]
