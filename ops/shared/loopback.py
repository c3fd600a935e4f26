"""Loopback: which hosts are this machine, and free ports for servers that are started for trying and testing.

Rules of this file: asks no name server. A port is free if it can be bound now; whoever listens on it next may still
come too late.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Collection
from ipaddress import ip_address

from standfast.store.errors import Unavailable

HOST = "127.0.0.1"
# Below the ports that the system gives to outgoing connections: one of those could take the port while its server is
# down, and a client that keeps trying to reach the server could even end up connected to itself.
PORTS = range(20_000, 32_000)
TRIES_MAX = 500


def is_free(port: int) -> bool:
    """Whether a server could listen on the port now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: past connections do not count
        try:
            probe.bind((HOST, port))
            probe.listen(1)
        except OSError:
            return False
    return True


def free_port(but: Collection[int] = ()) -> int:
    """A free port, none of `but`. Raises Unavailable if none is found."""
    for _ in range(TRIES_MAX):
        port = random.choice(PORTS)
        if port not in but and is_free(port):
            return port
    raise Unavailable(f"found no free port on {HOST} between {PORTS.start} and {PORTS.stop}: name one")


def is_loopback(host: str) -> bool:
    """Whether a host name or address stays on this machine."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
