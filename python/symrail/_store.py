"""Sends a small message from PE 0 to all others through an address that all know, from torchrun's environment.

Rank 0 listens at MASTER_ADDR and MASTER_PORT until all others have connected, and closes the port before it returns.
"""

from __future__ import annotations

import socket
import struct
import time

from .errors import BootstrapError, DifferError, TimeoutError

_MAGIC = b"SYMRAIL1"
_HELLO = struct.Struct("!8sII")


def _receive(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = connection.recv(count - len(data))
        if not part:
            raise ConnectionError("the other end has closed the connection")
        data += part
    return data


def resolve(host: str, port: int) -> tuple[socket.AddressFamily, tuple[str, int]]:
    """The first address of a host, with its family."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise BootstrapError(f"MASTER_ADDR={host} cannot be resolved: {error}") from None
    return family, (str(address[0]), int(address[1]))


def serve(message: bytes, size: int, host: str, port: int, seconds: float) -> None:
    """Sends the message to PEs 1 to `size` - 1, each once. Raises TimeoutError, which names the missing PEs."""
    family, address = resolve(host, port)
    missing, until = set(range(1, size)), time.monotonic() + seconds
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
        except OSError as error:
            raise BootstrapError(
                f"rank 0 cannot listen at MASTER_ADDR={host}, MASTER_PORT={port}: {error}; where torch uses that port, "
                "give init a process group, or a unique id"
            ) from None
        listener.listen(size)
        while missing:
            left = until - time.monotonic()
            if left <= 0:
                details = {"pe": min(missing), "pes": sorted(missing), "operation": "init"}
                named = ", ".join(map(str, sorted(missing)))
                raise TimeoutError(f"PE {named} did not come to {host}:{port} within {seconds:.0f} s", details)
            # Python checks for Ctrl-C between two waits.
            listener.settimeout(min(left, 0.2))
            try:
                connection, _ = listener.accept()
            except socket.timeout:
                continue
            with connection:
                connection.settimeout(2)
                try:
                    magic, pe, their_size = _HELLO.unpack(_receive(connection, _HELLO.size))
                except OSError:
                    continue
                if magic != _MAGIC:
                    continue
                if their_size != size:
                    raise DifferError(f"WORLD_SIZE differs: PE {pe} has {their_size}, PE 0 has {size}", {"pe": pe})
                if pe not in missing:
                    raise BootstrapError(f"two processes are PE {pe} of {size} at {host}:{port} (RANK)")
                connection.sendall(struct.pack("!I", len(message)) + message)
                missing.discard(pe)


def ask(pe: int, size: int, host: str, port: int, seconds: float) -> bytes:
    """Receives the message of PE 0. Raises TimeoutError if PE 0 does not answer in time."""
    family, address = resolve(host, port)
    until, reason = time.monotonic() + seconds, "nothing listens there"
    while time.monotonic() < until:
        try:
            with socket.socket(family, socket.SOCK_STREAM) as connection:
                connection.settimeout(max(0.1, until - time.monotonic()))
                connection.connect(address)
                connection.sendall(_HELLO.pack(_MAGIC, pe, size))
                (length,) = struct.unpack("!I", _receive(connection, 4))
                return _receive(connection, min(length, 4096))
        except OSError as error:
            reason = str(error)
            time.sleep(0.02)
    details = {"pe": 0, "pes": [0], "operation": "init"}
    raise TimeoutError(f"PE {pe}: PE 0 is not at {host}:{port} within {seconds:.0f} s: {reason}", details)


