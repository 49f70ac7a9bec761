"""The program `symrail`, as a script of the package, or by `python -m symrail`."""

from __future__ import annotations

import signal
import sys

from symrail import _symrail


def main() -> None:
    """Performs the command line. The program, and the processes that it starts, do not inherit Python's signal
    handlers."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    script = sys.argv[0]
    again = ["-m", "symrail"] if script.endswith("__main__.py") else [script]
    sys.exit(_symrail.main([sys.executable, *again], sys.argv[1:]))


if __name__ == "__main__":
    main()
