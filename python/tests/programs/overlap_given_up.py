"""PE 2 multiplies for a second or more, while the others wait for its part of a sum; then it is killed, or PE 0 is
interrupted.

Arguments: the job's id, this PE, `killed` or `interrupted`. PEs with an error print it, and the class of their
exception."""

import os
import signal
import sys
import threading
import time

import numpy as np

import symrail
import symrail.overlap as overlap

uid, me, how = bytes.fromhex(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
signal.signal(signal.SIGINT, signal.default_int_handler)
ROWS, OUTPUTS, LONG = 2048, 1024, 12000


def when_it_multiplies(call) -> None:
    """Calls once this thread has computed for a while, which only the product does."""
    clock = time.pthread_getcpuclockid(threading.get_ident())
    begun = time.clock_gettime(clock)

    def watch() -> None:
        while time.clock_gettime(clock) < begun + 0.4:
            time.sleep(0.01)
        call()

    threading.Thread(target=watch, daemon=True).start()


def multiply(inputs: int) -> None:
    overlap.matmul_reduce_scatter(np.ones((ROWS, inputs), "float32"), np.ones((OUTPUTS, inputs), "float32"), group=group)


symrail.init(uid=uid, rank=me, nranks=3, heap_bytes=128 << 20)
group = overlap.Group(pieces=0)
multiply(1)
long = np.ones((ROWS, LONG), "float32"), np.ones((OUTPUTS, LONG), "float32")
symrail.barrier_all()
if me == 2:
    when_it_multiplies(
        (lambda: os.kill(os.getpid(), signal.SIGKILL)) if how == "killed" else lambda: print("multiplies", flush=True)
    )
try:
    if me == 2:
        overlap.matmul_reduce_scatter(*long, group=group)
    else:
        if me == 0 and how == "interrupted":
            print("waits", flush=True)
        multiply(1)
except KeyboardInterrupt:
    print("interrupted", flush=True)
except symrail.errors.SymrailError as error:
    told = "told" if "has given up" in str(error) else "alone"
    print(f"{type(error).__name__} {error.pe} {told}\n", end="", flush=True)
# There is no wait for the dead PE.
os._exit(0)
