"""The user of this machine at the other end of a loopback connection, as SO_PEERCRED gives it for Unix sockets.

    /proc/net/tcp    sl  local_address rem_address   st ... uid ...       the line whose local end is our client's

Rules of this file: asks Linux, by the two ends of the connection. A user that cannot be found is None, never a guess;
so is a user from outside of a container's own list of users. A file of many connections is read to its end, so it is
meant for calls at low rates.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from ipaddress import IPv4Address, ip_address
from pathlib import Path

PROC = Path("/proc/net")
ESTABLISHED = "01"
NO_INODE = "0"
EVERY_USER = ["0", "0", "4294967295"]  # the machine's own list of users, and no container's

End = tuple[str, int]


def uid_of_peer(client: End, server: End, proc: Path = PROC) -> int | None:
    """The user who owns the socket `client` that is connected to `server`; None if unknown."""
    try:
        for file, here, there in _places(client, server):
            found = _uid_in(proc / file, here, there)
            if found is not None:
                return None if found == _nobody() else found
    except (OSError, ValueError):
        return None
    return None


def _places(client: End, server: End) -> Iterator[tuple[str, str, str]]:
    """The files that may have the connection, with its ends as they are written there."""
    if ip_address(client[0]).version == 6:
        yield "tcp6", _written(client), _written(server)
        return
    yield "tcp", _written(client), _written(server)
    # A client with a socket of IPv6, as Java opens them, reaches 127.0.0.1 by a mapped address.
    yield "tcp6", _written((f"::ffff:{client[0]}", client[1])), _written((f"::ffff:{server[0]}", server[1]))


def _uid_in(path: Path, local: str, remote: str) -> int | None:
    with path.open(encoding="ascii") as file:
        next(file, None)
        for line in file:
            fields = line.split()
            if len(fields) < 10 or fields[1] != local or fields[2] != remote:
                continue
            # The kernel gives user 0 for a socket that its process has closed: any client could be root by hanging
            # up.
            owned = fields[3] == ESTABLISHED and fields[9] != NO_INODE
            return int(fields[7]) if owned else None
    return None


def _nobody() -> int | None:
    """The number by which the kernel shows all users that a container does not know; None: it knows every user."""
    if Path("/proc/self/uid_map").read_text(encoding="ascii").split() == EVERY_USER:
        return None
    return int(Path("/proc/sys/kernel/overflowuid").read_text(encoding="ascii"))


def _written(end: End) -> str:
    """`0100007F:1F90`: each word of the address in the machine's own order of bytes, as the kernel prints it."""
    address = ip_address(end[0])
    packed = socket.inet_pton(socket.AF_INET if isinstance(address, IPv4Address) else socket.AF_INET6, str(address))
    words = (packed[at : at + 4] for at in range(0, len(packed), 4))
    text = "".join((word[::-1] if sys.byteorder == "little" else word).hex() for word in words)
    return f"{text.upper()}:{end[1]:04X}"
