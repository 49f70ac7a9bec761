"""Engram: a table whose rows all ranks hold a part of, and fetch from each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .._arrays import of_peer
from ..errors import ArgumentError, StateError
from ._on_gpu import must_not_capture
from ._symmetric import array, of_bytes, tensor, up

# The rows of scales begin at multiples of so many in the column-major layout.
_ALIGN_SCALES = 4
# Over a rail a request takes as long as some more bytes than so many.
_NEAR = 2048


class Engram:
    """This rank's entries in symmetric memory, and the scales of all ranks' entries."""

    def __init__(self, runtime: Any, timeout: float | None) -> None:
        self.runtime, self.timeout, self.gpu = runtime, timeout, runtime.device
        self.ranks = runtime.n_pes()
        self.key: tuple[int, int, str] | None = None
        self.held: Any = None
        self.sf: Any = None

    def check(self, storage: Any, sf: Any, most_bytes: int) -> list[int]:
        """Refuses what is no storage. Returns what all ranks have in common."""
        import torch

        call = "engram_write"
        data = of_bytes(storage, "storage", self.gpu, call)
        is_fp8 = storage.dtype == getattr(torch, "float8_e4m3fn", None)
        if storage.dim() != 2 or 0 in storage.shape or not (is_fp8 or storage.dtype == torch.bfloat16):
            raise ArgumentError(
                f"{call}: storage is {tuple(storage.shape)} of {storage.dtype}; wanted are entries of bfloat16 or "
                "float8_e4m3fn, [entries, hidden]"
            )
        if len(data) > most_bytes:
            raise ArgumentError(f"{call}: storage has {len(data)} bytes; this buffer's num_cpu_bytes are {most_bytes}")
        entries, hidden = (int(length) for length in storage.shape)
        if is_fp8 != (sf is not None):
            raise ArgumentError(f"{call}: sf goes with storage of float8_e4m3fn, and only with it")
        if sf is not None:
            of_bytes(sf, "sf", self.gpu, call)
            if sf.dim() != 2 or sf.element_size() != 4 or sf.shape[0] != self.ranks * entries:
                raise ArgumentError(
                    f"{call}: sf is {tuple(sf.shape)} of {sf.dtype}; wanted are {self.ranks * entries} rows of 4-byte "
                    "elements, those of all ranks' entries"
                )
        return [entries, hidden, storage.element_size()]

    def write(self, storage: Any, sf: Any) -> None:
        """Stores this rank's entries, which were checked. Collective; no rank fetches meanwhile."""
        entries, hidden = (int(length) for length in storage.shape)
        key = (entries, hidden, str(storage.dtype))
        if self.key != key:
            text = f"engram_write: {entries} entries of {hidden} {storage.dtype}"
            self.key = self.held = None
            self.held = array(self.runtime, (entries, hidden * storage.element_size()), "uint8", text, self.timeout)
            self.key = key
        self.dtype, self.sf = storage.dtype, sf
        tensor(self.held).reshape(-1).copy_(of_bytes(storage, "storage", self.gpu, "engram_write"))

    def fetch(self, indices: Any, column_major: bool) -> Callable[[], tuple[Any, Any]]:
        """Starts to fetch entries by their numbers among all ranks' ([tokens, entries of a token], int32): returns a
        function that waits and returns the tokens ([tokens, entries of a token x hidden]) and their scales. The host
        waits for the indices."""
        import torch

        call = "engram_fetch"
        if self.key is None:
            raise StateError(f"{call} before engram_write")
        of_bytes(indices, "indices", self.gpu, call)
        if indices.dim() != 2 or indices.dtype != torch.int32:
            raise ArgumentError(f"{call}: indices are {tuple(indices.shape)} of {indices.dtype}; wanted are two of int32")
        if self.gpu is not None:
            must_not_capture("no entries are fetched: the host reads their numbers")
        entries, hidden, _ = self.key
        wanted = indices.reshape(-1).cpu().numpy().astype(np.int64)
        wrong = (wanted < 0) | (wanted >= self.ranks * entries)
        if wrong.any():
            at = int(wrong.argmax())
            raise ArgumentError(f"{call}: entry {wanted[at]} at {at}; there are {self.ranks * entries}")
        tokens, each = (int(length) for length in indices.shape)
        rows = torch.empty((len(wanted), self.held.shape[1]), dtype=torch.uint8, device=indices.device)
        self._take(rows, *np.divmod(wanted, entries))
        data = rows.view(self.dtype).reshape(tokens, each * hidden)
        scales = None if self.sf is None else self._scales(indices, column_major)
        done = None if self.gpu is None else torch.cuda.current_stream(self.gpu).record_event()

        def wait() -> tuple[Any, Any]:
            if done is not None:
                torch.cuda.current_stream(self.gpu).wait_event(done)
            return data, scales

        return wait

    def _take(self, rows: Any, ranks: Any, numbers: Any) -> None:
        """Copies entries of ranks to rows, in the order of the current stream."""
        import torch

        order = np.argsort(ranks, kind="stable")
        ends = np.searchsorted(ranks[order], np.arange(self.ranks + 1))
        # One copy to the GPU for all ranks.
        places, numbers_there = torch.from_numpy(np.stack([order, numbers[order]])).to(rows.device)
        for rank in range(self.ranks):
            first, end = int(ends[rank]), int(ends[rank + 1])
            if first == end:
                continue
            peer = of_peer(self.runtime, self.held, rank)
            if peer is not None:
                its = tensor(peer).index_select(0, numbers_there[first:end])
            else:
                its = self._over_rails(rank, numbers[order[first:end]], rows.device)
            rows.index_copy_(0, places[first:end], its)

    def _over_rails(self, rank: int, numbers: Any, device: Any) -> Any:
        """Gets runs of entries, with what lies between entries that are near to each other: a request costs more."""
        import torch

        wanted, index = np.unique(numbers, return_inverse=True)
        bytes_each = self.held.shape[1]
        begins = np.flatnonzero(np.diff(wanted, prepend=-np.inf) > 1 + _NEAR // bytes_each)
        ends = np.append(begins[1:], len(wanted))
        firsts, behind = wanted[begins], wanted[ends - 1] + 1
        # The place of each run in memory, in entries.
        places = np.concatenate(([0], np.cumsum(behind - firsts)))
        landed = np.empty((int(places[-1]), bytes_each), np.uint8)
        for first, end, place in zip(firsts.tolist(), behind.tolist(), places.tolist()):
            self.runtime.get_nbi(landed[place : place + end - first], self.held[first:end], rank)
        self.runtime.quiet()
        rows = wanted + np.repeat(places[:-1] - firsts, ends - begins)
        return torch.from_numpy(landed[rows[index]]).to(device)

    def _scales(self, indices: Any, column_major: bool) -> Any:
        import torch

        (tokens, each), packs = indices.shape, self.sf.shape[1]
        strides = (1, up(int(tokens), _ALIGN_SCALES)) if column_major else (each * packs, 1)
        made = torch.empty_strided((tokens, each * packs), strides, dtype=self.sf.dtype, device=self.sf.device)
        return made.copy_(self.sf.index_select(0, indices.reshape(-1)).reshape(tokens, each * packs))
