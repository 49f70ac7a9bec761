"""Ways to join a job: how a PE gets its number and the job's unique id."""

from __future__ import annotations

import os
import pickle
import socket
import struct
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from . import _store, _symrail
from .errors import ArgumentError, BootstrapError, SettingError, TimeoutError


# The job's unique id, this PE, the number of PEs; the id is None if the environment has all of it.
Place = tuple[bytes | None, int, int]
# This process's rank in a group, their number, and a function that passes an object of each to all.
Exchange = tuple[int, int, Callable[[Any], list[Any]]]


def place(
    uid: bytes | None,
    rank: int | None,
    nranks: int | None,
    process_group: Any,
    comm: Any,
) -> Place:
    """The place by the first way that applies: unique id, torch process group, mpi4py communicator, the environment."""
    if sum(way is not None for way in (uid, process_group, comm)) > 1:
        raise ArgumentError("give one of uid, process_group and comm")
    if uid is not None:
        if rank is None or nranks is None:
            raise ArgumentError("with uid give rank and nranks, too")
        return bytes(uid), rank, nranks
    if rank is not None or nranks is not None:
        raise ArgumentError("rank and nranks go with uid")
    if process_group is not None:
        return by_exchange(*of_torch(process_group))
    if comm is not None:
        return by_exchange(*of_mpi(comm))
    if _symrail.is_of_ranks():
        return _by_torchrun()
    return None, 0, 1


def _number(name: str, least: int, most: int = 2**32 - 1) -> int:
    text = os.environ.get(name, "")
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if not least <= value <= most:
        raise SettingError(f"{name}={text}: not accepted; it holds a whole number from {least} to {most}")
    return value


def timeout_s() -> float:
    """SYMRAIL_TIMEOUT_S."""
    text = os.environ.get("SYMRAIL_TIMEOUT_S", "")
    return float(text) if text.isdigit() else 60.0


def _by_torchrun() -> Place:
    me, size, port = _number("RANK", 0), _number("WORLD_SIZE", 1), _number("MASTER_PORT", 1, 65535)
    host = os.environ["MASTER_ADDR"]
    if host.startswith("[") and host.endswith("]"):  # an IPv6 address as in a URL
        host = host[1:-1]
    if me >= size:
        raise SettingError(f"RANK={me} is not below WORLD_SIZE={size}")
    if size == 1:
        return _symrail.create_uid(), 0, 1
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        uid = _of_agent(me, host, port)
    elif me == 0:
        uid = _symrail.create_uid(_store.resolve(host, port)[1][0])
        _store.serve(uid, size, host, port, timeout_s())
    else:
        uid = _store.ask(me, size, host, port, timeout_s())
    return uid, me, size


def _of_agent(me: int, host: str, port: int) -> bytes:
    """The id through the store that torchrun keeps at this address; torch has the client for it."""
    try:
        from torch.distributed import TCPStore
    except ImportError:
        raise BootstrapError(
            f"torchrun has a store of its own at {host}:{port}, and torch cannot be imported; give init a unique id"
        ) from None
    seconds = timeout_s()
    restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    try:
        store = TCPStore(host, port, is_master=False, timeout=timedelta(seconds=seconds))
        # The store outlives jobs, so each join has keys of its own: all ranks make the same joins.
        joins = store.add(f"symrail.joins.{restart}.{me}", 1)
        key = f"symrail.uid.{restart}.{joins}"
        if me == 0:
            store.set(key, _symrail.create_uid(_store.resolve(host, port)[1][0]).hex())
        return bytes.fromhex(store.get(key).decode())
    except RuntimeError as error:  # torch's errors of stores
        details = {"pe": 0, "pes": [0], "operation": "init"}
        raise TimeoutError(
            f"PE {me}: torchrun's store at {host}:{port} had no id of PE 0 within {seconds:.0f} s: {error}", details
        ) from error


def of_torch(process_group: Any) -> Exchange:
    """How the ranks of a process group of torch, or of all (True), exchange objects."""
    import torch.distributed as dist

    group = None if process_group is True else process_group
    me, size = dist.get_rank(group), dist.get_world_size(group)

    def all_objects(mine: Any) -> list[Any]:
        found: list[Any] = [None] * size
        dist.all_gather_object(found, mine, group=group)
        return found

    return me, size, all_objects


def of_mpi(comm: Any) -> Exchange:
    """How the ranks of an mpi4py communicator exchange objects."""
    return comm.Get_rank(), comm.Get_size(), comm.allgather


def of_team(team: _symrail.Team, timeout: float | None) -> Exchange:
    """How the PEs of a team exchange objects, each time within so many seconds."""

    def all_objects(mine: Any) -> list[Any]:
        data = pickle.dumps(mine)
        lengths = team.gather_numbers([len(data)], timeout=timeout)
        words = -(-max(lengths) // 8)
        padded = struct.unpack(f"={words}Q", data.ljust(8 * words, b"\0"))
        found = team.gather_numbers(list(padded), timeout=timeout)
        everything = struct.pack(f"={len(found)}Q", *found)
        return [pickle.loads(everything[8 * words * pe :][:length]) for pe, length in enumerate(lengths)]

    return team.my_pe(), team.n_pes(), all_objects


def by_exchange(me: int, size: int, all_objects: Callable[[Any], list[Any]]) -> tuple[bytes, int, int]:
    """The place if PEs can already exchange small objects."""
    names = all_objects(socket.gethostname())
    elsewhere = [name for name in names if name != names[0]]
    uid: Any = None
    if me == 0:
        try:
            uid = _symrail.create_uid(_address_towards(elsewhere[0]) if elsewhere else None)
        except Exception as error:  # the others wait for PE 0 in the next line
            uid = str(error)
    uid = all_objects(uid)[0]
    if not isinstance(uid, bytes):
        raise BootstrapError(f"PE 0 cannot create a unique id: {uid}")
    return uid, me, size


def _address_towards(host: str) -> str:
    """The address of this machine's interface for packets to a host."""
    family, address = _store.resolve(host, 9)
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])
