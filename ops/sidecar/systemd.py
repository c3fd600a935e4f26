"""Notifications to systemd about the process: READY=1, STATUS=, WATCHDOG=1, STOPPING=1, over NOTIFY_SOCKET.

    NOTIFY_SOCKET    /run/... or @abstract; absent: no service manager listens, and nothing is sent
    WATCHDOG_USEC    how often WATCHDOG=1 must come; WATCHDOG_PID: of which process

Rules of this file: the protocol is one datagram of lines; no dependency. A socket that cannot be reached is no fault of
ours: the service manager sees the silence.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping


class Notifier:
    """The connection to the service manager, if there is one."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        given = os.environ if environment is None else environment
        path = given.get("NOTIFY_SOCKET", "")
        # `@` stands for the NUL byte of an abstract socket.
        self._address = "\0" + path[1:] if path.startswith("@") else path
        usec, pid = given.get("WATCHDOG_USEC", ""), given.get("WATCHDOG_PID", str(os.getpid()))
        # A child inherits the variables; the watchdog is only for the process that WATCHDOG_PID names.
        mine = usec.isdigit() and pid == str(os.getpid())
        self.watchdog_ms = int(usec) // 1_000 if mine else None

    def tell(self, **fields: str | int) -> bool:
        """Send fields such as READY=1; returns whether the service manager took them."""
        if not self._address:
            return False
        # One line a field: a line feed in a value would begin another field.
        lines = "\n".join(
            f"{name}={str(value).splitlines()[0] if str(value) else ''}" for name, value in fields.items()
        )
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.sendto(lines.encode(), self._address)
        except OSError:
            return False
        return True
