"""A client of the Redis protocol (RESP 2) over a Unix socket: one request, one reply, errors of the library.

    wire = Wire(path); wire.call(b"SF.GET", b"aircraft", b"N123") -> bytes | int | list | None

Rules of this file: no dependency, one thread at a time. The first word of an error names its class of store/errors.py;
a broken connection raises Unavailable, and the next call makes a new one, which is bound to the task again.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

from standfast.store.errors import (
    Backpressure,
    CommitUnknown,
    Corruption,
    DiskFull,
    Fenced,
    InvalidRequest,
    NotReady,
    StandfastError,
    Unavailable,
    UnknownStore,
)

Argument: TypeAlias = bytes | str | int
TIMEOUT_S = 60.0
_ERRORS: dict[str, type[StandfastError]] = {
    "LOADING": NotReady,
    "READONLY": NotReady,
    "BEHIND": NotReady,
    "NOTASSIGNED": InvalidRequest,  # not Redis' MOVED, by which cluster clients would redirect
    "FENCED": Fenced,
    "BUSY": Backpressure,
    "MISCONF": DiskFull,
    "UNKNOWN": CommitUnknown,
    "UNAVAILABLE": Unavailable,
    "CORRUPT": Corruption,
}


class Broken(Unavailable):
    """The connection ended with requests under way: the server may or may not have carried them out."""


class Wire:
    """One connection. `hello` are the commands that bind each new connection to its task."""

    def __init__(self, path: Path, hello: Sequence[Sequence[Argument]] = ()) -> None:
        self._path = path
        self._hello = [list(one) for one in hello]
        self._socket: socket.socket | None = None
        self._reader: Any = None

    def call(self, *arguments: Argument) -> Any:
        """The reply. Raises the server's refusal, Unavailable if it cannot be reached, or Broken."""
        return self.calls([arguments])[0]

    def calls(self, commands: Sequence[Sequence[Argument]]) -> list[Any]:
        """Replies of several commands, sent at once. Raises the first error, after all replies were read."""
        # A failure to connect has sent nothing, so it is certain that nothing was carried out.
        kind: type[Unavailable] = Unavailable
        try:
            if self._socket is None:
                self._connect()
            kind = Broken
            return self._exchange(commands)
        except (OSError, EOFError) as error:
            self.close()
            raise kind(
                f"{self._path}: the sidecar does not answer ({type(error).__name__}: {error}): uncommitted changes "
                "are lost, read the source offsets again"
            ) from error
        except StandfastError:  # the server's refusal, after all replies were read
            raise
        except BaseException:  # of a signal handler: the next call would read this one's replies as its own
            self.close()
            raise

    def close(self) -> None:
        """Close the connection. Twice is fine."""
        connection, self._socket, self._reader = self._socket, None, None
        if connection is not None:
            connection.close()

    def _connect(self) -> None:
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        made.settimeout(TIMEOUT_S)
        try:
            made.connect(str(self._path))
        except OSError:
            made.close()
            raise
        self._socket, self._reader = made, made.makefile("rb")  # buffered: a reply is many short reads
        if self._hello:
            self._exchange(self._hello)

    def _exchange(self, commands: Sequence[Sequence[Argument]]) -> list[Any]:
        assert self._socket is not None
        self._socket.sendall(b"".join(map(_request, commands)))
        # All of them before the first error is raised, or the next call would read the rest as its own.
        replies = [self._reply() for _ in commands]
        for reply in replies:
            if isinstance(reply, StandfastError):
                raise reply
        return replies

    def _reply(self) -> Any:
        line = self._reader.readline()
        # A line without its end is cut off, and its number would be another one.
        if not line.endswith(b"\r\n"):
            raise EOFError("the connection ended")
        kind, rest = line[:1], line[1:-2]
        if kind == b"$":
            return self._bulk(int(rest))
        if kind == b":":
            return int(rest)
        if kind == b"+":
            return rest
        if kind == b"*":
            return None if int(rest) < 0 else [self._reply() for _ in range(int(rest))]
        if kind == b"-":
            return error_of(rest.decode(errors="replace"))
        raise EOFError(f"a reply that begins with {kind!r}")

    def _bulk(self, length: int) -> bytes | None:
        if length < 0:
            return None
        raw: bytes = self._reader.read(length + 2)
        if len(raw) < length + 2:
            raise EOFError("the connection ended")
        return raw[:-2]


def error_of(text: str) -> StandfastError:
    """The library's error for an error reply."""
    word, _, message = text.partition(" ")
    # All wrong requests begin with ERR, as in Redis, so only the text shows an unknown store.
    if word == "ERR" and ("no store" in message or "no such store" in message):
        return UnknownStore(message)
    return _ERRORS.get(word, InvalidRequest)(message if word in _ERRORS or word == "ERR" else text)


def _request(arguments: Sequence[Argument]) -> bytes:
    parts = [b"*%d\r\n" % len(arguments)]
    for one in arguments:
        raw = one if isinstance(one, bytes) else str(one).encode()
        parts.append(b"$%d\r\n%b\r\n" % (len(raw), raw))
    return b"".join(parts)
