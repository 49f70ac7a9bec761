"""Arrays in memory that the CPU cannot access, without a GPU: views, other libraries' protocols, misuse."""

from __future__ import annotations

import ctypes
import gc
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import run
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import symrail
from symrail.errors import ArgumentError, FreedError, UnsupportedError

SHAPE = (4, 5, 6)
WAYS = {"one host": (), "two hosts over two rails": ("--hosts", "2", "--rails", "2")}


@pytest.mark.parametrize("way", WAYS)
def test_copies_signals_and_atomics(way: str) -> None:
    assert run("device_arrays.py", options=WAYS[way]) == "well\n" * 2


@pytest.fixture(scope="module", autouse=True)
def job() -> Iterator[None]:
    with symrail.init(uid=symrail.get_unique_id(), rank=0, nranks=1, heap="guarded", heap_bytes=4 << 20):
        yield


@pytest.fixture(scope="module")
def there(job: None) -> symrail.DeviceArray:
    array = symrail.array(SHAPE, "int32")
    assert isinstance(array, symrail.DeviceArray)
    array[...] = np.arange(120, dtype="int32").reshape(SHAPE)
    return array


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_slices_are_those_of_numpy(there: symrail.DeviceArray, data: Any) -> None:
    numbers = np.arange(120, dtype="int32").reshape(SHAPE)
    index = st.integers(-4, 3) | st.slices(4) | st.just(...)
    key = data.draw(index | st.tuples(index, st.integers(-5, 4) | st.slices(5)).filter(lambda k: k.count(...) < 2))
    found, wanted = there[key], numbers[key]
    assert found.shape == wanted.shape and np.array_equal(found.numpy(), wanted)
    order = data.draw(st.permutations(range(found.ndim)))
    assert np.array_equal(found.transpose(*order).numpy(), wanted.transpose(order))
    assert np.array_equal(found.T.numpy(), wanted.T)


def test_reshape_and_view(there: symrail.DeviceArray) -> None:
    numbers = np.arange(120, dtype="int32").reshape(SHAPE)
    assert np.array_equal(there.reshape(10, -1).numpy(), numbers.reshape(10, -1))
    assert np.array_equal(there.reshape((120,)).numpy(), numbers.reshape(120))
    assert np.array_equal(there.view("int16").numpy(), numbers.view("int16"))
    assert np.array_equal(there[:, ::2].view("float32").numpy(), numbers[:, ::2].view("float32"))
    assert there.view("uint8").view("bfloat16").shape == (4, 5, 12)
    for wrong in (lambda: there.reshape(7), lambda: there.reshape(-1, -1), lambda: there[:, ::2].reshape(60)):
        with pytest.raises(ArgumentError):
            wrong()
    with pytest.raises(ArgumentError):
        there[:, :, ::2].view("int64")
    for index in (4, (0, 0, 0, 0), (..., ...)):
        with pytest.raises(IndexError):
            there[index]
    with pytest.raises(TypeError):
        there[[0, 1]]


class Tensor(ctypes.Structure):
    """The struct of dlpack.h."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Plain(ctypes.Structure):
    _fields_ = [("tensor", Tensor), ("context", ctypes.c_void_p), ("deleter", Deleter)]


class Versioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", Deleter),
        ("flags", ctypes.c_uint64),
        ("tensor", Tensor),
    ]


_get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_get_pointer.restype, _get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
_set_name = ctypes.pythonapi.PyCapsule_SetName
_set_name.argtypes = [ctypes.py_object, ctypes.c_char_p]


def blocks() -> int:
    gc.collect()
    symrail.reclaim()
    return symrail.current().blocks()[0]


@pytest.mark.parametrize("versioned", [True, False])
def test_dlpack_capsules(versioned: bool) -> None:
    before = blocks()
    array = symrail.array((4, 6), "bfloat16")[1:, ::2]
    capsule = array.__dlpack__(max_version=(1, 3)) if versioned else array.__dlpack__()
    name = b"dltensor_versioned" if versioned else b"dltensor"
    pointer = _get_pointer(capsule, name)
    managed: Any = ctypes.cast(pointer, ctypes.POINTER(Versioned if versioned else Plain)).contents
    if versioned:
        assert managed.major == 1 and managed.flags == 0
    tensor = managed.tensor
    assert (tensor.data, tensor.byte_offset, tensor.ndim) == (array.data_ptr, 0, 2)
    assert (tensor.code, tensor.bits, tensor.lanes) == (4, 16, 1)
    assert (tensor.device_type, tensor.device_id) == array.__dlpack_device__()
    assert (tensor.shape[:2], tensor.strides[:2]) == ([3, 3], [6, 2])
    # The consumer's tensor keeps the memory, whatever becomes of array and capsule.
    _set_name(capsule, b"used_" + name)
    del array, capsule, tensor
    assert blocks() == before + 1
    managed.deleter(pointer)
    assert blocks() == before
    # A capsule that no consumer takes frees its memory.
    unused = symrail.array(3, "int8").__dlpack__(max_version=(1, 0) if versioned else None)
    assert blocks() == before + 1
    del unused
    assert blocks() == before


def test_dlpack_neither_copies_nor_moves() -> None:
    array = symrail.array(3)
    for options in ({"copy": True}, {"dl_device": (1, 0)}):
        with pytest.raises(BufferError):
            array.__dlpack__(**options)
    assert array.__dlpack__(stream=1, dl_device=array.__dlpack_device__(), copy=False)


# DLPack's codes, by dlpack.h.
CODES = {
    "int8": (0, 8),
    "uint64": (1, 64),
    "float16": (2, 16),
    "bfloat16": (4, 16),
    "complex64": (5, 64),
    "bool": (6, 8),
    "float8_e3m4": (7, 8),
    "float8_e4m3": (8, 8),
    "float8_e4m3b11fnuz": (9, 8),
    "float8_e4m3fn": (10, 8),
    "float8_e4m3fnuz": (11, 8),
    "float8_e5m2": (12, 8),
    "float8_e5m2fnuz": (13, 8),
    "float8_e8m0fnu": (14, 8),
}


@pytest.mark.parametrize("dtype", CODES)
def test_types_of_dlpack(dtype: str) -> None:
    capsule = symrail.array(2, dtype).__dlpack__()
    tensor = ctypes.cast(_get_pointer(capsule, b"dltensor"), ctypes.POINTER(Plain)).contents.tensor
    assert (tensor.code, tensor.bits) == CODES[dtype]


def test_types_that_no_gpu_has() -> None:
    for dtype in ("S5", "M8[s]"):
        with pytest.raises(ArgumentError):
            symrail.array(2, dtype)


def test_streams_need_a_gpu() -> None:
    class Protocol:
        def __cuda_stream__(self) -> tuple[int, int]:
            return (0, 5)

    class OfTorch:
        cuda_stream = 7

    class OfCupy:
        ptr = 9

    class Newer:
        def __cuda_stream__(self) -> tuple[int, int]:
            return (1, 5)

    array, word = symrail.array(3), symrail.array(1, "uint64")
    calls = [
        lambda stream: symrail.put(array, array, 0, stream=stream),
        lambda stream: symrail.get(array, array, 0, stream=stream),
        lambda stream: symrail.put_signal(array, array, word, 1, "set", 0, stream=stream),
        lambda stream: symrail.signal_op(word, 1, "set", 0, stream=stream),
        lambda stream: symrail.signal_wait(word, 1, stream=stream),
        lambda stream: symrail.fence(stream=stream),
        lambda stream: symrail.quiet(stream=stream),
        lambda stream: symrail.barrier_all(stream=stream),
        lambda stream: symrail.sync_all(stream=stream),
        lambda stream: symrail.barrier(symrail.team_world(), stream=stream),
        lambda stream: symrail.sync(symrail.team_world(), stream=stream),
        lambda stream: symrail.broadcast(symrail.team_world(), array, array, stream=stream),
        lambda stream: symrail.fcollect(symrail.team_world(), array, array, stream=stream),
        lambda stream: symrail.collect(symrail.team_world(), array, array, stream=stream),
        lambda stream: symrail.reduce(symrail.team_world(), array, array, stream=stream),
        lambda stream: symrail.reducescatter(symrail.team_world(), array, array, stream=stream),
        lambda stream: symrail.alltoall(symrail.team_world(), array, array, stream=stream),
    ]
    for call in calls:
        for stream in (0, 1, Protocol(), OfTorch(), OfCupy()):
            with pytest.raises(UnsupportedError, match="heap"):
                call(stream)
        for wrong in (True, "0", -1, object(), Newer()):
            with pytest.raises(ArgumentError, match="stream"):
                call(wrong)
    with pytest.raises(ArgumentError, match="timeout"):
        symrail.signal_wait(word, 1, stream=0, timeout=1.0)


class OnGpu:
    """Looks like another library's array in a GPU's memory."""

    def __init__(self, shape: tuple[int, ...], typestr: str) -> None:
        self.__cuda_array_interface__ = {"shape": shape, "typestr": typestr, "data": (4096, False), "version": 3}


def test_memory_of_gpus_outside_of_the_heap_is_refused_on_the_host() -> None:
    array = symrail.array(3, "float32")
    for call in (
        lambda: symrail.put(array, OnGpu((3,), "<f4"), 0),
        lambda: symrail.get(OnGpu((3,), "<f4"), array, 0),
        lambda: symrail.put(OnGpu((3,), "<f4"), array, 0),
    ):
        with pytest.raises(UnsupportedError):
            call()
    with pytest.raises(ArgumentError, match="outside"):
        symrail.atomic_add(OnGpu((1,), "<u8"), 1, 0)
    with pytest.raises(ArgumentError, match="outside"):
        symrail.wait_until(OnGpu((1,), "<u8"), "==", 1)
    with pytest.raises(ArgumentError, match="outside"):
        symrail.reduce(symrail.team_world(), array, OnGpu((3,), "<f4"))
    with pytest.raises(ArgumentError, match="dtypes differ"):
        symrail.put(array, OnGpu((3,), "<f8"), 0)
    with pytest.raises(ArgumentError, match="shapes differ"):
        symrail.put(array, OnGpu((1, 3), "<f4"), 0)
    with pytest.raises(ArgumentError):
        symrail.put(array, OnGpu((3,), "<U4"), 0)


def test_the_extension_for_pytorch_knows_the_table_of_functions() -> None:
    package = Path(__file__).parents[1]
    theirs, ours = package / "symrail" / "torch" / "symmetric_memory.cpp", package / "src" / "torch.rs"
    cpp = theirs.read_text().split("struct Table {")[1].split("};")[0]
    rust = ours.read_text().split("struct Table {")[1].split("\n}")[0]
    members = re.findall(r"\(\*(\w+)\)\(|\b(\w+);", re.sub(r"\)\([^;]*\);", ")();", cpp))
    assert [a or b for a, b in members] == re.findall(r"^    (\w+):", rust, re.MULTILINE)
    version = re.search(r"kVersion = (\d+);", theirs.read_text())
    assert version and f"version: {version[1]}," in ours.read_text()


def test_freed_arrays_and_peers() -> None:
    array = symrail.array((2, 3))
    assert symrail.get_peer_array(array, 0) is None
    assert not hasattr(array, "__cuda_array_interface__")
    symrail.free(array)
    with pytest.raises(FreedError):
        symrail.put(array, 1, 0)
    with pytest.raises(FreedError):
        symrail.put(symrail.array((2, 3)), array, 0)
