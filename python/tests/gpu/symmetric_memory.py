"""PyTorch's symmetric memory with a back end: `symrail run -n 2 -- python symmetric_memory.py SYMRAIL|CUDA FOLDER [late]`.

Writes the results of torch.ops.symm_mem to FOLDER/BACKEND-RANK.pt; `compare FOLDER` compares both back ends. With
`late`, each rank waits for a signal that does not come.
"""

import os
import sys
import time

import torch


def operations(symm_mem, dist, rank, size):
    """Results of PyTorch's operations on the same inputs, by name."""
    group = dist.group.WORLD
    name, device = group.group_name, torch.device("cuda", torch.cuda.current_device())
    results = {}
    generator = torch.Generator(device="cpu").manual_seed(rank + 1)

    def numbers(*shape):
        return torch.randn(*shape, generator=generator).to(device, torch.bfloat16)

    for count in (8, 4096, 1 << 16, 1 << 20):
        for operation in ("one_shot_all_reduce", "two_shot_all_reduce_"):
            shared = symm_mem.empty(count, dtype=torch.bfloat16, device=device)
            handle = symm_mem.rendezvous(shared, group)
            assert handle.rank == rank and handle.world_size == size
            shared.copy_(numbers(count))
            handle.barrier(0)
            results[f"{operation} {count}"] = getattr(torch.ops.symm_mem, operation)(shared, "sum", name).cpu()
            torch.cuda.synchronize()
            dist.barrier()
    shared = symm_mem.empty(1024, dtype=torch.float32, device=device)
    handle = symm_mem.rendezvous(shared, group)
    shared.fill_(rank)
    handle.barrier(1)
    results["get_buffer"] = handle.get_buffer((rank + 1) % size, (1024,), torch.float32).cpu()
    handle.barrier(1)
    handle.put_signal((rank + 1) % size, 2)
    handle.wait_signal((rank - 1) % size, 2)
    torch.cuda.synchronize()
    part = numbers(64, 128)
    weights = [numbers(128, 96), numbers(128, 32)]
    gathered, products = torch.ops.symm_mem.fused_all_gather_matmul(part, weights, 0, name)
    results["all-gather"] = gathered.cpu()
    results.update({f"product {i}": product.cpu() for i, product in enumerate(products)})
    scattered = torch.ops.symm_mem.fused_matmul_reduce_scatter(numbers(128, 64), numbers(64, 96), "sum", 0, name)
    results["reduce-scatter"] = scattered.cpu()
    torch.cuda.synchronize()
    # Freed and allocated again, in another order on each rank.
    for lap in range(20):
        taken = [symm_mem.empty(1 << 20, dtype=torch.uint8, device=device) for _ in range(4)]
        handles = [symm_mem.rendezvous(each, group) for each in taken]
        taken[lap % 4].fill_(rank + lap)
        handles[lap % 4].barrier(0)
        assert (handles[lap % 4].get_buffer((rank + 1) % size, (100,), torch.uint8) == (rank + 1) % size + lap).all()
        handles[lap % 4].barrier(0)
        torch.cuda.synchronize()
        dist.barrier()
        del handles
        while taken:
            taken.pop(rank * lap % len(taken))
    return results


def groups(symm_mem, dist, rank, size):
    """Two groups over one allocation: a signal of one does not end a wait of the other."""
    device = torch.device("cuda", torch.cuda.current_device())
    one, other = dist.new_group(range(size)), dist.new_group(range(size))
    shared = symm_mem.empty(1024, dtype=torch.float32, device=device)
    handles = [symm_mem.rendezvous(shared, group) for group in (one, other)]
    assert handles[0].get_signal_pad(rank).data_ptr() != handles[1].get_signal_pad(rank).data_ptr()
    shared.zero_()
    torch.cuda.synchronize()
    dist.barrier()
    following, before = (rank + 1) % size, (rank - 1) % size
    handles[0].put_signal(following, 0)
    torch.cuda.synchronize()
    dist.barrier()
    # The signal is in the pad of the first group alone.
    assert handles[0].get_signal_pad(rank, (size,), torch.int32)[before] == 1
    assert not handles[1].get_signal_pad(rank, (size,), torch.int32).any()
    dist.barrier()
    handles[1].put_signal(following, 0)
    handles[1].wait_signal(before, 0)
    handles[0].wait_signal(before, 0)
    torch.cuda.synchronize()
    assert not any(handle.get_signal_pad(rank, (size,), torch.int32).any() for handle in handles)
    dist.barrier()


def captured(symm_mem, dist, rank, size):
    """Memory that is made and dropped during a capture: refused by name or deferred; the capture goes on."""
    group, device = dist.group.WORLD, torch.device("cuda", torch.cuda.current_device())
    shared, dropped, apart = (symm_mem.empty(1024, dtype=torch.float32, device=device) for _ in range(3))
    for each in (shared, dropped):
        symm_mem.rendezvous(each, group)
    shared.fill_(rank + 1)
    total = torch.ops.symm_mem.one_shot_all_reduce(shared, "sum", group.group_name)
    torch.cuda.synchronize()
    dist.barrier()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for call in (
            lambda: symm_mem.empty(1024, dtype=torch.float32, device=device),
            lambda: symm_mem.rendezvous(apart, group),
        ):
            try:
                call()
                raise AssertionError("not refused")
            except RuntimeError as error:
                assert "CUDA graph is captured" in str(error), error
        del each, dropped
        symm_mem.rendezvous(shared, group)
        total = torch.ops.symm_mem.one_shot_all_reduce(shared, "sum", group.group_name)
    for lap in range(3):
        shared.fill_(rank + lap)
        torch.cuda.synchronize()
        dist.barrier()
        graph.replay()
        torch.cuda.synchronize()
        assert (total == sum(range(size)) + size * lap).all(), (lap, total)
        dist.barrier()
    symm_mem.rendezvous(apart, group)
    symm_mem.empty(1024, dtype=torch.float32, device=device)
    torch.cuda.synchronize()
    dist.barrier()


def pooled(symm_mem, dist, rank, size):
    """Tensors of ordinary calls, in PyTorch's pool of symmetric memory, which uses the back end's allocations."""
    group, device = dist.group.WORLD, torch.device("cuda", torch.cuda.current_device())
    with torch.cuda.use_mem_pool(symm_mem.get_mem_pool(device)):
        tensors = [torch.full((1000,), float(rank + lap), device=device) for lap in range(3)]
    for lap, tensor in enumerate(tensors):
        symm_mem.rendezvous(tensor, group).barrier(0)
        total = torch.ops.symm_mem.one_shot_all_reduce(tensor, "sum", group.group_name)
        assert (total == sum(range(size)) + size * lap).all(), (lap, total)
    torch.cuda.synchronize()
    dist.barrier()


def late(symm_mem, dist, rank, size):
    """A wait whose time is over: the work of the stream behind it fails, as with PyTorch's own back end. Symrail's error
    names the PE, not the rank of the group, whose order is the opposite one, and the limit of the call."""
    import symrail
    from symrail.errors import TimeoutError

    shared = symm_mem.empty(1024, dtype=torch.float32, device=torch.device("cuda", torch.cuda.current_device()))
    handle = symm_mem.rendezvous(shared, dist.group.WORLD)
    assert handle.rank == rank == size - 1 - symrail.my_pe()
    before = (rank - 1) % size
    torch.cuda.synchronize()
    dist.barrier()
    handle.wait_signal(before, 0, timeout_ms=700)
    shared.fill_(1)
    try:
        torch.cuda.synchronize()
        raise AssertionError("what stands behind the wait has succeeded")
    except RuntimeError as error:
        print(f"rank {rank}: {str(error).splitlines()[0]}\n", end="", flush=True)
    try:
        symrail.current().check()
        raise AssertionError("no failure is told")
    except TimeoutError as error:
        pe = size - 1 - before
        assert error.pe == pe and f"PE {pe}" in str(error) and "700 ms" in str(error), error
        assert "SYMRAIL_TIMEOUT_S" not in str(error), error
    dist.barrier()
    print(f"rank {rank}: late: well\n", end="", flush=True)
    # The context has ended, so nothing is freed.
    os._exit(0)


def again(symm_mem, dist, rank, size, store):
    """What one rank cannot do all are told, and they meet again, also in a group with the name of an earlier one."""
    device = torch.device("cuda", torch.cuda.current_device())
    shared = symm_mem.empty(1024, dtype=torch.float32, device=device)
    uneven = symm_mem.empty(1024 * (rank + 1), dtype=torch.float32, device=device)
    foreign = torch.empty(1024, device=device) if rank == 0 else symm_mem.empty(1024, device=device)
    for tensor, why in ((uneven, "has allocated"), (foreign, "was not allocated by the back end")):
        try:
            symm_mem.rendezvous(tensor, dist.group.WORLD)
            raise AssertionError("not refused")
        except RuntimeError as error:
            assert why in str(error), error
    # Rank 0 meets alone in the first group of this name, and with the others in the second one.
    first = dist.new_group([0])
    if rank == 0:
        assert symm_mem.rendezvous(shared, first).world_size == 1
    dist.barrier()
    dist.destroy_process_group()
    dist.init_process_group("gloo", store, rank=rank, world_size=size)
    handle = symm_mem.rendezvous(shared, dist.new_group(range(size)))
    assert (handle.rank, handle.world_size) == (rank, size)
    handle.barrier(0)
    torch.cuda.synchronize()
    dist.barrier()


def run(backend, folder, is_late=False):
    import torch.distributed as dist
    import torch.distributed._symmetric_memory as symm_mem

    import symrail

    with symrail.init(heap="device", heap_bytes=1 << 30) as runtime:
        rank, size = symrail.my_pe(), symrail.n_pes()
        torch.cuda.set_device(runtime.device)
        if is_late:
            rank = size - 1 - rank
        store = f"file://{folder}/{'late' if is_late else backend}-store"
        dist.init_process_group("gloo", store, rank=rank, world_size=size)
        if backend == "SYMRAIL":
            import symrail.torch

            began = time.monotonic()
            symrail.torch.register()
            print(f"rank {rank}: registered after {time.monotonic() - began:.1f} s\n", end="", flush=True)
        if symm_mem.get_backend("cuda") != backend:
            symm_mem.set_backend(backend)
        assert symm_mem.get_backend("cuda") == backend
        if is_late:
            late(symm_mem, dist, rank, size)
        torch.save(operations(symm_mem, dist, rank, size), f"{folder}/{backend}-{rank}.pt")
        if backend == "SYMRAIL":
            pooled(symm_mem, dist, rank, size)
            groups(symm_mem, dist, rank, size)
            captured(symm_mem, dist, rank, size)
            again(symm_mem, dist, rank, size, f"file://{folder}/{backend}-again")
        dist.destroy_process_group()
        print(f"rank {rank}: {backend}: well\n", end="", flush=True)


def compare(folder):
    for rank in range(2):
        ours, theirs = (torch.load(f"{folder}/{backend}-{rank}.pt") for backend in ("SYMRAIL", "CUDA"))
        assert list(ours) == list(theirs) and len(ours) > 8
        for name in ours:
            assert torch.equal(ours[name], theirs[name]), f"rank {rank}: {name} differs"
    print(f"the same bits by both back ends: {', '.join(ours)}")


if __name__ == "__main__":
    compare(sys.argv[2]) if sys.argv[1] == "compare" else run(sys.argv[1], sys.argv[2], "late" in sys.argv[3:])
