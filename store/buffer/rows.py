"""The rows of one store: caching, change logging and metering, once for all store types.

    store type (codec)  put / get / scan in its own bytes
    StoreRows           limits, counters, write buffer, change log, iterators that close with the store
    Engine              ordered bytes in families

Rules of this file: it knows no store type. A type is a codec over this class, which gives it caching, logging,
metering, limits and bounded iterators.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Generic, NoReturn, TypeVar
from weakref import WeakSet

from standfast.store.buffer.buffer import EACH, HEADED, LATEST, UNLOGGED, Buffer, Writer, merge_pending
from standfast.store.buffer.part import ENTRY_OVERHEAD_BYTES
from standfast.store.clock import measured_ns
from standfast.store.closing import Closing
from standfast.store.engine import Engine, Row, RowScan
from standfast.store.errors import Closed, Corruption, Fenced, InvalidRequest, TooLarge, UnknownStore
from standfast.store.histogram import SECONDS_PER_NS, Histogram
from standfast.store.timestamps import TIMESTAMP_MAX_MS, timestamp_problem

T = TypeVar("T")

KEY_MAX_BYTES = 64 << 10
SAMPLE_MASK = 63  # one read in 64 is measured
GENERATOR_RUNS = "generator already executing"  # the error of closing a generator while another thread is in it
VALUE_MAX_BYTES = 1_000_000
_entering = threading.Lock()  # a set must not grow while it is read
BESIDE_VALUE_BYTES = 48_000  # with a value of that size and framing this stays within Kafka's default message.max.bytes


@dataclass(slots=True)
class StoreCounters:
    """Plain numbers that the store adds to and the metrics collector reads, beside those of its writer."""

    get: int = 0
    scan: int = 0
    logged_records: int = 0
    logged_bytes: int = 0
    late_dropped: int = 0
    segments_expired: int = 0
    corruptions: int = 0
    skipped: int = 0


@dataclass(slots=True)
class RowLimits:
    """Limits of a store: largest key and value, in bytes, and the least timestamp of a change.

    `record_bytes` is the most for key and value together, with the headers of an output: the log's limit by default.
    """

    key_bytes: int = KEY_MAX_BYTES
    value_bytes: int = VALUE_MAX_BYTES
    least_timestamp_ms: int = 0  # the least that the changelog's log takes
    record_bytes: int = field(init=False)
    stores: WeakSet[StoreRows] = field(default_factory=WeakSet, repr=False, compare=False)  # under these limits
    any_bytes: int = field(init=False)  # key and value of so many bytes together are within each limit

    def __post_init__(self) -> None:
        self.record_bytes = max(self.value_bytes, VALUE_MAX_BYTES) + BESIDE_VALUE_BYTES
        self.any_bytes = min(self.key_bytes, self.value_bytes, self.record_bytes)

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)
        if name in ("any_bytes", "least_timestamp_ms"):  # which writers have
            with _entering:
                found = list(getattr(self, "stores", ()))
            for rows in found:
                rows.limit()

    def enter(self, rows: StoreRows) -> None:
        """Take a store under these limits; another thread may change them meanwhile."""
        with _entering:
            self.stores.add(rows)

    def of_output(self) -> dict[str, int]:
        """The most bytes of a part of an output record, and of all of it."""
        return {"part_bytes": self.value_bytes, "record_bytes": self.record_bytes}

    def limit_keys(self, key_bytes: int) -> None:
        """Set the largest key, in bytes."""
        self.key_bytes = key_bytes
        self.__post_init__()


class StoreIterator(Closing, Generic[T]):
    """Results of a range read: an iterator and context manager that closes with the store and then raises Closed.

    Another thread than the reader's may close it, also in the middle of a step: that step, or the next, raises.
    """

    __slots__ = ("__weakref__", "_closed", "_items", "_rows", "seen_ms")

    def __init__(self, rows: StoreRows, items: Iterator[T]) -> None:
        self._rows = rows
        self._items = items
        self._closed = False
        self.seen_ms = -1  # the first time at which the metrics saw it open; see `StoreRows.oldest_iterator_ms`
        rows.iterators.add(self)

    def __iter__(self) -> StoreIterator[T]:
        return self

    def __next__(self) -> T:
        if self._closed or self._rows.closed:
            self._refuse()
        try:
            return next(self._items)
        except StopIteration:
            if self._closed or self._rows.closed:
                self._refuse()  # closed during the step: a range that was cut short looks like one at its end
            self._rows.iterators.discard(self)
            raise

    def close(self) -> None:
        """Release the scan; calling it twice is fine."""
        self._closed = True
        self._rows.iterators.discard(self)
        close = getattr(self._items, "close", None)
        if close is None:
            return
        try:
            close()
        except ValueError as error:
            # Another thread is in a step: its next step releases the scan, and a closing engine ends it.
            if str(error) != GENERATOR_RUNS:
                raise

    def _refuse(self) -> NoReturn:
        self.close()  # the reader's own thread is here, so no step runs now
        self._rows.refuse_fenced()
        raise Closed(f"iterator of store {self._rows.name!r} is closed: open a new one")


@dataclass(slots=True, eq=False, weakref_slot=True)
class StoreRows:
    """The rows below a store type. A write of several steps is one under the buffer's latch."""

    name: str
    engine: Engine
    buffer: Buffer
    now_ms: Callable[[], int]
    caching: bool = True
    logging: bool = True
    read_only: bool = False
    limits: RowLimits = field(default_factory=RowLimits)
    counters: StoreCounters = field(default_factory=StoreCounters)
    iterators: WeakSet[StoreIterator[Any]] = field(default_factory=WeakSet)  # weak: a dropped iterator frees its scan
    observed_ms: int = -1
    sequence: int = 0
    on_damage: Callable[[Corruption], None] = lambda damage: None  # called beside the error that is raised
    get_seconds: Histogram | None = None  # seconds of gets that reach the engine, one in 64
    scan_seconds: Histogram | None = None  # seconds until a scan has found its first row
    closed: bool = False
    fenced: str = ""  # the new owner of the task, if a take-over closed the store
    writer: Writer = field(init=False)  # puts into the buffer

    def __post_init__(self) -> None:
        self.writer = self.buffer.writer(self.name, self.check)
        self.writer.mode = UNLOGGED if not self.logging else LATEST if self.caching else EACH
        self.limits.enter(self)
        self.limit()

    def limit(self) -> None:
        """Let the writer ask `check` for writes that need not be within limits, for all of a closed store."""
        self.writer.most_bytes = -1 if self.closed or self.read_only else self.limits.any_bytes
        self.writer.least_ms = self.limits.least_timestamp_ms

    def head(self) -> None:
        """All rows are timestamp and value; the buffered row is the change, too, if the store is cached and logged."""
        self.writer.stamped = True
        if self.logging and self.caching:
            self.writer.mode = HEADED

    def get(self, family: str, key: bytes) -> bytes | None:
        """The row as this task sees it: the buffered one, else the stored one."""
        if self.closed:
            self._refuse_closed()
        self.counters.get += 1
        buffer = self.buffer
        rows = buffer.rows.get(family)
        if rows is not None and key in rows:
            return rows[key]
        if buffer.taken is not None:  # newest first: a commit may settle meanwhile, and then the next place has the row
            rows = buffer.taken_rows(family)
            if rows is not None and key in rows:
                return rows[key]
        recent = buffer.recent.get(family)
        if recent is not None and key in recent:
            return recent[key]
        return self._get_stored(family, key)

    def get_if_present(self, family: str, key: bytes) -> bytes | None:
        """As `get`, for a family that may not exist before the next commit."""
        if self.closed:
            self._refuse_closed()
        buffer = self.buffer
        rows = buffer.rows.get(family)
        if rows is None or key not in rows:
            rows = buffer.taken_rows(family)
        if rows is None or key not in rows:
            rows = buffer.recent.get(family)
            if rows is None or key not in rows:
                if family in self.engine.families():
                    self.counters.get += 1
                    try:
                        return self._get_stored(family, key)
                    except UnknownStore:  # a commit of another thread has dropped the segment since
                        return None
                buffer.read_families.add(family)
                return None
        self.counters.get += 1
        return rows[key]

    def _get_stored(self, family: str, key: bytes) -> bytes | None:
        self.buffer.read_families.add(family)
        try:
            if self.counters.get & SAMPLE_MASK or self.get_seconds is None:
                return self.engine.get(family, key)
            started_ns = measured_ns()
            row = self.engine.get(family, key)
            self.get_seconds.observe((measured_ns() - started_ns) * SECONDS_PER_NS)
            return row
        except Corruption as damage:
            self._report(damage)
            raise

    def check(self, key: bytes, value: bytes | None, timestamp: int) -> None:
        """Raise for a write that the store does not take, before it changes anything."""
        if self.closed:
            self._refuse_closed()
        if self.read_only:
            raise InvalidRequest(f"store {self.name!r} is open for reading only: only the active task writes")
        if self.logging and not self.limits.least_timestamp_ms <= timestamp <= TIMESTAMP_MAX_MS:
            raise InvalidRequest(f"store {self.name!r}: {timestamp_problem(timestamp, self.limits.least_timestamp_ms)}")
        size = len(value) if value is not None else 0
        if len(key) > self.limits.key_bytes:
            raise TooLarge(
                f"store {self.name!r}: key of {len(key)} bytes is over the limit of {self.limits.key_bytes} bytes"
            )
        if size > self.limits.value_bytes:
            raise TooLarge(
                f"store {self.name!r}: value of {size} bytes is over the limit of {self.limits.value_bytes} bytes: "
                "split it, or raise value_max_bytes together with the log's own message limit"
            )
        if size + len(key) > self.limits.record_bytes:
            raise TooLarge(
                f"store {self.name!r}: a record of {size + len(key)} bytes is over the limit of "
                f"{self.limits.record_bytes} bytes for key and value together: split it, or raise value_max_bytes "
                "together with the log's own message limit"
            )
        buffer = self.buffer
        if buffer.size_bytes + 2 * (size + len(key)) + ENTRY_OVERHEAD_BYTES > buffer.stop_bytes:
            buffer.check_room(self.cost(key, value), deletes=value is None)

    @staticmethod
    def cost(key: bytes, value: bytes | None) -> int:
        """The most bytes that the buffer counts for one write: the row and its change."""
        return 2 * (len(key) + (len(value) if value is not None else 0)) + ENTRY_OVERHEAD_BYTES

    def scan(
        self, family: str, start: bytes | None = None, end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[Row]:
        """Rows of one family as this task sees them, start <= key < end."""
        if self.closed:
            self._refuse_closed()
        pending = self.buffer.pending(family, start, end, reverse=reverse)
        # A commit makes the families of new segments, so rows of one may be in the buffer only.
        if family not in self.engine.families():
            return merge_pending(iter(()), pending, reverse=reverse)
        started_ns = 0 if self.counters.scan & SAMPLE_MASK or self.scan_seconds is None else measured_ns()
        try:
            placed = self.engine.scan(family, start, end, reverse=reverse)
        except UnknownStore:  # a commit of another thread has dropped the segment since
            return merge_pending(iter(()), pending, reverse=reverse)
        except Corruption as damage:
            self._report(damage)
            raise
        if started_ns and self.scan_seconds is not None:
            self.scan_seconds.observe((measured_ns() - started_ns) * SECONDS_PER_NS)
        stored = self._stored(placed)
        return merge_pending(stored, pending, reverse=reverse) if pending else stored

    def scan_all(
        self, families: list[str], start: bytes | None = None, end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[Row]:
        """Rows of several families as one sequence in key order."""
        scans = [self.scan(family, start, end, reverse=reverse) for family in families]
        if len(scans) == 1:
            return scans[0]
        return heapq.merge(*scans, key=itemgetter(0), reverse=reverse)

    def iterate(self, items: Iterator[T]) -> StoreIterator[T]:
        """Give a range result to the user as an iterator that closes with the store."""
        if self.closed:
            self._refuse_closed()
        self.counters.scan += 1
        made = StoreIterator(self, items)
        if self.closed:  # by another thread, which may have looked for open iterators before this one was there
            made.close()
            self._refuse_closed()
        return made

    def _stored(self, scan: RowScan) -> Generator[Row]:
        with scan:
            try:
                yield from scan
            except Corruption as damage:
                self._report(damage)
                raise

    def committed(self, family: str, low: bytes | None = None, high: bytes | None = None) -> Generator[Row]:
        """Committed rows of a family with low <= key < high, without buffered ones; reports damage as any read does."""
        try:
            scan = self.engine.scan(family, low, high)
        except Corruption as damage:
            self._report(damage)
            raise
        return self._stored(scan)

    def has_rows(self, families: Sequence[str]) -> bool:
        """Whether any of these families holds a committed row."""
        for family in families:
            with closing(self.committed(family)) as rows:
                if next(rows, None) is not None:
                    return True
        return False

    def _report(self, damage: Corruption) -> None:
        self.counters.corruptions += 1
        damage.families = damage.families or frozenset((self.name,))
        self.on_damage(damage)

    def oldest_iterator_ms(self, now_ms: int) -> int:
        """First time at which this call saw the oldest open range read; -1 if none is open. Hot paths read no clock."""
        try:
            opened = list(self.iterators)
        except RuntimeError:  # another thread opened one just now: the next call sees it
            return -1
        for one in opened:
            if one.seen_ms < 0:
                one.seen_ms = now_ms
        return min((one.seen_ms for one in opened), default=-1)

    def observe(self, timestamp_ms: int) -> None:
        """Move the store's observed stream time forward; it never goes back."""
        if timestamp_ms > self.observed_ms:
            self.observed_ms = timestamp_ms

    def close(self) -> None:
        """Close the open iterators; later reads and writes raise Closed."""
        self.end()
        while True:
            try:
                opened = list(self.iterators)
                break
            except RuntimeError:  # another thread opened or ended one just now; `closed` lets it open no more
                continue
        with ExitStack() as each:  # all of them, even if closing one raises: one open scan keeps the directory's LOCK
            for iterator in opened:
                each.callback(iterator.close)

    def fence(self, why: str) -> None:
        """As `close`, because another instance has the task: later reads and writes raise Fenced.

        Iterators stay as they are, since their threads may be in the middle of a step; the next step raises.
        """
        # Before `closed`, which other threads test: they must find the reason with it.
        self.fenced = why
        self.end()

    def end(self) -> None:
        """Let later reads and writes raise Closed."""
        self.closed = True
        self.limit()

    def refuse_fenced(self) -> None:
        """Raise Fenced if another instance has the task."""
        if self.fenced:
            raise Fenced(f"store {self.name!r}: its task was taken over by a newer owner: {self.fenced}")

    def _refuse_closed(self) -> None:
        self.refuse_fenced()
        raise Closed(
            f"store {self.name!r} is closed: its task was revoked, promoted elsewhere or failed, or it belongs to the "
            "parent process"
        )
