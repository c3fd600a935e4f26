"""Folds of changelog records to the rows of a store's files: the last row of each key, in the families of the store.

    StoreFold     the store itself turns records into rows (`TypedStore.restore`), over an empty engine: the reference
    NativeFold    the compiled fold, by the rule below, for records by column, best still in a compiled reader's memory

    rule          a row is the record's value, behind its timestamp where the store keeps one; with times at the end of
                  its key it lives in the family of its segment, as long as that segment lives

So a run has the very bytes that batches write. A test folds the same records both ways and compares the files.

Rules of this file: it knows no log, thread or file. Records come in offset order, without gaps but those of the log.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias

from standfast.replication.columns import LazyColumns, RecordColumns, Span
from standfast.replication.log import Record
from standfast.store.buffer.rows import StoreRows
from standfast.store.buffer.write_buffer import WriteBuffer
from standfast.store.errors import Corruption, InternalError
from standfast.store.memory import MemoryEngine
from standfast.store.native_module import compiled
from standfast.store.rocks.errors import translate
from standfast.store.rocks.sst import (
    BLOCK_BYTES,
    TOUCH_ROWS,
    Batch,
    SortedFile,
    Written,
    placed,
    sorted_batches,
    write_batches,
)
from standfast.store.specs import StoreSpec
from standfast.store.types.kinds import open_store
from standfast.store.types.segments import family_name, segment_interval_ms, segment_start_ms
from standfast.store.types.typed import FamilyRows

# Memory of Python beside the bytes of a key and a row: two objects' heads (33 bytes each, rounded up), a place in a
# dictionary that is doubled when it is two thirds full, and one in the sorted list.
ROW_OVERHEAD_BYTES = 200

FILE_ROWS = 50_000  # fewer rows are not worth a thread
MERGED_FILE_BYTES = 64 << 20  # of rows: files as large as those of RocksDB's own compactions
MERGED_FILES_MAX = 4_000
NO_SEGMENT = -(1 << 63)  # all segments are at or above it

Look: TypeAlias = Callable[[], None]  # called every few thousand rows; may raise to end a file


class Family(NamedTuple):
    """Rows of one family: their number, deletes, and the rows in key order, to be read once.

    `dropped` deletes are in none of these. If rows have left memory (`RowFold.spill`), both numbers are upper bounds,
    and no delete is counted as dropped yet.
    """

    name: str
    entries: int
    deletes: int
    dropped: int
    batches: Iterator[Batch]


class RowFold(Protocol):
    """A fold under way.

    records, expired, skipped    records so far; those that were or are dead; those without a key
    observed_ms, sequence        stream time and largest sequence number, of all records since the start
    used_bytes                   bytes of memory at most
    dropped                      deletes that the files written so far do not have, because `families` was to drop them
    live_keys                    of each file written since `families` that is not by RocksDB's own writer, by its name:
                                 a key whose row is no delete; None: it has deletes only
    spills, spilled_bytes        how often rows left memory, and how many bytes they take on the disk
    """

    records: int
    expired: int
    skipped: int
    dropped: int
    live_keys: dict[str, bytes | None]

    @property
    def spills(self) -> int: ...

    @property
    def spilled_bytes(self) -> int: ...

    @property
    def observed_ms(self) -> int: ...

    @property
    def sequence(self) -> int: ...

    @property
    def used_bytes(self) -> int: ...

    def add(self, records: Sequence[Record], payload_bytes: int) -> None:
        """Fold the next records. Raises Corruption for a key that no store can have written."""
        ...

    def counted_bytes(self) -> int:
        """Bytes of memory, counted now: replaced rows are left out, if that can be found out."""
        ...

    def spill(self, path: Path, look: Look) -> bool:
        """Move all rows to a file without a name, in the folder of `path`; False if this fold cannot.

        The next files hold them again, below the rows that were folded later. Raises Unavailable if the disk refuses,
        and what `look` raises.
        """
        ...

    def families(self, *, drop_deletes: bool) -> list[Family]:
        """Families with rows, by name, without those that have expired since; with `drop_deletes` without deletes."""
        ...

    def files(self, family: Family, threads: int) -> int:
        """Number of paths that `write` takes for a family, if it may use so many threads."""
        ...

    def write(self, family: Family, paths: Sequence[Path], look: Look, threads: int = 1) -> list[SortedFile]:
        """Write the rows of one of `families`, at least one, as files at some of these paths, in key order.

        In place of reading its batches. Raises Unavailable if the disk refuses, and what `look` raises.
        """
        ...

    def clear(self) -> None:
        """Forget rows and counts of records; the stream time stays."""
        ...

    def close(self) -> None:
        """Free the disk: the rows that were spilled are no longer needed."""
        ...


@dataclass(frozen=True, slots=True)
class RowRule:
    """How records become rows, in the words of the compiled fold; `suffix` is 0 for a store without times."""

    stamped: bool
    suffix: int = 0
    numbered: bool = False
    retention_ms: int = 0
    interval_ms: int = 1


def rule_of(spec: StoreSpec) -> RowRule:
    """The rule of a store whose last record of a key wins."""
    times = spec.traits.times
    if times is None:
        return RowRule(spec.timestamped)
    retention_ms = spec.kept_ms
    return RowRule(spec.timestamped, times.suffix_bytes, spec.numbered, retention_ms, segment_interval_ms(retention_ms))


def fold_for(spec: StoreSpec, records: Sequence[Record], observed_ms: int, *, rocks_writer: bool = False) -> RowFold:
    """The fold that suits a store and the first of its records; `observed_ms` is a time that it will observe.

    `rocks_writer`: all files are written by RocksDB's own writer.

    Measured, records of 116 bytes with distinct keys, folding and sorting: 2.2 us each by the store, 0.6 by the
    compiled fold out of columns, less out of a reader's parts. Out of tuples it would save little.
    """
    if isinstance(records, RecordColumns) and compiled().module is not None:
        return NativeFold(spec, observed_ms, rocks_writer=rocks_writer)
    return StoreFold(spec, observed_ms)


class StoreFold:
    """The fold by the store's own code. The running sum of memory includes replaced rows."""

    def __init__(self, spec: StoreSpec, observed_ms: int) -> None:
        rows = StoreRows(spec.name, MemoryEngine("a run"), WriteBuffer(0), _no_clock, observed_ms=observed_ms)
        self._store = open_store(spec, rows)
        self._segmented = spec.traits.times is not None
        self._rows: FamilyRows = {}
        self._used_bytes = 0
        self.live_keys: dict[str, bytes | None] = {}
        self.records = self.expired = self.skipped = self.dropped = 0
        self.spills = self.spilled_bytes = 0

    @property
    def observed_ms(self) -> int:
        """See RowFold."""
        return self._store.rows.observed_ms

    @property
    def sequence(self) -> int:
        """See RowFold."""
        return self._store.rows.sequence

    @property
    def used_bytes(self) -> int:
        """See RowFold."""
        return self._used_bytes

    def add(self, records: Sequence[Record], payload_bytes: int) -> None:
        """See RowFold."""
        added = self._fold_segmented(records) if self._segmented else self._fold(records)
        counters = self._store.rows.counters
        self.records += len(records)
        self.skipped += counters.skipped
        counters.skipped = 0
        self._used_bytes += payload_bytes + added * ROW_OVERHEAD_BYTES

    def _fold(self, records: Sequence[Record]) -> int:
        """Fold records into the rows; returns the number of new rows."""
        before = sum(map(len, self._rows.values()))
        self._store.restore(records, self._rows)
        return sum(map(len, self._rows.values())) - before

    def _fold_segmented(self, records: Sequence[Record]) -> int:
        """Fold records into the rows, count those of dead segments; returns the number of rows made."""
        made = self._store.restore(records)
        alive = set().union(*made.values())
        self.expired += sum(record[2] is not None and record[2] not in alive for record in records)
        for family, rows in made.items():
            self._rows.setdefault(family, {}).update(rows)
        return len(alive)

    def counted_bytes(self) -> int:
        """See RowFold."""
        self._used_bytes = sum(map(_size, self._rows.values()))
        return self._used_bytes

    def spill(self, path: Path, look: Look) -> bool:
        """See RowFold: rows of Python stay in memory until they become a run."""
        return False

    def files(self, family: Family, threads: int) -> int:
        """See RowFold."""
        return 1

    def families(self, *, drop_deletes: bool) -> list[Family]:
        """See RowFold."""
        for family in self._store.expired_families():
            self.expired += len(self._rows.pop(family, ()))
        found = []
        for family, rows in sorted((family, rows) for family, rows in self._rows.items() if rows):
            deletes = sum(row is None for row in rows.values()) if None in rows.values() else 0
            dropped = deletes if drop_deletes else 0
            kept = {key: row for key, row in rows.items() if row is not None} if dropped else rows
            found.append(Family(family, len(kept), deletes - dropped, dropped, sorted_batches(kept)))
        self.dropped = sum(family.dropped for family in found)
        return found

    def write(self, family: Family, paths: Sequence[Path], look: Look, threads: int = 1) -> list[SortedFile]:
        """See RowFold."""
        return [write_batches(paths[0], _looking(family.batches, look))]

    def clear(self) -> None:
        """See RowFold."""
        self._rows = {}
        self._used_bytes = self.records = self.expired = self.skipped = self.dropped = 0

    def close(self) -> None:
        """See RowFold: it has nothing on the disk."""


class NativeFold:
    """The compiled fold, and its writer of files; both release the interpreter lock."""

    def __init__(self, spec: StoreSpec, observed_ms: int, *, rocks_writer: bool = False) -> None:
        self._spec = spec
        self._rocks_writer = rocks_writer
        self._rule = rule_of(spec)
        rule = self._rule
        self._module = compiled().module
        if self._module is None:
            raise InternalError(f"there is no compiled fold: {compiled().reason}")
        self._fold: Any = self._module.Fold(
            rule.stamped, rule.suffix, rule.numbered, rule.retention_ms, rule.interval_ms, observed_ms
        )
        self._segments: dict[str, int] = {}  # of the families
        self._spills: list[Any] = []  # oldest first
        self._dropping = False
        self.live_keys: dict[str, bytes | None] = {}
        self.records = self.expired = self.skipped = self.dropped = 0

    @property
    def spills(self) -> int:
        """See RowFold."""
        return len(self._spills)

    @property
    def spilled_bytes(self) -> int:
        """See RowFold."""
        return sum(spill.size for spill in self._spills)

    @property
    def observed_ms(self) -> int:
        """See RowFold."""
        return self._fold.observed_ms  # type: ignore[no-any-return]

    @property
    def sequence(self) -> int:
        """See RowFold."""
        return self._fold.sequence  # type: ignore[no-any-return]

    @property
    def used_bytes(self) -> int:
        """See RowFold."""
        return self._fold.used_bytes  # type: ignore[no-any-return]

    def add(self, records: Sequence[Record], payload_bytes: int) -> None:
        """See RowFold."""
        for part, start, stop in self._spans(records):
            bad, keyless, dead = self._fold.add(part, start, stop)
            if bad >= 0:
                self._refuse(part, bad)
            self.skipped += keyless
            self.expired += dead
        self.records += len(records)

    def _spans(self, records: Sequence[Record]) -> Sequence[Span]:
        if isinstance(records, LazyColumns) and records.spans is not None:
            return records.spans
        columns = records if isinstance(records, RecordColumns) else None
        offsets, stamps, keys, values = (
            (columns.offsets, columns.timestamps, columns.keys, columns.values)
            if columns is not None
            else (list(column) for column in zip(*(record[:4] for record in records), strict=True))
        )
        part = self._module.part_of("", 0, offsets, stamps, list(keys), list(values))
        return [Span(part, 0, len(records))]

    def _refuse(self, part: Any, index: int) -> None:
        """Raise the store's own error for a key."""
        key = part.columns(index, index + 1)[2][0]
        times = self._spec.traits.times
        assert times is not None
        times.time_of(key)
        times.unpack(key)
        raise Corruption(f"store {self._spec.name!r}: {key[:64].hex()} cannot be a key of it: restore it")

    def counted_bytes(self) -> int:
        """See RowFold. A value that outgrew its place leaves it unused, and the place still counts."""
        return self.used_bytes

    def spill(self, path: Path, look: Look) -> bool:
        """See RowFold."""
        least = self._least
        expired = sum(stop - start for segment, start, stop, _ in self._fold.sort() if segment < least)
        try:
            spill = self._module.Spill(self._fold, str(path), least, look)
        except OSError as error:
            raise translate(error, f"writing rows beside {path}") from error
        # First here and only then out of memory: whatever ends this thread in between, no row is lost.
        self._spills.append(spill)
        self._fold.clear()
        self.expired += expired
        return True

    @property
    def _least(self) -> int:
        """The first segment that is alive."""
        rule = self._rule
        return (self.observed_ms - rule.retention_ms) // rule.interval_ms if rule.suffix else NO_SEGMENT

    def families(self, *, drop_deletes: bool) -> list[Family]:
        """See RowFold."""
        found, least = [], self._least
        self._segments, self._dropping, self.dropped, self.live_keys = {}, drop_deletes, 0, {}
        rows, deletes = Counter[int](), Counter[int]()
        for segment, count, removed in self._counts():
            rows[segment] += count
            deletes[segment] += removed
        for segment, count in rows.items():
            if segment < least:  # died since its rows were folded
                self.expired += count
                continue
            name = self._name_of(segment)
            dropped = deletes[segment] if drop_deletes and not self._spills else 0
            self._segments[name] = segment
            self.dropped += dropped
            batches = self._batches(segment, not drop_deletes)
            found.append(Family(name, count - dropped, deletes[segment] - dropped, dropped, batches))
        return sorted(found, key=lambda one: one.name)

    def _counts(self) -> Iterator[tuple[int, int, int]]:
        """Segments with their rows and deletes: of each spill, and of the rows in memory."""
        for spill in self._spills:
            yield from spill.segments
        for segment, start, stop, deletes in self._fold.sort():
            yield segment, stop - start, deletes

    def _name_of(self, segment: int) -> str:
        rule, name = self._rule, self._spec.name
        return family_name(name, segment_start_ms(segment, rule.interval_ms)) if rule.suffix else name

    def files(self, family: Family, threads: int) -> int:
        """See RowFold: merged rows go to files of a bounded size, and all others to one for each thread."""
        if not self._spills:
            return threads
        rows: int = sum(count for spill in self._spills for _, count, _ in spill.segments)
        sized = round(family.entries * (self.spilled_bytes / max(rows, 1)) / MERGED_FILE_BYTES)
        return min(max(sized, min(threads, family.entries // FILE_ROWS), 1), MERGED_FILES_MAX)

    def write(self, family: Family, paths: Sequence[Path], look: Look, threads: int = 1) -> list[SortedFile]:
        """See RowFold: many rows go to all files at once. Too long keys go through RocksDB's writer, row by row."""
        long_keys = not (self._fold.short_keys and all(spill.short_keys for spill in self._spills))
        if self._rocks_writer or long_keys:
            batches = _looking(family.batches, look)
            first = next((batch for batch in batches if batch[0]), None)
            return [] if first is None else [write_batches(paths[0], chain([first], batches))]
        segment, deletes = self._segments[family.name], not self._dropping

        def write(unfinished: list[Path], where: str) -> list[Written | None]:
            names = tuple(map(str, unfinished))
            try:
                # The tuple has no name: the frame of a kept error would keep the files as well.
                files, dropped = self._module.merge(
                    names, threads, tuple(self._spills), self._fold, segment, deletes, BLOCK_BYTES, look
                )
            except OSError as error:
                raise translate(error, where) from error
            if self._spills:  # else `families` has counted them
                self.dropped += dropped
            self.live_keys |= {path.name: file[4] for path, file in zip(paths, files, strict=True) if file is not None}
            return [None if file is None else Written(*file[:4]) for file in files]

        paths = paths if self._spills else paths[: max(family.entries // FILE_ROWS, 1)]
        return placed(paths, write)

    def _batches(self, segment: int, deletes: bool) -> Iterator[Batch]:
        after, begun = None, False
        while after is not None or not begun:
            keys, rows, after = self._module.merged_rows(tuple(self._spills), self._fold, segment, after, TOUCH_ROWS)
            begun = True
            if not deletes and None in rows:
                if self._spills:  # else `families` has counted them
                    self.dropped += rows.count(None)
                kept = [(key, row) for key, row in zip(keys, rows, strict=True) if row is not None]
                keys, rows = [key for key, _ in kept], [row for _, row in kept]
            yield keys, rows

    def clear(self) -> None:
        """See RowFold."""
        self._fold.clear()
        self.close()
        self.records = self.expired = self.skipped = self.dropped = 0

    def close(self) -> None:
        """See RowFold."""
        self._spills.clear()  # a file without a name ends with its last handle


def _looking(batches: Iterator[Batch], look: Look) -> Iterator[Batch]:
    for batch in batches:
        look()
        yield batch


def _size(rows: dict[bytes, bytes | None]) -> int:
    return len(rows) * ROW_OVERHEAD_BYTES + sum(map(len, rows)) + sum(map(len, filter(None, rows.values())))


def _no_clock() -> int:
    raise InternalError("a restore takes its times from records: no clock may be read")
