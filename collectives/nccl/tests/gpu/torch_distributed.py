"""torch.distributed's "nccl" back end on libsymrail_nccl.so: two ranks, which may share a GPU.

    torch_distributed.py LIBRARY [CASE...]    starts the ranks, with the library in NCCL's place

Every case is run with a process group of its own, whatever became of those before it.
"""

import os
import socket
import subprocess
import sys
import time
import traceback

RANKS = 2


def main(library: str, cases: list[str]) -> int:
    """Starts the ranks and waits for them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    common = dict(os.environ, LD_PRELOAD=library, MASTER_ADDR="127.0.0.1", MASTER_PORT=port, WORLD_SIZE=str(RANKS))
    common.setdefault("SYMRAIL_TIMEOUT_S", "20")
    each = [sys.executable, "-u", __file__, "--rank", *cases]
    ranks = [subprocess.Popen(each, env=dict(common, RANK=str(rank))) for rank in range(RANKS)]
    return max(rank.wait() for rank in ranks)


def data(rank: int, count: int, dtype, device):
    """A rank's input: small whole numbers, which all types add exactly."""
    import torch

    return ((torch.arange(count, device=device) * (rank + 3)) % 7 + rank).to(dtype)


def check(what: str, found, expected) -> None:
    import torch

    torch.cuda.synchronize()
    if not torch.equal(found, expected):
        wrong = (found != expected).nonzero().flatten()
        at = int(wrong[0])
        raise AssertionError(f"{what}: {len(wrong)} of {found.numel()} wrong, first {at}: {found.flatten()[at]} for {expected.flatten()[at]}")


class Cases:
    def __init__(self, rank: int, device) -> None:
        import torch

        self.rank, self.device, self.n = rank, device, RANKS
        self.other = 1 - rank
        self.dtypes = [torch.float32, torch.bfloat16, torch.int64]

    def all_reduce(self, dist, torch) -> None:
        for dtype in self.dtypes:
            for count in [1, 1001, 300_001, 9_000_001]:
                if dtype != torch.float32 and count > 1_000_000:
                    continue
                tensor = data(self.rank, count, dtype, self.device)
                dist.all_reduce(tensor)
                check(f"all_reduce of {count} {dtype}", tensor, sum(data(r, count, dtype, self.device) for r in range(self.n)))

    def operations(self, dist, torch) -> None:
        inputs = [data(r, 200_003, torch.float32, self.device) for r in range(self.n)]
        expected = {
            dist.ReduceOp.MAX: torch.maximum(*inputs),
            dist.ReduceOp.MIN: torch.minimum(*inputs),
            dist.ReduceOp.PRODUCT: inputs[0] * inputs[1],
            dist.ReduceOp.AVG: (inputs[0] + inputs[1]) / 2,
        }
        for op, result in expected.items():
            tensor = inputs[self.rank].clone()
            dist.all_reduce(tensor, op)
            check(f"all_reduce by {op}", tensor, result)
        tensor = inputs[self.rank].clone()
        dist.all_reduce(tensor, dist._make_nccl_premul_sum(0.5))
        check("all_reduce of halves", tensor, (inputs[0] + inputs[1]) * 0.5)
        tensor = inputs[self.rank].clone()
        dist.all_reduce(tensor, dist._make_nccl_premul_sum(torch.full((1,), 0.25, device=self.device)))
        check("all_reduce of quarters", tensor, (inputs[0] + inputs[1]) * 0.25)

    def moves(self, dist, torch) -> None:
        for count in [3, 70_001, 5_000_001]:
            inputs = [data(r, count, torch.float32, self.device) for r in range(self.n)]
            both = torch.empty(self.n * count, device=self.device)
            dist.all_gather_into_tensor(both, inputs[self.rank])
            check(f"all_gather_into_tensor of {count}", both, torch.cat(inputs))
            part = torch.empty(count, device=self.device)
            whole = [data(r, self.n * count, torch.float32, self.device) for r in range(self.n)]
            dist.reduce_scatter_tensor(part, whole[self.rank])
            check(f"reduce_scatter_tensor of {count}", part, sum(whole)[self.rank * count : (self.rank + 1) * count])
            for root in range(self.n):
                tensor = inputs[self.rank].clone()
                dist.broadcast(tensor, root)
                check(f"broadcast of {count} from {root}", tensor, inputs[root])
                tensor = inputs[self.rank].clone()
                dist.reduce(tensor, root)
                check(f"reduce of {count} to {root}", tensor, sum(inputs) if self.rank == root else tensor)
            swapped = torch.empty(self.n * count, device=self.device)
            dist.all_to_all_single(swapped, whole[self.rank])
            check(f"all_to_all_single of {count}", swapped, torch.cat([w[self.rank * count : (self.rank + 1) * count] for w in whole]))

    def uneven(self, dist, torch) -> None:
        sizes = [[5, 100_003], [70_001, 2]]
        whole = [data(r, sum(sizes[r]), torch.float32, self.device) for r in range(self.n)]
        received = [sizes[r][self.rank] for r in range(self.n)]
        output = torch.empty(sum(received), device=self.device)
        dist.all_to_all_single(output, whole[self.rank], received, sizes[self.rank])
        check("all_to_all_single of uneven parts", output, torch.cat([whole[r].split(sizes[r])[self.rank] for r in range(self.n)]))
        outputs = [torch.empty(count, device=self.device) for count in (7, 50_000)]
        inputs = [data(r, (7, 50_000)[r], torch.float32, self.device) for r in range(self.n)]
        dist.all_gather(outputs, inputs[self.rank])
        for r in range(self.n):
            check("all_gather of uneven parts", outputs[r], inputs[r])

    def send(self, dist, torch) -> None:
        for count in [1, 1001, 6_000_001]:
            mine, theirs = (data(r, count, torch.float32, self.device) for r in (self.rank, self.other))
            got = torch.empty(count, device=self.device)
            if self.rank == 0:
                dist.send(mine, 1)
                dist.recv(got, 1)
            else:
                dist.recv(got, 0)
                dist.send(mine, 0)
            check(f"recv of {count}", got, theirs)

    def batched(self, dist, torch) -> None:
        counts = [3, 40_001, 2_000_003]
        got = [torch.empty(count, device=self.device) for count in counts]
        ops = [dist.P2POp(dist.isend, data(self.rank, count, torch.float32, self.device), self.other) for count in counts]
        ops += [dist.P2POp(dist.irecv, tensor, self.other) for tensor in got]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        for tensor, count in zip(got, counts):
            check(f"batch_isend_irecv of {count}", tensor, data(self.other, count, torch.float32, self.device))

    def others(self, dist, torch) -> None:
        dist.barrier()
        objects = [None] * self.n
        dist.all_gather_object(objects, {"rank": self.rank})
        assert objects == [{"rank": r} for r in range(self.n)], objects
        group = dist.new_group([0, 1])
        alone = [dist.new_group([r]) for r in range(self.n)]
        for chosen, expected in [(group, 3.0), (alone[self.rank], self.rank + 1.0), (None, 3.0)]:
            tensor = torch.full((4,), self.rank + 1.0, device=self.device)
            dist.all_reduce(tensor, group=chosen)
            check("all_reduce in a group", tensor, torch.full((4,), expected, device=self.device))
        dist.barrier(group)

    def split(self, dist, torch) -> None:
        group = dist.split_group(split_ranks=[[0, 1]])
        tensor = torch.full((4,), self.rank + 1.0, device=self.device)
        dist.all_reduce(tensor, group=group)
        check("all_reduce after a split", tensor, torch.full((4,), 3.0, device=self.device))

    def graph(self, dist, torch) -> None:
        tensor = torch.ones(5000, device=self.device)
        dist.all_reduce(tensor)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            dist.all_reduce(tensor)
            tensor.mul_(0.5)
        tensor.fill_(self.rank + 1.0)
        for _ in range(100):
            graph.replay()
        check("100 replays", tensor, torch.full((5000,), 1.5, device=self.device))

    def training(self, dist, torch) -> None:
        def model():
            torch.manual_seed(7)
            layers = [torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8)]
            return torch.nn.Sequential(*layers).to(self.device)

        torch.manual_seed(11)
        batch, target = torch.randn(128, 64, device=self.device), torch.randn(128, 8, device=self.device)
        mine = slice(self.rank * 64, (self.rank + 1) * 64)
        alone, together = model(), torch.nn.parallel.DistributedDataParallel(model(), bucket_cap_mb=0.1)
        losses = []
        for one, part in ((alone, slice(None)), (together, mine)):
            optimizer, trained = torch.optim.SGD(one.parameters(), lr=0.1, momentum=0.9), []
            for _ in range(20):
                loss = torch.nn.functional.mse_loss(one(batch[part]), target[part])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                loss = loss.detach()
                if one is together:
                    dist.all_reduce(loss, dist.ReduceOp.AVG)
                trained.append(loss.item())
            losses.append(trained)
        assert all(abs(a - b) < 1e-4 for a, b in zip(*losses)), losses
        for parameter in together.parameters():
            both = [torch.empty_like(parameter) for _ in range(self.n)]
            dist.all_gather(both, parameter.detach())
            check("parameters of both ranks", both[0].flatten(), both[1].flatten())
        self.said = f"loss {losses[1][0]:.4f} to {losses[1][-1]:.4f}, alone {losses[0][-1]:.4f}"

    def times(self, dist, torch) -> None:
        said = []
        for power in (3, 10, 14, 16, 18, 20, 22, 24, 26):
            tensor = torch.zeros((1 << power) // 4, device=self.device)
            for _ in range(3):
                dist.all_reduce(tensor)
            torch.cuda.synchronize()
            dist.barrier()
            begun = time.perf_counter()
            for _ in range(20):
                dist.all_reduce(tensor)
            torch.cuda.synchronize()
            said.append(f"{1 << power} B {(time.perf_counter() - begun) / 20 * 1e6:.0f} us")
        self.said = "; ".join(said)


# The split comes first: after another process group PyTorch 2.11 crashes in it, with NVIDIA's library, too.
NAMES = ["split", "all_reduce", "operations", "moves", "uneven", "send", "batched", "others", "graph", "training", "times"]


def rank(cases: list[str]) -> int:
    import datetime
    import faulthandler

    import torch
    import torch.distributed as dist

    faulthandler.enable()
    me = int(os.environ["RANK"])
    device = torch.device("cuda", me % torch.cuda.device_count())
    torch.cuda.set_device(device)
    wrong = []
    store = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), RANKS, me == 0)
    if me == 0:
        print("NCCL", torch.cuda.nccl.version(), "torch", torch.__version__, flush=True)
    for number, name in enumerate(cases or NAMES):
        all_cases, begun = Cases(me, device), time.perf_counter()
        try:
            # A split needs communicators that exist from the beginning.
            eager = {"device_id": device} if name == "split" else {}
            prefix = dist.PrefixStore(str(number), store)
            dist.init_process_group("nccl", store=prefix, rank=me, world_size=RANKS, timeout=datetime.timedelta(seconds=60), **eager)
            getattr(all_cases, name)(dist, torch)
            said = getattr(all_cases, "said", "")
            if me == 0:
                print(f"{name}: right ({time.perf_counter() - begun:.1f} s) {said}", flush=True)
        except BaseException:
            wrong.append(name)
            print(f"rank {me}, {name}: WRONG ({time.perf_counter() - begun:.1f} s)\n{traceback.format_exc()}", flush=True)
        try:
            if dist.is_initialized():
                dist.destroy_process_group()
        except BaseException:
            wrong.append(f"end of {name}")
            traceback.print_exc()
    print(f"rank {me}: {'all right' if not wrong else 'WRONG: ' + ' '.join(wrong)}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    if sys.argv[1] == "--rank":
        sys.exit(rank(sys.argv[2:]))
    sys.exit(main(os.path.abspath(sys.argv[1]), sys.argv[2:]))
