"""A Triton kernel that multiplies while it gathers: the product of the rows of A of all PEs with this PE's part of B.

    symrail run -n 2 -- python3 triton_all_gather_matmul.py         one GPU per PE, PyTorch and Triton

The first programs send this PE's rows to the others, tile by tile, each with a signal. Every program waits for the rows
of its tile alone, its own PE's first, and multiplies.
"""

import torch
import triton
import triton.language as tl

import symrail
import symrail.triton as shmem


@shmem.jit(do_not_specialize=["lap"])
def all_gather_matmul(
    a, b, c, arrived, rows, n, k, lap,
    PES: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):
    """`a` has the rows of all PEs, `rows` of each; `arrived` has a signal for each tile of BLOCK_M rows."""
    program, me, tiles = tl.program_id(0), shmem.my_pe(), rows // BLOCK_M
    # Program p < tiles sends tile p. All senders run at once, as they come first and do not wait.
    if program < tiles:
        mine = me * tiles + program
        part = a + mine * BLOCK_M * k
        for step in tl.static_range(1, PES):
            to = (me + step) % PES
            shmem.put_signal_nbi(part, part, BLOCK_M * k, arrived + mine, lap, shmem.SIGNAL_SET, to)
        shmem.quiet()
    # Tiles in the order in which they arrive: this PE's, the last PE's, ….
    columns = n // BLOCK_N
    turn, column = program // columns, program % columns
    of = (me + PES - turn // tiles) % PES
    tile = of * tiles + turn % tiles
    if of != me:
        shmem.signal_wait_until(arrived + tile, shmem.CMP_GE, lap)
    row = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    at_n, at_k = column * BLOCK_N + tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_K)
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for first in range(0, k, BLOCK_K):
        left = tl.load(a + row[:, None] * k + first + at_k[None, :], volatile=True)
        total += tl.dot(left, tl.load(b + (first + at_k)[:, None] * n + at_n[None, :]))
    tl.store(c + row[:, None] * n + at_n[None, :], total.to(c.dtype.element_ty))


def products(rows=256, n=512, k=512, laps=3, block=64):
    """Products of all PEs' rows; returns whether they are right."""
    me, pes = symrail.my_pe(), symrail.n_pes()
    a = symrail.array((pes * rows, k), "float16").tensor()
    arrived = symrail.array(pes * rows // block, "int64").tensor()
    whole = lambda lap: ((torch.arange(pes * rows * k, device="cuda") * 7 + lap) % 13 - 6).view(-1, k).half()  # noqa: E731
    b = ((torch.arange(k * n, device="cuda") * 5 + me) % 11 - 5).view(k, n).half()
    c, right = torch.empty(pes * rows, n, device="cuda"), True
    for lap in range(1, laps + 1):
        # No PE puts before all have read the rows of the last lap.
        torch.cuda.synchronize()
        symrail.barrier_all()
        mine = slice(me * rows, (me + 1) * rows)
        a.fill_(99)
        a[mine] = whole(lap)[mine]
        torch.cuda.synchronize()
        symrail.barrier_all()
        grid = (pes * rows // block * (n // block),)
        all_gather_matmul[grid](a, b, c, arrived, rows, n, k, lap, PES=pes, BLOCK_M=block, BLOCK_N=block, BLOCK_K=32)
        right = right and torch.equal(c, whole(lap).float() @ b.float())
    symrail.barrier_all()
    return right


def main():
    with symrail.init(heap="device"):
        right = products()
        if symrail.my_pe() == 0:
            print(f"products of the rows of {symrail.n_pes()} PEs: {'right' if right else 'WRONG'}", flush=True)
        raise SystemExit(0 if right else 1)


if __name__ == "__main__":
    main()
