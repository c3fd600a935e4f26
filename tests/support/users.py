"""Connections of another user of this machine, for tests of doors that go by the user.

Rules of this file: only the thread that connects takes the other user, for the moment in which its socket is made: the
kernel gives a socket the user of the thread that opens it. Needs root.
"""

from __future__ import annotations

import ctypes
import os
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from urllib.parse import urlsplit

from support.missing import missing

NOBODY = 65_534


@contextmanager
def as_user(uid: int) -> Iterator[None]:
    """Sockets that this thread opens meanwhile belong to the user."""
    if os.geteuid() != 0:
        missing("only root can connect as another user: run these tests as root, as in a container")
    set_user = ctypes.CDLL(None).setfsuid
    set_user(uid)
    try:
        yield
    finally:
        set_user(os.geteuid())


def ask_as(
    uid: int, address: str, path: str, method: str = "GET", *, mapped: bool = False, **headers: str
) -> tuple[int, str]:
    """Status and text of a request by the user; `mapped`: by a socket of IPv6 to an address of IPv4, as Java does."""
    where = urlsplit(address)
    host = str(where.hostname)
    family = socket.AF_INET6 if ":" in host or mapped else socket.AF_INET
    with as_user(uid):
        made = socket.socket(family, socket.SOCK_STREAM)
    with closing(HTTPConnection(host, where.port, timeout=10)) as connection:
        made.settimeout(10)
        made.connect((f"::ffff:{host}" if mapped else host, where.port))
        connection.sock = made
        connection.request(method, path, headers=headers)
        response = connection.getresponse()
        return response.status, response.read().decode()
