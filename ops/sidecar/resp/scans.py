"""Range replies that are whole or an error, long ones read in a thread; and the cursors of SCAN.

Rules of this file: a scan begins in the engine's thread (uncommitted rows are copied there) and may be read on in
another one, over one consistent view of the committed rows. Bounded: without LIMIT by ROWS_MAX, always by BYTES_MAX; a
range that is larger is an error that says how to page, never a short answer.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice

from standfast.ops.shared.error_codes import BAD_REQUEST, TOO_LARGE, Refused
from standfast.ops.sidecar.engine.task import MustWait
from standfast.ops.sidecar.resp.arguments import whole
from standfast.ops.sidecar.resp.connection import Answer, Connection, Offload

ROWS_MAX = 100_000
BYTES_MAX = 16 << 20
AT_ONCE_ROWS = 64
AT_ONCE_BYTES = 64 << 10
CURSORS_MAX = 1_000
PAGES = "use LIMIT n, then AFTER the last key, or a smaller range"

Row = tuple[bytes, ...]


def collect(
    c: Connection, rows: Iterator[Row], given: Mapping[bytes, list[bytes]], width: int, instead: str = PAGES
) -> Answer:
    """The reply of a range: the encoded parts of its rows as one array; `width` parts a row.

    `instead` is the advice for a range that is too large.
    """
    limit = whole(given[b"LIMIT"][0], "LIMIT", least=1, most=ROWS_MAX) if b"LIMIT" in given else None
    parts: list[bytes] = []
    # One row more than allowed shows that the range is larger.
    wanted = islice(rows, ROWS_MAX + 1 if limit is None else limit)
    # A MULTI is applied in one step, in the engine's thread, so no part of it may wait.
    if c.in_exec:
        _take(parts, wanted, instead)
        return _reply(parts, width, limit, instead)
    if not _begin(parts, wanted, instead):
        return _reply(parts, width, limit, instead)
    scans: Scans | None = c.context.scans
    if scans is not None:
        scans.begin()
    failed: list[BaseException] = []

    def work() -> None:
        try:
            _take(parts, wanted, instead)
        except BaseException as error:  # noqa: BLE001  raised again in the engine's thread
            failed.append(error)

    def then() -> bytes:
        # Before the error is raised, or a failed range would keep its place.
        if scans is not None:
            scans.end()
        if failed:
            raise failed[0]
        return _reply(parts, width, limit, instead)

    return Offload(work, then)


def bounded(values: Iterable[bytes | None]) -> Iterator[bytes | None]:
    """The same values, as long as they fit in one reply. Raises Refused TOO_LARGE."""
    left = BYTES_MAX
    for value in values:
        left -= 0 if value is None else len(value)
        if left < 0:
            raise Refused(TOO_LARGE, f"more than {BYTES_MAX} bytes in one reply: ask for fewer keys at once")
        yield value


class Scans:
    """Bound of long ranges that are read now: their rows are held whole, so `most` at once; a later one waits for its
    turn. A waiting range holds nothing but its request, which runs again from its start."""

    def __init__(self, most: int) -> None:
        # Without a bound 150 clients that asked for a long range and did not read it took 2.7 GB.
        self._most = most
        self._running = 0
        self.waiting: list[Callable[[], None]] = []

    def begin(self) -> None:
        """Count one more. Raises MustWait."""
        if self._running >= self._most:
            raise MustWait(self)
        self._running += 1

    def end(self) -> None:
        """Count one less, and wake waiting ranges."""
        self._running -= 1
        while self.waiting and self._running < self._most:
            self.waiting.pop(0)()


def _begin(parts: list[bytes], rows: Iterable[Row], instead: str) -> bool:
    """Add a few rows to the reply; returns whether there may be more."""
    size = 0
    for count, row in enumerate(rows, 1):
        parts.extend(row)
        size += sum(map(len, row))
        if size > BYTES_MAX:
            raise Refused(TOO_LARGE, f"more than {BYTES_MAX} bytes in this range: {instead}")
        if count >= AT_ONCE_ROWS or size > AT_ONCE_BYTES:
            return True
    return False


def _take(parts: list[bytes], rows: Iterable[Row], instead: str) -> None:
    """Add rows to the reply."""
    size = sum(map(len, parts))
    for row in rows:
        parts.extend(row)
        size += sum(map(len, row))
        if size > BYTES_MAX:
            raise Refused(TOO_LARGE, f"more than {BYTES_MAX} bytes in this range: {instead}")


def _reply(parts: list[bytes], width: int, limit: int | None, instead: str) -> bytes:
    if limit is None and len(parts) > ROWS_MAX * width:
        raise Refused(TOO_LARGE, f"more than {ROWS_MAX} rows in this range: {instead}")
    return b"*%d\r\n%b" % (len(parts), b"".join(parts))


class Cursors:
    """Places of SCANs that are under way: number -> the last key returned. The oldest are forgotten."""

    def __init__(self, most: int = CURSORS_MAX) -> None:
        self._most = most
        self._places: OrderedDict[int, tuple[str, int, bytes]] = OrderedDict()
        self._last = secrets.randbits(52)  # a cursor of an earlier process is not taken for one of this

    def keep(self, store: str, partition: int, key: bytes) -> int:
        """A number for this place."""
        self._last += 1
        self._places[self._last] = (store, partition, key)
        if len(self._places) > self._most:
            self._places.popitem(last=False)
        return self._last

    def find(self, cursor: int, store: str, partition: int) -> bytes:
        """The last key returned. Raises Refused for a place that is forgotten, or of another store."""
        place = self._places.get(cursor)
        if place is None or place[:2] != (store, partition):
            raise Refused(BAD_REQUEST, f"cursor {cursor} is not known (any more): begin again with SCAN 0")
        return place[2]
