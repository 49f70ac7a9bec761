"""Triton kernels that talk to other PEs: an all-reduce in one step, and chunks that pass through slots of the next PE.

    symrail run -n 2 -- python3 triton_all_reduce.py         one GPU per PE, PyTorch and Triton

Where a PE is not mapped, the same kernels go through the proxy: SYMRAIL_DISABLE_P2P=1 shows it.
"""

import torch
import triton
import triton.language as tl

import symrail
import symrail.triton as shmem


@shmem.jit(do_not_specialize=["lap"])
def one_shot_all_reduce(shared, arrived, out, n, lap, PES: tl.constexpr, BLOCK: tl.constexpr):
    """Each program sends its part to all PEs, waits for theirs, and adds them up. Row i of `shared` is of PE i."""
    program, me = tl.program_id(0), shmem.my_pe()
    first = program * BLOCK
    part = shared + me * n + first
    for k in tl.static_range(1, PES):
        count = tl.minimum(BLOCK, n - first)
        shmem.put_signal_nbi(part, part, count, arrived + program, 1, shmem.SIGNAL_ADD, (me + k) % PES)
    shmem.signal_wait_until(arrived + program, shmem.CMP_GE, lap * (PES - 1))
    at = first + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for pe in tl.static_range(PES):
        total += tl.load(shared + pe * n + at, mask=at < n, other=0.0, volatile=True)
    tl.store(out + at, total, mask=at < n)
    # Afterwards `shared` may be changed.
    shmem.quiet()


@shmem.jit
def pipeline(inbox, outbox, ready, taken, out, chunks, next, last, BLOCK: tl.constexpr, SLOTS: tl.constexpr):
    """Sends chunks to PE `next` through a few slots there, and adds one to each that arrives from PE `last`."""
    at = tl.arange(0, BLOCK)
    for k in range(chunks):
        slot, lap = k % SLOTS, k // SLOTS
        if lap > 0:
            shmem.signal_wait_until(taken + slot, shmem.CMP_GE, lap)
        to, source = inbox + slot * BLOCK, outbox + k * BLOCK
        shmem.put_signal(to, source, BLOCK, ready + slot, lap + 1, shmem.SIGNAL_SET, next)
        shmem.signal_wait_until(ready + slot, shmem.CMP_GE, lap + 1)
        tl.store(out + k * BLOCK + at, tl.load(to + at, volatile=True) + 1)
        shmem.signal_op(taken + slot, 1, shmem.SIGNAL_ADD, last)
    shmem.quiet()


def all_reduces(count=50_000, laps=5, block=4096):
    """Sums of vectors of all PEs; returns whether they are right."""
    me, n = symrail.my_pe(), symrail.n_pes()
    shared = symrail.array((n, count), "float32").tensor()
    arrived = symrail.array(triton.cdiv(count, block), "int64").tensor()
    numbers = torch.arange(count, device="cuda") % 100
    out, right = torch.empty(count, device="cuda"), True
    for lap in range(1, laps + 1):
        shared[me] = numbers + me * lap
        torch.cuda.synchronize()
        # No PE puts before all have read the rows of the last lap.
        symrail.barrier_all()
        one_shot_all_reduce[(triton.cdiv(count, block),)](shared, arrived, out, count, lap, PES=n, BLOCK=block)
        right = right and torch.equal(out, (numbers * n + sum(range(n)) * lap).float())
    return right


def passed_on(chunks=40, block=1024, slots=4):
    """Chunks of the last PE; returns whether they are right."""
    me, n = symrail.my_pe(), symrail.n_pes()
    inbox, outbox = (symrail.array(k * block, "float32").tensor() for k in (slots, chunks))
    ready, taken = (symrail.array(slots, "int64").tensor() for _ in range(2))
    numbers = torch.arange(chunks * block, device="cuda").float()
    out = torch.empty_like(numbers)
    outbox[:] = numbers + me
    torch.cuda.synchronize()
    symrail.barrier_all()
    next, last = (me + 1) % n, (me - 1) % n
    pipeline[(1,)](inbox, outbox, ready, taken, out, chunks, next, last, BLOCK=block, SLOTS=slots)
    right = torch.equal(out, numbers + last + 1)
    symrail.barrier_all()
    return right


def main():
    with symrail.init(heap="device"):
        right = all_reduces() and passed_on()
        if symrail.my_pe() == 0:
            print(f"all-reduces and chunks of {symrail.n_pes()} PEs: {'right' if right else 'WRONG'}", flush=True)
        raise SystemExit(0 if right else 1)


if __name__ == "__main__":
    main()
