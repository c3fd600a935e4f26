"""From bytes of a socket to requests of the Redis protocol, with every count and length checked first.

    *3 CRLF $3 CRLF SET CRLF $1 CRLF k CRLF $1 CRLF v CRLF      ─>  [b"SET", b"k", b"v"]

hiredis makes room for as many elements as a header says: 12 bytes reserved 0.8 GB. So a header with many digits is
looked for before hiredis gets the bytes. The same bytes may stand inside a value, where they are fine: hiredis is given
what comes before, and only if it has used all of that up is the next byte the first of a header.

Rules of this file: no socket and no command. However the bytes are cut into chunks, the requests are the same. What
cannot be a request raises BadRequest, after which the connection must end.
"""

from __future__ import annotations

import re
from itertools import chain

import hiredis

COMMAND_DEFAULT_BYTES = 16 << 20
COUNT_DIGITS_MAX = 5  # arguments of a command: at most 99,999
LENGTH_DIGITS_MAX = 8  # bytes of an argument, before it is measured against the bound for a whole command

# A literal first byte each, which is found at the speed of memchr.
_MANY_IN_ARRAY, _MANY_IN_PUSH, _MANY_IN_SET, _MANY_IN_ATTRIBUTE = (
    re.compile(re.escape(kind) + rb"\d{%d}" % (COUNT_DIGITS_MAX + 1)).search for kind in (b"*", b">", b"~", b"|")
)
_LONG = re.compile(rb"\$\d{%d}" % (LENGTH_DIGITS_MAX + 1)).search
_ANY = re.compile(rb"[*>~|]\d{%d}|\$\d{%d}" % (COUNT_DIGITS_MAX + 1, LENGTH_DIGITS_MAX + 1))
_CUT_HEADER = re.compile(rb"[*>~|$]\d{0,%d}\Z" % LENGTH_DIGITS_MAX)  # what the next chunk may make a long header
_ONLY_LISTS = {list}


class BadRequest(Exception):
    """The bytes are no request, or one that is too large; what follows them cannot be read."""


class RequestReader:
    """Requests of one connection. Holds at most one command of `command_bytes`, and the chunk that is being read."""

    __slots__ = ("_command_bytes", "_cut", "_reader", "partial", "unfinished_bytes")

    def __init__(self, command_bytes: int = COMMAND_DEFAULT_BYTES) -> None:
        self._reader = hiredis.Reader()
        self._command_bytes = command_bytes
        self._cut = b""
        self.unfinished_bytes = 0  # at most so many bytes wait for the rest of their command
        self.partial = False  # whether the last bytes look like a part of a command

    def feed(self, data: bytes) -> list[list[bytes]]:
        """The requests that these bytes complete, in order. Raises BadRequest."""
        if self._cut:
            data, self._cut = self._cut + data, b""
        if not data.endswith(b"\n"):
            cut = _CUT_HEADER.search(data, max(len(data) - LENGTH_DIGITS_MAX - 1, 0))
            if cut is not None:
                data, self._cut = data[: cut.start()], data[cut.start() :]
        found: list[list[bytes]] = []
        large = self.unfinished_bytes + len(data) > self._command_bytes  # else no command of it can be
        try:
            if (
                _MANY_IN_ARRAY(data)
                or _LONG(data)
                or _MANY_IN_PUSH(data)
                or _MANY_IN_SET(data)
                or _MANY_IN_ATTRIBUTE(data)
            ):
                self._feed_carefully(data, found)
            else:
                self._drain(data, found)
            b"".join(chain.from_iterable(found))  # anything but bytes in a request raises TypeError
        except (hiredis.ProtocolError, TypeError) as error:
            raise BadRequest(f"Protocol error: a request is an array of bulk strings ({error})") from None
        if found:
            if not set(map(type, found)) <= _ONLY_LISTS:
                raise BadRequest("Protocol error: a request is an array of bulk strings")
            ending = found[-1][-1] + b"\r\n" if found[-1] else b"\r\n"
            whole = data.endswith(ending) or (len(data) < len(ending) and ending.endswith(data))
            self.partial = bool(self._cut) or not whole
            self.unfinished_bytes = len(data) if self.partial else 0
        else:
            self.partial = self.partial or bool(data or self._cut)
            self.unfinished_bytes += len(data)
        large = large and any(sum(map(len, request)) > self._command_bytes for request in found)
        if large or self.unfinished_bytes > self._command_bytes:
            raise BadRequest(f"Protocol error: a command of more than {self._command_bytes} bytes: split it")
        return found

    def _drain(self, data: bytes, found: list[list[bytes]]) -> None:
        reader = self._reader
        reader.feed(data)
        gets = reader.gets
        while (request := gets()) is not False:
            found.append(request)

    def _feed_carefully(self, data: bytes, found: list[list[bytes]]) -> None:
        """Stop before each header that says much, and see whether it is one."""
        start = 0
        for match in _ANY.finditer(data):
            at = match.start()
            self._drain(data[start:at], found)
            start = at
            if not self._reader.has_data():
                what = "bytes in one argument" if data[at] == 0x24 else "arguments"
                raise BadRequest(f"Protocol error: a header says {data[at + 1 : match.end()].decode()}... {what}")
        self._drain(data[start:], found)
