"""Tensors and arrays whose elements are not what is in memory at their address: right, or refused by name."""

import warnings

import numpy as np
import torch
from refused import refused as refused_as

import symrail
import symrail.collectives as collectives
import symrail.ep as deep_ep
import symrail.overlap as overlap
from symrail.errors import ArgumentError

warnings.simplefilter("ignore")
torch.set_num_threads(1)


class Wrapper(torch.Tensor):
    """A tensor without memory of its own, as DTensor is one."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        if function is torch.ops.aten.detach.default:
            return args[0]
        raise NotImplementedError(str(function))


def strange():
    """Tensors of [4, 4], and a word of the refusal."""
    eye = torch.eye(4)
    yield "layout", eye.to_sparse()
    yield "layout", eye.to_sparse_csr()
    yield "quantized", torch.quantize_per_tensor(eye, 0.1, 0, torch.quint8)
    yield "meta", eye.to("meta")
    yield "Wrapper", Wrapper(eye)
    yield "nested", torch.nested.nested_tensor([eye[0], eye[1]])


def marked():
    """Tensors of [4, 4] that are only marked, and the remedy."""
    complexes = torch.arange(16.0).to(torch.complex64).reshape(4, 4) * (1 + 2j)
    yield complexes.conj(), "resolve_conj()"
    yield complexes.t().conj(), "resolve_conj()"
    yield torch._neg_view(torch.arange(16.0).reshape(4, 4)), "resolve_neg()"
    yield complexes.conj().imag, "resolve_neg()"


def refused(text, call, *args, **kwargs):
    refused_as(ArgumentError, call, *args, text=text, **kwargs)


def copies(me, n):
    to, team = (me + 1) % n, symrail.team_world()
    for tensor, remedy in marked():
        wanted = tensor.resolve_conj().resolve_neg().numpy()
        for put in (symrail.put, symrail.put_nbi):
            there = symrail.array((4, 4), tensor.dtype)
            put(there, tensor, to)
            symrail.barrier_all()
            assert np.array_equal(there, wanted), (there, wanted)
            symrail.barrier_all()
        there, word = symrail.array((4, 4), tensor.dtype), symrail.array(1, "uint64")
        symrail.put_signal(there, tensor, word, 1, "set", to)
        symrail.signal_wait(word, 1)
        assert np.array_equal(there, wanted)
        symrail.barrier_all()
        # A row is broadcast.
        symrail.put(there, tensor[1], to)
        symrail.barrier_all()
        assert np.array_equal(there, np.broadcast_to(wanted[1], (4, 4)))
        symrail.barrier_all()
        for get in (symrail.get, symrail.get_nbi):
            refused(remedy, get, tensor, there, to)
        # A view of symmetric memory with a mark.
        own = torch.from_numpy(there)
        own = own.conj() if remedy == "resolve_conj()" else torch._neg_view(own)
        refused(remedy, symrail.put, own, there, to)
        refused(remedy, symrail.get, there.copy(), own, to)
        refused(remedy, team.reduce, there, own, "sum")
        refused(remedy, team.reduce, own, there, "sum")
        refused(remedy, symrail.atomic_add, own, 1, to)
        refused(remedy, symrail.free, own)
        with collectives.Communicator(compare=False) as comm:
            refused(remedy, comm.all_reduce, own)
            refused(remedy, comm.send, own, to)
    there = symrail.array((4, 4), "float32")
    for text, tensor in strange():
        refused(text, symrail.put, there, tensor, to)
        if text != "quantized":
            refused(text, symrail.get, tensor, there, to)
    half = torch.arange(4, dtype=torch.bfloat16, requires_grad=True)
    there = symrail.array((3, 4), "bfloat16")
    symrail.put(there, half, to)
    symrail.barrier_all()
    assert (there.astype("float32") == np.arange(4)).all()


def arrays(me, n):
    """Arrays of NumPy."""
    to, team = (me + 1) % n, symrail.team_world()
    there, small = symrail.array((4, 4), "float32"), symrail.array(4, "float32")
    numbers = np.arange(16, dtype="float32").reshape(4, 4)
    for source, wanted in (
        (np.broadcast_to(numbers[0], (4, 4)), [numbers[0]] * 4),
        (numbers[::-1, ::-1], numbers[::-1, ::-1]),
        (np.lib.stride_tricks.as_strided(numbers, (4, 4), (4, 4)), [[i + j for j in range(4)] for i in range(4)]),
    ):
        symrail.put(there, source, to)
        symrail.barrier_all()
        assert np.array_equal(there, wanted)
        symrail.barrier_all()
    shared = np.zeros(8, "float32")
    for strides in ((0, 4), (4, 4), (4, 0), (2, 4)):
        refused("share memory", symrail.get, np.lib.stride_tricks.as_strided(shared, (4, 4), strides), there, to)
        over = np.lib.stride_tricks.as_strided(there, (4, 4), strides)
        refused("share memory", symrail.put, over, numbers, to)
    # Between one another, but apart.
    between = np.lib.stride_tricks.as_strided(np.zeros(16, "float32"), (3, 2), (8, 12))
    symrail.get(between, there[:3, :2], to)
    assert np.array_equal(between, there[:3, :2])
    fixed = np.zeros((4, 4), "float32")
    fixed.flags.writeable = False
    refused("writeable", symrail.get, fixed, there, to)
    refused("writeable", symrail.get_nbi, fixed, there, to)
    closed = small[:]
    closed.flags.writeable = False
    for call in (team.broadcast, team.reduce, team.alltoall, team.reduce_scatter):
        op = ("sum",) if call in (team.reduce, team.reduce_scatter) else ()
        refused("writeable", call, closed, small, *op)
    refused("order", symrail.get, np.zeros((4, 4), ">f4"), there, to)
    refused(">f4", symrail.put, there, np.zeros((4, 4), ">f4"), to)
    masked = np.ma.masked_array(numbers, numbers > 3)
    refused("masked", symrail.put, there, masked, to)
    refused("masked", symrail.get, masked, there, to)
    pairs = np.dtype([("a", "i4"), ("b", "f8")])
    there = symrail.array(3, pairs)
    symrail.put(there, np.array([(1, 2.5), (3, 4.5), (5, 6.5)], pairs), to)
    symrail.barrier_all()
    assert there["a"].tolist() == [1, 3, 5] and there["b"].tolist() == [2.5, 4.5, 6.5]
    refused("dtypes differ", symrail.put, there, np.zeros(3, [("a", "f8"), ("b", "i4")]), to)


def experts(me, n):
    low = deep_ep.Buffer.get_low_latency_rdma_size_hint(4, 64, n, n)
    buffer = deep_ep.Buffer(None, 1 << 20, low, low_latency_mode=True)
    idx, weights = torch.full((4, 2), me, dtype=torch.int64), torch.full((4, 2), 0.5)
    layout = buffer.get_dispatch_layout(idx, n)
    given = dict(num_tokens_per_rank=layout[0], num_tokens_per_expert=layout[2], is_token_in_rank=layout[3])
    for x, _ in marked():
        real = torch.randn(4, 16).t().contiguous().t()
        x = torch._neg_view(real) if not x.is_complex() else x
        plain = x.resolve_conj().resolve_neg()
        received, *_, handle, _ = buffer.dispatch(x, **given)
        assert torch.equal(received, plain)
        if x.is_complex():
            continue
        summed, _, _ = buffer.combine(x, handle, bias=x)
        assert torch.equal(summed, 2 * plain)
        rows, _, handle, _, _ = buffer.low_latency_dispatch(x, idx, 4, n, use_fp8=False)
        assert torch.equal(rows[0, :4], plain)
        found, _, _ = buffer.low_latency_combine(torch._neg_view(rows), idx, torch._neg_view(weights), handle)
        assert torch.equal(found, plain)
        found, _, _ = buffer.low_latency_combine(rows, idx, weights, handle)
        assert torch.equal(found, plain)
    plain = torch.randn(4, 16)
    for text, x in strange():
        refused(text, buffer.dispatch, x, **given)
        refused(text, buffer.low_latency_dispatch, x, idx, 4, n, use_fp8=False)
    rows, _, handle, _, _ = buffer.low_latency_dispatch(plain, idx, 4, n, use_fp8=False)
    again = (rows, idx, weights, handle)
    fixed = np.zeros((4, 16), "float32")
    refused("ndarray", buffer.low_latency_combine, *again, out=fixed)
    refused("stride", buffer.low_latency_combine, *again, out=torch.zeros(16).expand(4, 16))
    refused("resolve_neg()", buffer.low_latency_combine, *again, out=torch._neg_view(plain))
    refused("wanted", buffer.low_latency_combine, *again, out=plain[:3])
    out = torch.zeros(4, 16, requires_grad=True)
    assert buffer.low_latency_combine(*again, out=out)[0] is out and torch.equal(out.detach(), plain)
    fixed.flags.writeable = False
    counts = np.zeros(1, "int32")
    counts.flags.writeable = False
    of_numpy = (np.zeros((4, 16), "float32"), idx.numpy(), 4, n)
    refused("writeable", buffer.low_latency_dispatch, *of_numpy, counts, use_fp8=False)
    buffer.destroy()


def products(me, n):
    with overlap.Group(heap_bytes=1 << 20) as group:
        rows, weight = torch.randn(4, 4), torch.randn(4, 4)
        wanted = overlap.all_gather_matmul(-rows, -weight, group=group)
        torch.testing.assert_close(
            overlap.all_gather_matmul(torch._neg_view(rows), torch._neg_view(weight), group=group), wanted
        )
        for text, x in strange():
            refused(text if text != "quantized" else "uint8", overlap.all_gather_matmul, x, weight, group=group)
    assert me < n


with symrail.init(heap_bytes=64 << 20):
    here = symrail.my_pe(), symrail.n_pes()
    torch.manual_seed(here[0])
    copies(*here)
    arrays(*here)
    experts(*here)
    products(*here)
    symrail.barrier_all()
    print(f"PE {here[0]} is well\n", end="")
