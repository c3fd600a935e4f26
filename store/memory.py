"""The volatile engine: the same semantics as RocksDB, in sorted dictionaries of this process.

Rules of this file: it passes the contract suite that `standfast.store.rocks.engine` passes; rows end with the
process, so `checkpoint` is refused. It must not know store types, logs or positions.

A scan stays consistent by copy on write: it shares the family's rows, and the first write after that copies them
for itself. A write to a family without scans changes it in place.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from sortedcontainers import SortedDict

from standfast.store.closing import Closing
from standfast.store.engine import DEFAULT_FAMILY, EngineStatistics, KeyRange, Row, Rows
from standfast.store.errors import Closed, InvalidRequest, StandfastError, UnknownStore

_Table: TypeAlias = "SortedDict[bytes, bytes]"


class MemoryEngine:
    """One task's rows in memory; implements `standfast.store.engine.Engine`."""

    def __init__(self, name: str = "memory") -> None:
        self._name = name
        self._lock = threading.RLock()  # sorted dictionaries are not safe for a reader beside a writer
        self._tables: dict[str, _Table] = {DEFAULT_FAMILY: SortedDict()}
        self._sizes: dict[str, int] = {DEFAULT_FAMILY: 0}
        self._scans: weakref.WeakSet[MemoryScan] = weakref.WeakSet()
        self._closed = False

    @property
    def durable(self) -> bool:
        """False: rows end with the process."""
        return False

    def families(self) -> frozenset[str]:
        """Names of the families that exist, `default` included."""
        with self._lock:
            self._check_open()
            return frozenset(self._tables)

    def create_family(self, family: str) -> None:
        """Create an empty family; an existing one stays as it is."""
        with self._lock:
            self._check_open()
            if family not in self._tables:
                self._tables[family] = SortedDict()
                self._sizes[family] = 0

    def drop_family(self, family: str) -> None:
        """Remove a family with all its rows; an absent family is no error. A scan open on it goes on."""
        if family == DEFAULT_FAMILY:
            raise InvalidRequest(
                f"family {DEFAULT_FAMILY!r} of {self._name} holds the task's record: it cannot be dropped"
            )
        with self._lock:
            self._check_open()
            self._tables.pop(family, None)
            self._sizes.pop(family, None)

    def get(self, family: str, key: bytes) -> bytes | None:
        """The value, or None. Raises UnknownStore for an absent family."""
        with self._lock:
            value: bytes | None = self._table(family).get(_key(key))
            return value

    def get_many(self, family: str, keys: Sequence[bytes]) -> list[bytes | None]:
        """Values in the order of `keys`."""
        with self._lock:
            table = self._table(family)
            return [table.get(_key(key)) for key in keys]

    def scan(
        self, family: str, start: bytes | None = None, end: bytes | None = None, *, reverse: bool = False
    ) -> MemoryScan:
        """Rows with start <= key < end in key order, None meaning open; empty if start >= end."""
        with self._lock:
            scan = MemoryScan(self._table(family), start, end, reverse=reverse, lock=self._lock)
            self._scans.add(scan)
            return scan

    def write(self, rows: Mapping[str, Rows], ranges: Sequence[KeyRange] = ()) -> None:
        """Apply range deletions, then rows, as one step. Raises before the first change or not at all."""
        with self._lock:
            self._check_writable(rows, ranges)  # all of it first: there is no undo once a row is changed
            for family in {*rows, *(item.family for item in ranges)}:
                self._own(family)
            for item in ranges:
                table = self._tables[item.family]
                if item.start < item.end:
                    for key in list(table.irange(item.start, item.end, inclusive=(True, False))):
                        self._sizes[item.family] -= len(key) + len(table.pop(key))
            for family, changes in rows.items():
                self._sizes[family] += _apply(self._tables[family], changes)

    def prepare(self, rows: Mapping[str, Rows]) -> None:
        """None: a write to memory is one step."""

    def approximate_rows(self, family: str) -> int:
        """Number of rows, exactly."""
        with self._lock:
            return len(self._table(family))

    def restoring(self, on: bool) -> None:
        """Do nothing: memory has no files to compact."""
        self._check_open()

    def ingest(self, family: str, files: Sequence[Path]) -> None:
        """Raise InvalidRequest: memory ingests no files, and `write` is as fast for rows in memory."""
        with self._lock:
            self._table(family)
        raise InvalidRequest(f"{self._name} is in memory and cannot import files: write the rows of {family!r}")

    def flush(self, family: str | None = None) -> None:
        """Do nothing: memory has no files. Raises UnknownStore for an absent family."""
        with self._lock:
            self._table(family or DEFAULT_FAMILY)

    def compact(self, family: str) -> None:
        """Do nothing: memory has no files. Raises UnknownStore for an absent family."""
        with self._lock:
            self._table(family)

    def checkpoint(self, directory: Path) -> None:
        """Raise InvalidRequest: only a durable engine has files to copy."""
        self._check_open()
        raise InvalidRequest(f"{self._name} is in memory and has no checkpoint: use engine='rocksdb' for {directory}")

    def statistics(self, family: str | None = None) -> EngineStatistics:
        """Bytes of keys and values (without Python's overhead) of one family, or of all."""
        with self._lock:
            self._check_open()
            names = list(self._tables) if family is None else [family]
            keys = sum(len(self._table(name)) for name in names)
            return EngineStatistics(
                memtable_bytes=sum(self._sizes[name] for name in names), keys_estimate=keys, families=len(names)
            )

    def stalled_ms(self) -> int:
        """0: writes never wait."""
        return 0

    def families_of(self, file: str) -> frozenset[str]:
        """None: there are no files."""
        return frozenset()

    def close(self) -> None:
        """Forget all rows. Closing twice is fine."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for scan in list(self._scans):
                scan.end(Closed(f"{self._name} was closed during the scan"))
            self._scans.clear()
            self._tables.clear()
            self._sizes.clear()

    def _table(self, family: str) -> _Table:
        self._check_open()
        table = self._tables.get(family)
        if table is None:
            known = ", ".join(sorted(self._tables)[:10])
            raise UnknownStore(f"no family {family!r} in {self._name}: it has {known}")
        return table

    def _own(self, family: str) -> None:
        """Copy a family that an open scan shares, so that the write does not change the scan's rows."""
        table = self._tables[family]
        if any(scan.shares(table) for scan in list(self._scans)):
            self._tables[family] = SortedDict(table)

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(f"{self._name} was closed: open a new one")

    def _check_writable(self, rows: Mapping[str, Rows], ranges: Sequence[KeyRange]) -> None:
        for family in (*rows, *(item.family for item in ranges)):
            self._table(family)
        for item in ranges:
            _key(item.start)
            _key(item.end)
        for family, changes in rows.items():
            for key, value in changes.items():
                if type(key) is not bytes or (value is not None and type(value) is not bytes):
                    raise InvalidRequest(f"writing {family!r} of {self._name}: keys and values must be bytes")


class MemoryScan(Closing):
    """A consistent scan; see `standfast.store.engine.RowScan`."""

    def __init__(
        self, table: _Table, start: bytes | None, end: bytes | None, *, reverse: bool, lock: threading.RLock
    ) -> None:
        self._failure: StandfastError | None = None
        self._lock = lock
        self._table: _Table | None = None
        if start is not None and end is not None and start >= end:
            return
        self._table = table
        self._keys: Iterator[bytes] = table.irange(start, end, inclusive=(True, False), reverse=reverse)

    def __iter__(self) -> Iterator[Row]:
        return self

    def __next__(self) -> Row:
        with self._lock:
            if self._failure is not None:
                raise self._failure
            if self._table is None:
                raise StopIteration
            for key in self._keys:
                return key, self._table[key]
            self._table = None  # the scan is at its end: writers need not copy for it any more
            raise StopIteration

    def close(self) -> None:
        """Release the rows. A later next() raises Closed."""
        self.end(Closed("the scan was closed: begin a new one"))

    def end(self, failure: StandfastError) -> None:
        """Release the rows; every later next() raises `failure`."""
        with self._lock:
            self._failure = self._failure or failure
            self._table = None

    def shares(self, table: _Table) -> bool:
        """Whether this scan still reads `table`."""
        return self._table is table


def _key(key: bytes) -> bytes:
    if type(key) is not bytes:
        raise InvalidRequest(f"a key must be bytes, not {type(key).__name__}")
    return key


def _apply(table: _Table, changes: Rows) -> int:
    """Put and delete; returns the number of bytes by which the rows grew."""
    grown = 0
    for key, value in changes.items():
        before = table.get(key)
        if before is not None:
            grown -= len(key) + len(before)
        if value is not None:
            table[key] = value
            grown += len(key) + len(value)
        elif before is not None:
            del table[key]
    return grown
