"""The last PE does not make a send and receive; the errors of the others name it in time."""

import symrail
from symrail.collectives import Communicator
from symrail.errors import TimeoutError

with symrail.init(heap_bytes=64 << 20):
    x, last = symrail.array(10, "float32"), symrail.n_pes() - 1
    comm = Communicator()
    if comm.rank != last:
        try:
            comm.recv(x, last)
        except TimeoutError as error:
            assert error.pe == last and f"rank {last}" in str(error), error
            print(f"PE {comm.rank} is told\n", end="")
        else:
            raise AssertionError("nobody sent")
    symrail.barrier_all()
