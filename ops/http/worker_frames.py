"""Frames between a supervisor's HTTP server and one of its worker processes: a kind, a number, and a body of JSON.

    supervisor ── ASK number {path, query, rows, bytes} ──> worker      a page of rows; ASKED_MAX at a time
    supervisor <── ANSWER number {status, document} ── worker           or why there is none
    supervisor <── STATUS ── worker                                     its status document, about once a second
    supervisor <── BEAT ── worker                                       a thread of it has the interpreter now and then

    frame: kind (1 byte), number (4 bytes), length of the body (4 bytes), body

Rules of this file: one socket, from one process to another; no content is looked at, and none goes into a log.
"""

from __future__ import annotations

import socket
import struct
from typing import NamedTuple

from standfast.store.errors import InternalError

ASK, ANSWER, STATUS, BEAT = b"?", b"=", b"s", b"."
HEAD = struct.Struct("!cII")
BODY_BYTES_MAX = 256 << 20  # a status of thousands of tasks has a few mebibytes
ASKED_MAX = 8  # requests of one worker at a time: they wait in its socket while its interpreter is held
READ_BYTES = 1 << 20
BEAT_MS = 250
SILENT_MS = 1_000  # a worker that was not heard for so long does not answer


class Frame(NamedTuple):
    """One message."""

    kind: bytes
    number: int
    body: bytes


def send_frame(line: socket.socket, kind: bytes, number: int = 0, body: bytes = b"") -> None:
    """Send a whole frame; one thread of a process at a time. Raises OSError."""
    line.sendall(HEAD.pack(kind, number, len(body)) + body)


def read_frame(line: socket.socket) -> Frame | None:
    """The next frame; None at the end. Raises OSError, InternalError for bytes that are none."""
    head = _read(line, HEAD.size)
    if head is None:
        return None
    kind, number, size = HEAD.unpack(head)
    if size > BODY_BYTES_MAX:
        raise InternalError(f"a frame of {size} bytes between a supervisor and its worker")
    body = _read(line, size)
    return None if body is None else Frame(kind, number, body)


def _read(line: socket.socket, size: int) -> bytes | None:
    parts, left = [], size
    while left:
        part = line.recv(min(left, READ_BYTES))
        if not part:
            return None
        parts.append(part)
        left -= len(part)
    return b"".join(parts)
