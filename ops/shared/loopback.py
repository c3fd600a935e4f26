"""Loopback: hosts that are this machine, and free ports for servers of trials and tests.

Rules of this file: no name server is asked. A port is free if it can be bound now; another process may still take it
before the server listens.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Collection
from ipaddress import ip_address

from standfast.store.errors import Unavailable

HOST = "127.0.0.1"
# Below the ports that the system gives to outgoing connections: an outgoing connection could take the port while the
# server is down, and a client that keeps trying to reach the server could even end up connected to itself.
PORTS = range(20_000, 32_000)
TRIES_MAX = 500


def is_free(port: int) -> bool:
    """Whether a server could listen on the port now."""
    with socket.socket() as probe:
        # As servers set it: past connections in TIME_WAIT do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
            probe.listen(1)
        except OSError:
            return False
    return True


def free_port(but: Collection[int] = ()) -> int:
    """A free port outside of `but`. Raises Unavailable if none is found."""
    # At random, because processes that look in order at the same moment would choose the same port.
    for _ in range(TRIES_MAX):
        port = random.choice(PORTS)
        if port not in but and is_free(port):
            return port
    raise Unavailable(f"no free port found on {HOST} between {PORTS.start} and {PORTS.stop}: choose one")


def is_loopback(host: str) -> bool:
    """Whether a host name or address stays on this machine."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
