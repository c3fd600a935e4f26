"""Replies of the Redis protocol, in version 2 and 3.

    version 2    nil $-1, maps as flat arrays          version 3    nil _, maps as %

Rules of this file: bytes from values and nothing else. Lengths are of bytes; text is UTF-8.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from standfast.ops.shared.error_codes import ErrorCode

Value: TypeAlias = "bytes | str | int | Sequence[Value] | Mapping[str, Value] | None"

OK = b"+OK\r\n"
QUEUED = b"+QUEUED\r\n"
PONG = b"+PONG\r\n"
RESET = b"+RESET\r\n"
NIL = {2: b"$-1\r\n", 3: b"_\r\n"}
ZERO, ONE = b":0\r\n", b":1\r\n"


def bulk(value: bytes) -> bytes:
    """One binary-safe string."""
    return b"$%d\r\n%b\r\n" % (len(value), value)


def integer(value: int) -> bytes:
    """A whole number."""
    return b":%d\r\n" % value


def array(items: Iterable[bytes | None], nil: bytes) -> bytes:
    """An array of strings, some of them nil."""
    parts = [nil if item is None else b"$%d\r\n%b\r\n" % (len(item), item) for item in items]
    return b"*%d\r\n%b" % (len(parts), b"".join(parts))


def replies(parts: Sequence[bytes]) -> bytes:
    """An array of replies that are encoded already."""
    return b"*%d\r\n%b" % (len(parts), b"".join(parts))


def error(reason: ErrorCode, message: str) -> bytes:
    """An error: the first word of its error code, and one line."""
    return b"-%b %b\r\n" % (reason.resp.encode(), _line(message))


def plain_error(message: str) -> bytes:
    """An error that begins with its own first word."""
    return b"-%b\r\n" % _line(message)


def encode(value: Value, version: int) -> bytes:
    """Any value, nested ones included."""
    if value is None:
        return NIL[version]
    if isinstance(value, int):
        return integer(value)
    if isinstance(value, str):
        return bulk(value.encode())
    if isinstance(value, bytes):
        return bulk(value)
    if isinstance(value, Mapping):
        head = b"%%%d\r\n" % len(value) if version == 3 else b"*%d\r\n" % (2 * len(value))
        parts = (bulk(name.encode()) + encode(item, version) for name, item in value.items())
        return head + b"".join(parts)
    return replies([encode(item, version) for item in value])


def _line(message: str) -> bytes:
    # A line feed in the text would end the reply and forge the next one.
    return " ".join(message.split()).encode("utf-8", "replace")
