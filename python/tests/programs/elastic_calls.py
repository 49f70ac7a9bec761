"""symrail.ep.ElasticBuffer: sessions of all-gathers, tensors for neighbours and Engram, in random orders as DeepEP's
tests/elastic make these calls, against serial code in torch. Arguments: cpu or cuda; the number of laps; `groups` for two
groups of every second PE at once."""

import random
import sys
from typing import Any

import torch

import symrail
import symrail.ep as deep_ep
from symrail.errors import ArgumentError, DifferError, StateError, TimeoutError

DEVICE, LAPS = sys.argv[1], int(sys.argv[2])
MB = 2 << 20
GROUP: Any = None
# The PEs of the first two ranks.
PES = [0, 1]


def refused(error: type[BaseException], text: str, call: Any, *arguments: Any, **named: Any) -> None:
    try:
        call(*arguments, **named)
    except error as found:
        assert text in str(found), found
        return
    raise AssertionError(f"not refused: {text}")


def some(shape: tuple[int, ...], *seed: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    number = 0
    for one in seed:
        number = number * 1009 + one
    return torch.randn(shape, generator=torch.Generator().manual_seed(number)).to(dtype).to(DEVICE)


def sessions(me: int, ranks: int) -> None:
    """Tensors of three sizes and types are gathered in place or not, one or several in a call; handles are called in any
    order, and results compared behind them."""
    shapes, most = [(3, 5), (64, 129), (2, 7, 64)], 4
    dtypes = [torch.bfloat16, torch.float32, torch.uint8]
    room = most * deep_ep.ElasticBuffer.get_agrs_num_max_session_bytes(GROUP, shapes, torch.float32)
    size = deep_ep.ElasticBuffer.get_agrs_buffer_size_hint(GROUP, room)
    assert size % MB == 0 and room <= size
    buffer = deep_ep.ElasticBuffer(GROUP, explicitly_destroy=True, num_bytes=size)
    refused(StateError, "agrs_set_config", buffer.create_agrs_session)
    refused(ArgumentError, "num_bytes are", buffer.agrs_set_config, size + 1, most)
    if ranks > 1:
        error = (DifferError, "the second number is") if me else (DifferError, "rank 1")
        refused(*error, buffer.agrs_set_config, room, most + min(me, 1))
        other = (DifferError, "rank 0 was refused") if me else (ArgumentError, "numbers from 1 on")
        refused(*other, buffer.agrs_set_config, room, min(me, 1) * most)
    buffer.agrs_set_config(room, most)
    refused(StateError, "outside of a session", buffer.all_gather, some((2,), 1))
    for lap in range(LAPS):
        order = random.Random(lap)
        if order.random() < 0.3:
            buffer.agrs_set_config(room, most)
        waiting: list[tuple[Any, list[Any], list[Any]]] = []
        with buffer.agrs_new_session():
            for call in range(order.randrange(1, most + 1)):
                many, kind = order.randrange(1, 3), order.randrange(len(dtypes))
                chosen = [shapes[order.randrange(len(shapes))] for _ in range(many)]
                its = [
                    [(some(shape, lap, call, i, rank) * 50).to(dtypes[kind]) for i, shape in enumerate(chosen)]
                    for rank in range(ranks)
                ]
                given: Any = its[me]
                if order.random() < 0.5:
                    given = buffer.agrs_get_inplace_tensor(tuple(chosen), dtypes[kind])
                    for to, one in zip(given, its[me]):
                        to.copy_(one)
                *results, handle = buffer.all_gather(given[0] if many == 1 else given)
                waiting.append((handle, results, [torch.stack(parts) for parts in zip(*its)]))
                if order.random() < 0.5:
                    handle, results, wanted = waiting.pop(order.randrange(len(waiting)))
                    handle()
                    assert all(torch.equal(*pair) for pair in zip(results, wanted)), (lap, call)
            for handle, results, wanted in waiting:
                handle()
                assert all(torch.equal(*pair) for pair in zip(results, wanted)), lap
        refused(StateError, "has ended", handle)
    with buffer.agrs_new_session():
        # For autograd a later result is no change of an earlier one.
        leaf = torch.ones((ranks, 3), device=DEVICE, requires_grad=True)
        first, wait = buffer.all_gather(some((3,), 1, me, dtype=torch.float32))
        wait()
        total = (leaf * first).sum()
        _, wait = buffer.all_gather(some((3,), 2, me, dtype=torch.float32))
        wait()
        total.backward()
        assert torch.equal(leaf.grad, first)
    with buffer.agrs_new_session(enabled=False):
        refused(StateError, "outside of a session", buffer.destroy_agrs_session)
    buffer.create_agrs_session()
    refused(StateError, "a session is open", buffer.create_agrs_session)
    own = buffer.agrs_get_inplace_tensor((8,), torch.float32)
    refused(ArgumentError, "not where", buffer.all_gather, own[1:])
    refused(ArgumentError, "not contiguous", buffer.all_gather, some((4, 4), 1).t())
    refused(StateError, "a session has", buffer.all_gather, some((room,), 1))
    for _ in range(most):
        gathered, wait = buffer.all_gather(some((0,), 1))
        wait()
        assert gathered.shape == (ranks, 0)
    refused(StateError, f"its {most} all-gathers", buffer.all_gather, some((1,), 1))
    buffer.destroy_agrs_session()
    if DEVICE == "cpu" and ranks > 1:
        # A session ends when all ranks end it: the next one writes over its results.
        word, second = symrail.array(1, "uint64"), PES[1]
        buffer.create_agrs_session()
        if me == 1:
            refused(TimeoutError, "", symrail.wait_until, word, ">=", 1, timeout=0.5)
        buffer.destroy_agrs_session()
        if me == 0:
            symrail.signal_op(word, 1, "set", second)
            symrail.quiet()
    buffer.destroy()
    refused(StateError, "destroyed", buffer.create_agrs_session)


def out_of_time(me: int, ranks: int) -> None:
    """Behind a receive and a send that timed out each tensor comes once, in order and whole. There is one slot."""
    buffer = deep_ep.ElasticBuffer(GROUP, num_bytes=MB, explicitly_destroy=True)
    buffer.pp_set_config(64, 1)
    following, before = (me + 1) % ranks, (me - 1) % ranks

    def receives(lap: int) -> None:
        to = torch.empty((5,), dtype=torch.bfloat16)
        buffer.pp_recv(to, before)
        assert torch.equal(to, some((5,), lap, before)), lap

    def is_late(call: Any, tensor: torch.Tensor, rank: int) -> None:
        """The wait has its own limit, so that the others wait as long as they must."""
        limit, buffer._pipeline.timeout = buffer._pipeline.timeout, 0.5
        try:
            call(tensor, rank)
        except TimeoutError as error:
            assert f"rank {rank} " in str(error) and (error.pe, error.pes) == (rank, (rank,)), error
        else:
            raise AssertionError("in time")
        buffer._pipeline.timeout = limit

    buffer.pp_send(some((5,), 0, me), following)
    receives(0)
    symrail.barrier_all()
    # The slot has the tensor that was taken, which is not the next one.
    if me == 0:
        is_late(buffer.pp_recv, torch.empty((5,), dtype=torch.bfloat16), before)
    symrail.barrier_all()
    buffer.pp_send(some((5,), 1, me), following)
    # The receive that timed out has not emptied the slot.
    if following == 0:
        is_late(buffer.pp_send, some((5,), 2, me), following)
    symrail.barrier_all()
    for lap in (1, 2):
        receives(lap)
        buffer.pp_send(some((5,), lap + 1, me), following)
    receives(3)
    buffer.destroy()


def neighbours(me: int, ranks: int) -> None:
    """Tensors of random sizes go both ways around the ring, in each rank's own order; as many as fit are sent ahead."""
    most, largest = 3, 4000
    size = deep_ep.ElasticBuffer.get_pp_buffer_size_hint(2 * largest, most)
    assert size % MB == 0 and size >= 2 * largest * most * 4
    buffer = deep_ep.ElasticBuffer(GROUP, explicitly_destroy=True, num_bytes=size, num_cpu_timeout_secs=20)
    refused(StateError, "before pp_set_config", buffer.pp_send, some((1,), 1), 0)
    buffer.pp_set_config(2 * largest, most)
    for lap in range(LAPS):
        order = random.Random(1000 + lap)
        # A common order of sends and receives, in which at most `most` are on each way; a rank makes its own ones.
        on_way: dict[tuple[int, int], list[Any]] = {}
        for number in range(60):
            source, step = order.randrange(ranks), order.choice((1, -1))
            way = source, (source + step) % ranks
            # With two ranks both ways of a rank are one.
            key = way if ranks > 2 else (way[0], way[1])
            waits = on_way.setdefault(key, [])
            if len(waits) < most:
                length = order.choice((0, 1, 7, largest, order.randrange(largest)))
                waits.append((length, number))
                if me == way[0]:
                    buffer.pp_send(some((length,), lap, number), way[1])
            while waits and (len(waits) == most or order.random() < 0.5):
                length, of = waits.pop(0)
                if me == way[1]:
                    to = torch.full((length,), 7.0, dtype=torch.bfloat16, device=DEVICE)
                    buffer.pp_recv(to, way[0])
                    assert torch.equal(to, some((length,), lap, of)), (lap, of, way)
        for way, waits in on_way.items():
            for length, of in waits:
                if me == way[1]:
                    to = torch.empty((length,), dtype=torch.bfloat16, device=DEVICE)
                    buffer.pp_recv(to, way[0])
                    assert torch.equal(to, some((length,), lap, of)), (lap, of, way)
    # All send ahead, and then all receive.
    for lap in range(4):
        sent = [some((9, 9), 7, lap, i, me) for i in range(most)]
        for one in sent:
            buffer.pp_send(one, (me + 1) % ranks)
            one.fill_(0)
        for i in range(most):
            to = torch.empty((9, 9), dtype=torch.bfloat16, device=DEVICE)
            buffer.pp_recv(to, (me - 1) % ranks)
            assert torch.equal(to, some((9, 9), 7, lap, i, (me - 1) % ranks)), (lap, i)
    refused(ArgumentError, "at most", buffer.pp_send, some((largest + 16,), 1), (me + 1) % ranks)
    refused(ArgumentError, "not contiguous", buffer.pp_send, some((4, 4), 1).t(), (me + 1) % ranks)
    if ranks > 3:
        refused(ArgumentError, "the neighbours of rank", buffer.pp_send, some((4,), 1), (me + 2) % ranks)
    if DEVICE == "cpu":
        # Another size is named, and the tensor is still there.
        buffer.pp_send(some((5,), me), (me + 1) % ranks)
        to = torch.empty((6,), dtype=torch.bfloat16)
        refused(DifferError, "12 bytes", buffer.pp_recv, to, (me - 1) % ranks)
        buffer.pp_recv(to[:5], (me - 1) % ranks)
        assert torch.equal(to[:5], some((5,), (me - 1) % ranks))
        buffer.barrier()
        out_of_time(me, ranks)
    buffer.destroy()


class Counting:
    """A job, and the number of gets that were started."""

    def __init__(self, runtime: Any) -> None:
        self.runtime, self.gets = getattr(runtime, "runtime", runtime), 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.runtime, name)

    def get_nbi(self, *arguments: Any) -> None:
        self.gets += 1
        self.runtime.get_nbi(*arguments)


def engram(me: int, ranks: int) -> None:
    """Entries of all ranks, also of FP8 with their scales, in both layouts; then others in the same memory, and of
    another shape. Entries that are near to each other come from a rank by one request, if rails carry them; of the
    large ones those that are neighbours do."""
    shapes = [(50, 64, 40, 3, False), (50, 64, 1, 5, False), (33, 128, 30, 4, True), (40, 1040, 9, 2, False)]
    for entries, hidden, tokens, each, is_fp8 in shapes:
        if is_fp8 and not hasattr(torch, "float8_e4m3fn"):
            continue
        dtype = torch.float8_e4m3fn if is_fp8 else torch.bfloat16
        on_gpu, on_cpu = deep_ep.ElasticBuffer.get_engram_storage_size_hint(entries, hidden, tokens * each, dtype)
        assert on_gpu % MB == 0 and on_cpu % MB == 0
        buffer = deep_ep.ElasticBuffer(GROUP, num_bytes=on_gpu + on_cpu, num_cpu_bytes=on_cpu, explicitly_destroy=True)
        refused(StateError, "before engram_write", buffer.engram_fetch, torch.zeros((1, 1), dtype=torch.int32))
        for lap in range(3):
            all_entries = [some((entries, hidden), lap, rank, dtype=dtype) for rank in range(ranks)]
            sf = some((ranks * entries, 2), 5, lap, dtype=torch.float32) if is_fp8 else None
            if lap == 1 and ranks > 1:
                wrong = some((entries + (me == 1), hidden), 1, dtype=dtype)
                error = "number of entries" if not is_fp8 else "engram_write"
                refused((DifferError, ArgumentError), error, buffer.engram_write, wrong, sf)
            buffer.engram_write(all_entries[me], sf=sf)
            whole = torch.cat([one.view(torch.uint8) for one in all_entries])
            numbers = torch.randint(0, ranks * entries, (tokens, each), generator=torch.Generator().manual_seed(me + lap))
            numbers = numbers.to(torch.int32).to(DEVICE)
            if lap == 2:
                numbers.fill_(ranks * entries - 1)
            counting = buffer._engram.runtime = Counting(buffer._engram.runtime)
            others = [rank for rank in range(ranks) if not counting.is_mapped(rank)]
            its = [numbers.unique()[numbers.unique() // entries == rank].long().cpu() for rank in others]
            near = 1 + 2048 // (hidden * all_entries[0].element_size())
            requests = sum(bool(len(one)) + int((one.diff() > near).sum()) for one in its)
            for column_major in (False, True):
                counting.gets = 0
                hook = buffer.engram_fetch(numbers, use_tma_aligned_col_major_sf=column_major)
                data, scales = hook()
                assert data.dtype == dtype and counting.gets == requests, (counting.gets, requests)
                assert torch.equal(data.view(torch.uint8), whole[numbers.view(-1).long()].view(tokens, -1)), lap
                if sf is None:
                    assert scales is None
                    continue
                assert torch.equal(scales, sf[numbers.view(-1).long()].view(tokens, -1))
                strides = (1, -(-tokens // 4) * 4) if column_major else (each * 2, 1)
                assert scales.stride() == strides, scales.stride()
            for wrong in (-1, ranks * entries):
                numbers[0, 0] = wrong
                refused(ArgumentError, f"entry {wrong}", buffer.engram_fetch, numbers)
        buffer.destroy()


with symrail.init(heap_bytes=256 << 20):
    me, ranks = symrail.my_pe(), symrail.n_pes()
    if DEVICE == "cuda":
        torch.cuda.set_device(symrail.current().device)
    if sys.argv[3:] == ["groups"]:
        GROUP = symrail.team_world().split_strided(me % 2, 2, ranks // 2)
        PES = [me % 2, me % 2 + 2]
        me, ranks = GROUP.my_pe(), GROUP.n_pes()
    for part in (sessions, neighbours, engram):
        part(me, ranks)
        symrail.barrier_all()
    print(f"PE {symrail.my_pe()} is well\n", end="")
    sys.stdout.flush()
