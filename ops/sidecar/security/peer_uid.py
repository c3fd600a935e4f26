"""The user of this machine at the other end of a loopback connection, as SO_PEERCRED gives it for Unix sockets.

    /proc/net/tcp    sl  local_address rem_address   st ... uid ...       the line whose local end is our client's

Rules of this file: asks Linux, by the two ends of the connection. A user that cannot be found is None, never a guess. A
file of many connections is read to its end, so it is meant for calls at low rates.
"""

from __future__ import annotations

import socket
import sys
from ipaddress import IPv4Address, ip_address
from pathlib import Path

PROC = Path("/proc/net")
ESTABLISHED = "01"
NO_INODE = "0"

End = tuple[str, int]


def uid_of_peer(client: End, server: End, proc: Path = PROC) -> int | None:
    """The user who owns the socket `client` that is connected to `server`; None if unknown."""
    try:
        local, remote = _written(client), _written(server)
        version = ip_address(client[0]).version
        with (proc / ("tcp" if version == 4 else "tcp6")).open(encoding="ascii") as file:
            next(file, None)
            for line in file:
                fields = line.split()
                if len(fields) < 10 or fields[1] != local or fields[2] != remote:
                    continue
                # The kernel gives user 0 for a socket that its process has closed: any client could be root by hanging
                # up.
                owned = fields[3] == ESTABLISHED and fields[9] != NO_INODE
                return int(fields[7]) if owned else None
    except (OSError, ValueError):
        return None
    return None


def _written(end: End) -> str:
    """`0100007F:1F90`: each word of the address in the machine's own order of bytes, as the kernel prints it."""
    address = ip_address(end[0])
    packed = socket.inet_pton(socket.AF_INET if isinstance(address, IPv4Address) else socket.AF_INET6, str(address))
    words = (packed[at : at + 4] for at in range(0, len(packed), 4))
    text = "".join((word[::-1] if sys.byteorder == "little" else word).hex() for word in words)
    return f"{text.upper()}:{end[1]:04X}"
