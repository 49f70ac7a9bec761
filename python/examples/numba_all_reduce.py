"""numba's kernels that talk to other PEs: an all-reduce in one step, and chunks that pass through slots of the next PE.

    symrail run -n 2 -- python3 numba_all_reduce.py         one GPU per PE, numba-cuda
"""

import numpy as np
from numba import cuda

import symrail
import symrail.numba as shmem

THREADS = 256


@shmem.jit
def one_shot_all_reduce(shared, arrived, out, lap):
    """Each block sends its part to all PEs, waits for theirs, and adds them up. Row i of `shared` is of PE i."""
    block, me, pes, n = cuda.blockIdx.x, shmem.my_pe(), shared.shape[0], shared.shape[1]
    size = (n + cuda.gridDim.x - 1) // cuda.gridDim.x
    first = block * size
    part = shared[me, first : min(first + size, n)]
    for k in range(1, pes):
        shmem.put_signal_nbi_block(
            part, part, part.size, arrived[block:], 1, shmem.SIGNAL_ADD, (me + k) % pes
        )
    if cuda.threadIdx.x == 0:
        shmem.signal_wait_until(arrived[block:], shmem.CMP_GE, lap * (pes - 1))
    cuda.syncthreads()
    for i in range(first + cuda.threadIdx.x, min(first + size, n), cuda.blockDim.x):
        total = np.float32(0)
        for pe in range(pes):
            total += shared[pe, i]
        out[i] = total
    # Afterwards `shared` may be changed.
    shmem.quiet()


@shmem.jit
def pipeline(inbox, outbox, ready, taken, out, next, last):
    """Sends rows to PE `next` through a few slots there, and adds one to each that arrives from PE `last`."""
    slots, n, first = inbox.shape[0], inbox.shape[1], cuda.threadIdx.x == 0
    for k in range(outbox.shape[0]):
        slot, lap = k % slots, k // slots
        if lap > 0 and first:
            shmem.signal_wait_until(taken[slot:], shmem.CMP_GE, lap)
        cuda.syncthreads()
        shmem.put_signal_block(inbox[slot], outbox[k], n, ready[slot:], lap + 1, shmem.SIGNAL_SET, next)
        if first:
            shmem.signal_wait_until(ready[slot:], shmem.CMP_GE, lap + 1)
        cuda.syncthreads()
        for i in range(cuda.threadIdx.x, n, cuda.blockDim.x):
            out[k, i] = inbox[slot, i] + 1
        cuda.syncthreads()
        if first:
            shmem.signal_op(taken[slot:], 1, shmem.SIGNAL_ADD, last)
    shmem.quiet()


def symmetric(shape, dtype):
    return cuda.as_cuda_array(symrail.array(shape, dtype))


def all_reduces(count=50_000, laps=5, blocks=8):
    """Sums of vectors of all PEs; returns whether they are right."""
    me, n = symrail.my_pe(), symrail.n_pes()
    shared, arrived = symmetric((n, count), "float32"), symmetric(blocks, "int64")
    out, right = cuda.device_array(count, "float32"), True
    numbers = (np.arange(count) % 100).astype("float32")
    for lap in range(1, laps + 1):
        shared[me].copy_to_device(numbers + np.float32(me * lap))
        cuda.synchronize()
        # No PE puts before all have read the rows of the last lap.
        symrail.barrier_all()
        one_shot_all_reduce[blocks, THREADS](shared, arrived, out, lap)
        right = right and bool((out.copy_to_host() == numbers * n + sum(range(n)) * lap).all())
    return right


def passed_on(chunks=40, size=1024, slots=4):
    """Chunks of the last PE; returns whether they are right."""
    me, n = symrail.my_pe(), symrail.n_pes()
    inbox, outbox = symmetric((slots, size), "float32"), symmetric((chunks, size), "float32")
    ready, taken = symmetric(slots, "int64"), symmetric(slots, "int64")
    numbers = np.arange(chunks * size, dtype="float32").reshape(chunks, size)
    out = cuda.device_array((chunks, size), "float32")
    outbox.copy_to_device(numbers + np.float32(me))
    cuda.synchronize()
    symrail.barrier_all()
    next, last = (me + 1) % n, (me - 1) % n
    pipeline[1, THREADS](inbox, outbox, ready, taken, out, next, last)
    right = bool((out.copy_to_host() == numbers + last + 1).all())
    symrail.barrier_all()
    return right


def main():
    with symrail.init(heap="device"):
        cuda.select_device(symrail.current().device)
        right = all_reduces() and passed_on()
        if symrail.my_pe() == 0:
            print(f"all-reduces and chunks of {symrail.n_pes()} PEs: {'right' if right else 'WRONG'}", flush=True)
        raise SystemExit(0 if right else 1)


if __name__ == "__main__":
    main()
