"""The last PE does not make a send and receive, and no collective; the errors of the others name it in time."""

import symrail
from symrail.collectives import Communicator
from symrail.errors import StateError, TimeoutError

with symrail.init(heap_bytes=64 << 20):
    x, last = symrail.array(10, "float32"), symrail.n_pes() - 1
    comm, other = Communicator(), Communicator()
    if comm.rank != last:
        try:
            comm.recv(x, last)
        except TimeoutError as error:
            assert error.pe == last and f"rank {last}" in str(error), error
            print(f"PE {comm.rank} is told\n", end="")
        else:
            raise AssertionError("nobody sent")
        try:
            other.all_reduce(x)
        except TimeoutError as error:
            assert last in error.pes, error
            print(f"PE {comm.rank} is told again\n", end="")
        else:
            raise AssertionError("one did not come")
        try:
            other.all_reduce(x)
        except StateError as error:
            assert "an earlier call failed" in str(error), error
        else:
            raise AssertionError("it cannot be used any more")
    symrail.barrier_all()
