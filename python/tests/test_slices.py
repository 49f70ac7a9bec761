"""Copies between any slices of arrays, against NumPy's own assignment; one PE, in this process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import symrail

SHAPE = (4, 5, 6)


@pytest.fixture(scope="module", autouse=True)
def job() -> Iterator[None]:
    with symrail.init(uid=symrail.get_unique_id(), rank=0, nranks=1, heap_bytes=4 << 20):
        yield


@pytest.fixture(scope="module")
def there(job: None) -> np.ndarray[Any, Any]:
    return symrail.array(SHAPE, "int32")


@st.composite
def two_slices_of_one_shape(draw: Any) -> tuple[tuple[slice, ...], tuple[slice, ...], tuple[int, ...]]:
    """Slices of any step and direction of two arrays of this shape, and an order of the dimensions."""
    first, second = [], []
    for length in SHAPE:
        chosen = draw(st.slices(length))
        count = len(range(*chosen.indices(length)))
        step = draw(st.sampled_from([s for s in (1, 2, 3) if count == 0 or (count - 1) * s < length]))
        start = draw(st.integers(0, length - 1 - (count - 1) * step)) if count else 0
        forward = slice(start, start + count * step, step)
        end = start - 1 if start else None
        backward = slice(start + (count - 1) * step, end, -step) if count else forward
        first.append(chosen)
        second.append(draw(st.sampled_from([forward, backward])))
    return tuple(first), tuple(second), tuple(draw(st.permutations(range(3))))


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(two_slices_of_one_shape())
def test_put_and_get_of_slices(there: np.ndarray[Any, Any], slices: Any) -> None:
    to, of, order = slices
    numbers = np.arange(np.prod(SHAPE), dtype="int32").reshape(SHAPE) + 1
    # Symmetric and local dimensions in another order, and so in other memory layouts.
    target, source = there[to].transpose(order), numbers[of].transpose(order)
    assert target.shape == source.shape
    there[...] = 0
    wanted = np.zeros(SHAPE, "int32")
    wanted[to] = numbers[of]
    symrail.put(target, source, 0)
    symrail.quiet()
    assert np.array_equal(there, wanted)
    back = np.zeros(SHAPE, "int32")
    symrail.get(back[of].transpose(order), target, 0)
    returned = np.zeros(SHAPE, "int32")
    returned[of] = numbers[of]
    assert np.array_equal(back, returned)


def test_arrays_are_seen_by_other_libraries_without_copies() -> None:
    array = symrail.array(5, "float32")
    for view in (np.from_dlpack(array), np.frombuffer(memoryview(array), "float32"), np.asarray(array)):
        array[:] = np.arange(5) + view.size
        assert np.shares_memory(view, array) and view[1] == 6
    # Views keep the block, whatever becomes of the array.
    view = np.from_dlpack(array)
    blocks = symrail.current().blocks()[0]
    del array
    symrail.reclaim()
    assert symrail.current().blocks()[0] == blocks and view[1] == 6
