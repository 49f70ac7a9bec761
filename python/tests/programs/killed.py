"""PE 1 is killed while the others wait for it in the given way; their errors name it."""

import os
import signal
import sys
import time

import numpy as np
import symrail
import symrail.collectives

how = sys.argv[1]
symrail.init()
me = symrail.my_pe()
a, word = symrail.array(1 << 16, "float64"), symrail.array(1, "uint64")
if how in ("receive", "reduce"):
    communicator = symrail.collectives.Communicator(compare=False)
    communicator.all_reduce(a)
symrail.barrier_all()
if me == 1:
    os.kill(os.getpid(), signal.SIGKILL)
begun = time.monotonic()
try:
    if how == "barrier":
        symrail.barrier_all()
    elif how == "wait":
        symrail.signal_wait(word, 1)
    elif how == "allocate":
        symrail.array(3)
    elif how == "receive":
        communicator.recv(a, 1)
    elif how == "reduce":
        communicator.all_reduce(a)
    else:
        while True:
            symrail.put(a, np.ones(1 << 16), 1)
            symrail.quiet()
except symrail.errors.SymrailError as error:
    named = isinstance(error, (symrail.errors.PeerLostError, symrail.errors.OperationError, TimeoutError))
    print(f"{type(error).__name__} {error.pe} {named}\n", end="", flush=True)
# Neither the end of the program nor finalize may wait for the killed PE.
os._exit(0)
