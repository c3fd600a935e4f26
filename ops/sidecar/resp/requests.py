"""From bytes of a socket to requests of the Redis protocol, with every count and length checked first.

    *3 CRLF $3 CRLF SET CRLF $1 CRLF k CRLF $1 CRLF v CRLF      ─>  [b"SET", b"k", b"v"]

    chunk ─┬─ whole commands, no header of many elements ─> hiredis, in slices
           └─ a cut command, many elements, before login ─> `_Flat`: an array of bulk strings, one element at a time

hiredis makes room for as many elements as a header says, and for arrays within arrays: 8 KB of nested headers reserved
133 MB. So hiredis keeps nothing between two chunks: the rest that it cannot end at once is read by `_Flat`, which knows
no nesting and holds the bytes that came. A sentinel after each chunk shows whether hiredis has ended all of it.

Rules of this file: no socket and no command. However the bytes are cut into chunks, the requests are the same. Bytes
that cannot be a request raise BadRequest, after which the connection must end.
"""

from __future__ import annotations

import re
from itertools import chain
from typing import Any

import hiredis

from standfast.ops.sidecar.resp.budget import ARGUMENT_BYTES, Budget

COMMAND_DEFAULT_BYTES = 16 << 20
ARGUMENTS_MAX = 99_999
COUNT_DIGITS_MAX = 5  # arguments of a command
LENGTH_DIGITS_MAX = 8  # bytes of an argument, before they are measured against the bound for a whole command
HALF_FREE_BYTES = 64 << 10  # of a command in part, or of waiting requests, that a full server still holds for a client
SLICE_BYTES = 16 << 10  # headers within one slice make room of some 3 MB at most

# A literal first byte each, which is found at the speed of memchr. The last one would be taken for an array.
_MANY_IN_ARRAY, _MANY_IN_PUSH, _MANY_IN_SET, _ATTRIBUTE = (
    re.compile(pattern).search for pattern in (rb"\*\d{3}", rb">\d{3}", rb"~\d{3}", rb"\|\d+\r\n")
)
_TOO_MANY = re.compile(rb"\*\d{%d}" % (COUNT_DIGITS_MAX + 1)).match
_ARRAY = re.compile(rb"\*(0|[1-9]\d{0,%d})\r\n" % (COUNT_DIGITS_MAX - 1)).match
_BULK = re.compile(rb"\$(0|[1-9]\d{0,%d})\r\n" % (LENGTH_DIGITS_MAX - 1)).match
_CUT_ARRAY = re.compile(rb"(\*((0|[1-9]\d{0,%d})\r?)?)?" % (COUNT_DIGITS_MAX - 1)).fullmatch
_CUT_BULK = re.compile(rb"(\$((0|[1-9]\d{0,%d})\r?)?)?" % (LENGTH_DIGITS_MAX - 1)).fullmatch
_HEADER_BYTES_MAX = LENGTH_DIGITS_MAX + 3
_LONG = re.compile(rb"[*>~|%%]\d{%d}|\$\d{%d}" % (COUNT_DIGITS_MAX + 1, LENGTH_DIGITS_MAX + 1)).match
_SENTINEL = b":1\r\n"
SKIPPED = b"\0skipped"  # no command of a client has this name, and one that had would be refused as well
_ONLY_LISTS = {list}
_NO_ARRAY = "Protocol error: a request is an array of bulk strings"


class BadRequest(Exception):
    """The bytes are no request, or one that is too large; the bytes after them cannot be read."""


class RequestReader:
    """Requests of one connection. Holds the arguments of one command that came so far: `command_bytes` at most."""

    __slots__ = ("_command_bytes", "_flat", "_reader")

    def __init__(self, command_bytes: int = COMMAND_DEFAULT_BYTES) -> None:
        self._reader = hiredis.Reader()
        self._command_bytes = command_bytes
        self._flat = _Flat()

    @property
    def partial(self) -> bool:
        """Whether a part of a command waits for its rest."""
        return self._flat.partial

    @property
    def held(self) -> int:
        """The memory of that part."""
        return self._flat.held

    def skip(self) -> None:
        """Hold no more of that part: once its rest has passed, the request SKIPPED stands in its place."""
        self._flat.skip()

    def feed(self, data: bytes) -> list[list[bytes]]:
        """The requests that these bytes complete, in order. Raises BadRequest."""
        found: list[list[bytes]] = []
        flat = self._flat
        if flat.partial:
            data = flat.joined(data)
            if flat.within:
                request, at = flat.next(data, 0, ARGUMENTS_MAX, self._command_bytes)
                if request is None:
                    return found
                found.append(request)
                data = data[at:]
        # One header of many elements may be the first: it is of a request, not of an array within one.
        many = _MANY_IN_ARRAY(data)
        if many is not None and not many.start() and not _TOO_MANY(data):
            many = _MANY_IN_ARRAY(data, 1)
        if many or _MANY_IN_PUSH(data) or _MANY_IN_SET(data) or _ATTRIBUTE(data):
            self._read_flat(data, 0, found)
        # Whole commands go to hiredis: a parser in Python for all of them would cost 1 us a command.
        else:
            self._read_whole(data, found)
        return found

    def joined(self, data: bytes) -> bytes:
        """These bytes, with those of a cut header before them; to be given to `first`."""
        return self._flat.joined(data)

    def first(self, data: bytes, at: int, arguments: int, command_bytes: int) -> tuple[list[bytes] | None, int]:
        """The first request from `at` on, and where it ends; None: its rest is still to come. Raises BadRequest."""
        return self._flat.next(data, at, arguments, command_bytes)

    def _read_flat(self, data: bytes, at: int, found: list[list[bytes]]) -> None:
        step, size = self._flat.next, len(data)
        while at < size:
            request, at = step(data, at, ARGUMENTS_MAX, self._command_bytes)
            if request is not None:
                found.append(request)

    def _read_whole(self, data: bytes, found: list[list[bytes]]) -> None:
        """Read with hiredis, but for a command that is not whole, and for one that is longer than a slice."""
        got: list[Any] = []
        at = len(data)
        if at > SLICE_BYTES:  # a read that took much has probably cut the last one
            last = data.rfind(b"\r\n*") + 2
            at = last if last > 1 else at
        try:
            ended = self._drain(data[:at], got)
            joined = b"".join(chain.from_iterable(got))  # anything but bytes in a request raises TypeError
        except (hiredis.ProtocolError, TypeError) as error:
            raise BadRequest(f"{_NO_ARRAY} ({error})") from None
        if got and not set(map(type, got)) <= _ONLY_LISTS:
            raise BadRequest(_NO_ARRAY)
        # A command of one chunk is no longer than the chunk.
        if len(data) > self._command_bytes and any(sum(map(len, one)) > self._command_bytes for one in got):
            raise BadRequest(_too_large(self._command_bytes))
        found += got
        if not ended:
            # Within a cut command the sentinel would count as its element, so that reader is thrown away.
            self._reader = hiredis.Reader()
            # hiredis takes no number with leading zeros, so that the length of the bytes that it has read is known.
            lengths = list(map(len, chain.from_iterable(got)))
            digits = len("".join(map(str, lengths))) + len("".join(map(str, map(len, got))))
            at = len(joined) + 5 * len(lengths) + 3 * len(got) + digits
        if at < len(data):
            self._read_flat(data, at, found)

    def _drain(self, data: bytes, got: list[Any]) -> bool:
        """Whether hiredis has read all of it; else it must be given nothing more."""
        reader, add = self._reader, got.append
        gets = reader.gets
        if len(data) <= SLICE_BYTES:
            reader.feed(data)
            while (request := gets()) is not False:
                add(request)
        else:
            for start in range(0, len(data), SLICE_BYTES):
                reader.feed(data[start : start + SLICE_BYTES])
                before = len(got)
                while (request := gets()) is not False:
                    add(request)
                # A command longer than a slice: hiredis would keep it, and grow with each slice that follows.
                if len(got) == before:
                    return False
        reader.feed(_SENTINEL)
        try:
            return type(gets()) is int  # as an element of a cut array it is not the reply
        except hiredis.ProtocolError:
            return False


class _Flat:
    """Reads arrays of bulk strings, and nothing else, one element at a time; holds the part of one that came."""

    __slots__ = ("_args", "_bulk", "_bytes", "_count", "_cut", "_length", "_passing")

    def __init__(self) -> None:
        self._cut = b""  # of a header
        self._args: list[bytes] | None = None  # of the request that is being read
        self._count = 0  # its number of arguments
        self._bytes = 0  # their announced lengths so far
        self._bulk: bytearray | None = None  # of an argument of which not all came
        self._length = 0
        self._passing: int | None = None  # bytes of an argument still to pass, where the request is not held

    @property
    def partial(self) -> bool:
        """Whether bytes are held."""
        return self._args is not None or bool(self._cut)

    @property
    def held(self) -> int:
        """The memory of the bytes that are held."""
        if self._args is None or self._passing is not None:
            return len(self._cut)
        whole = self._bytes + ARGUMENT_BYTES * len(self._args)
        if self._bulk is None:
            return whole
        # The lengths count the argument whose bytes are coming; a bytearray takes an eighth more than it holds.
        return whole - self._length + len(self._bulk) * 9 // 8

    @property
    def within(self) -> bool:
        """Whether the header of a request was read, and not all of the request."""
        return self._args is not None

    def joined(self, data: bytes) -> bytes:
        """With the bytes of a cut header before these."""
        if self._cut:
            data, self._cut = self._cut + data, b""
        return data

    def next(self, data: bytes, at: int, arguments: int, command_bytes: int) -> tuple[list[bytes] | None, int]:
        """The next request of `data`, which is joined, and where it ends; None: all of `data` is held."""
        args, size = self._args, len(data)
        if self._passing is not None:
            return self._pass(data, at, self._passing, command_bytes)
        if args is None:
            head = _ARRAY(data, at)
            if head is None:
                return self._hold(data, at, _CUT_ARRAY)
            at = head.end()
            self._count = int(head[1])
            if self._count > arguments:
                raise BadRequest(f"Protocol error: a header says {self._count} arguments: {arguments} at most")
            if not self._count:
                return [], at
            args, self._bytes = [], 0
            self._args = args
        if self._bulk is not None:
            more = self._length + 2 - len(self._bulk)
            self._bulk += data[at : at + more]
            if size - at < more:
                return None, size
            args.append(bytes(memoryview(self._bulk)[: self._length]))
            self._bulk = None
            at += more
        while len(args) < self._count:
            head = _BULK(data, at)
            if head is None:
                return self._hold(data, at, _CUT_BULK)
            at = head.end()
            length = int(head[1])
            # Checked at the header, before a byte of the argument has to be held.
            self._bytes += length
            if self._bytes > command_bytes:
                raise BadRequest(_too_large(command_bytes))
            end = at + length
            if end + 2 > size:
                self._bulk, self._length = bytearray(data[at:]), length
                return None, size
            args.append(data[at:end])
            at = end + 2
        self._args = None
        return args, at

    def skip(self) -> None:
        """Hold no more of the request that is being read."""
        if self._args is not None and self._passing is None:
            self._passing = 0 if self._bulk is None else self._length + 2 - len(self._bulk)
            self._count -= len(self._args) + (self._bulk is not None)  # arguments whose header is still to come
            self._args, self._bulk = [], None

    def _pass(self, data: bytes, at: int, left: int, command_bytes: int) -> tuple[list[bytes] | None, int]:
        """Read over a request that is not held, within the same bounds; SKIPPED at its end."""
        size = len(data)
        while True:
            end = min(at + left, size)
            left -= end - at
            at = end
            self._passing = left
            if left:
                return None, size
            if not self._count:
                self._args = self._passing = None
                return [SKIPPED], at
            head = _BULK(data, at)
            if head is None:
                return self._hold(data, at, _CUT_BULK)
            at, length = head.end(), int(head[1])
            self._bytes += length
            if self._bytes > command_bytes:
                raise BadRequest(_too_large(command_bytes))
            self._count -= 1
            left = length + 2

    def _hold(self, data: bytes, at: int, may_become: Any) -> tuple[None, int]:
        """Keep the beginning of a header. Raises BadRequest for bytes that cannot become one."""
        rest = data[at : at + _HEADER_BYTES_MAX]
        if may_become(rest) is None:
            long = _LONG(rest)
            if long is not None:
                what = "bytes in one argument" if rest[0] == 0x24 else "arguments"
                raise BadRequest(f"Protocol error: a header says {long[0][1:].decode()}... {what}")
            raise BadRequest(_NO_ARRAY)
        self._cut = rest
        return None, len(data)


def _too_large(command_bytes: int) -> str:
    return f"Protocol error: a command of more than {command_bytes} bytes: split it"


class HeldBytes:
    """The bytes of one client's requests in the budget. `came_bytes`: since no request waited."""

    __slots__ = ("_budget", "_half_bytes", "came_bytes", "half_since")

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self.came_bytes = 0
        self._half_bytes = 0  # of a command that came in part
        self.half_since = 0

    def count_in(self, size: int) -> None:
        """Count bytes that came."""
        self.came_bytes += size
        self._budget.backlog += size

    def none_waits(self) -> None:
        """All requests that came are answered."""
        self._budget.backlog -= self.came_bytes
        self.came_bytes = 0

    def hold_half(self, reader: RequestReader, ticks: int, *, ended: bool) -> None:
        """Count the command of which a part came; if there is no room for it, it is passed over and then refused."""
        held, budget = reader.held, self._budget
        if ended or not self._half_bytes:
            self.half_since = ticks
        if held > HALF_FREE_BYTES and not budget.takes(held - self._half_bytes):
            reader.skip()
            held = reader.held
        budget.halves += held - self._half_bytes
        self._half_bytes = held

    def forget_half(self) -> None:
        """The command in part is not held any more."""
        self._budget.halves -= self._half_bytes
        self._half_bytes = 0
