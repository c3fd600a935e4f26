"""Builds the runs of one range: folds records by the store's own rules and writes sorted files when memory is used up.

    records ── the store's restore ──> rows by family, the last of each key ── budget reached, or the end ──> a run

The store itself turns records into rows (`TypedStore.restore`), over an empty engine: so a run has the very bytes that
batches write, of segments and timestamps too, and a new rule of a store holds here without a change.

Rules of this file: it knows no log and no process; offsets come with the records. The running sum of memory includes
replaced rows; when it reaches the budget, the held rows are counted exactly, at most once for each quarter of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from standfast.replication.log import Record
from standfast.restore.files.manifest import ManifestFile, ManifestPartition
from standfast.restore.files.manifest_files import sha256_of
from standfast.store.buffer import WriteBuffer
from standfast.store.errors import InternalError, InvalidRequest
from standfast.store.memory import MemoryEngine
from standfast.store.rocks.sst import write_sorted
from standfast.store.rows import StoreRows
from standfast.store.specs import StoreSpec
from standfast.store.types.kinds import open_store
from standfast.store.types.typed import FamilyRows, TypedStore

# Memory of Python beside the bytes of a key and a row: two objects' heads (33 bytes each, rounded up), a place in a
# dictionary that is doubled when it is two thirds full, and one in the sorted list.
ROW_OVERHEAD_BYTES = 200
# A run is written when the held rows take this share of the budget; with 1.0, every further batch would need a count.
SPILL_SHARE = 0.75


@dataclass(slots=True)
class _Counts:
    records: int = 0
    expired: int = 0


@dataclass(slots=True)
class RunBuilder:
    """Runs of the range that begins at `start`. File names in `folder` begin with `prefix`.

    Raises InvalidRequest for a versioned store, whose records cannot be folded by range.
    """

    spec: StoreSpec
    folder: Path
    prefix: str
    partition: int
    start: int
    budget_bytes: int
    observed_ms: int = -1
    drop_deletes: bool = False
    _store: TypedStore[Any, Any, Any] = field(init=False)
    _segmented: bool = field(init=False)
    _runs: int = field(init=False, default=0)
    _used_bytes: int = field(init=False, default=0)
    _rows: FamilyRows = field(init=False, default_factory=dict)
    _counts: _Counts = field(init=False, default_factory=_Counts)

    def __post_init__(self) -> None:
        if self.spec.traits.versions:
            raise InvalidRequest(f"store {self.spec.name!r} is versioned: restore it by batches, in offset order")
        rows = StoreRows(self.spec.name, MemoryEngine("a run"), WriteBuffer(0), _no_clock, observed_ms=self.observed_ms)
        self._store = open_store(self.spec, rows)
        self._segmented = self.spec.traits.times is not None

    def add(self, records: Sequence[Record], payload_bytes: int) -> None:
        """Fold the next records in offset order. Raises Corruption for a key that no store can have written."""
        if not records:
            return
        added = self._fold_segmented(records) if self._segmented else self._fold(records)
        self._counts.records += len(records)
        self._used_bytes += payload_bytes + added * ROW_OVERHEAD_BYTES

    def _fold(self, records: Sequence[Record]) -> int:
        """Fold records into the rows; returns the number of new rows."""
        before = sum(map(len, self._rows.values()))
        self._store.restore(records, self._rows)
        return sum(map(len, self._rows.values())) - before

    def _fold_segmented(self, records: Sequence[Record]) -> int:
        """Fold records into the rows, count those of dead segments; returns the number of rows made."""
        made = self._store.restore(records)
        added = sum(map(len, made.values()))
        self._counts.expired += len({record[2] for record in records} - {None}) - added
        for family, rows in made.items():
            self._rows.setdefault(family, {}).update(rows)
        return added

    @property
    def used_bytes(self) -> int:
        """Upper bound of the bytes that the next run takes."""
        return self._used_bytes

    @property
    def full(self) -> bool:
        """Whether the budget demands a run now."""
        if self._used_bytes < self.budget_bytes:
            return False
        # The sum includes replaced rows, so the held ones are counted exactly before a run is written.
        self._used_bytes = sum(map(_size, self._rows.values()))
        return self._used_bytes >= self.budget_bytes * SPILL_SHARE

    def run(self, end: int) -> ManifestPartition:
        """Write the folded rows as files and begin the next run at `end`; a run without rows has no files."""
        rows = self._store.rows
        self._forget_expired()  # segments may have died since their rows were folded
        files: list[ManifestFile] = []
        entries = dropped = 0
        for family, family_rows in sorted(self._rows.items()):
            # Only the very first run of an empty store has nothing below it that a delete must hide.
            if self.drop_deletes and not self._runs and None in family_rows.values():
                deletes = [key for key, row in family_rows.items() if row is None]
                dropped += len(deletes)
                for key in deletes:
                    del family_rows[key]
            if family_rows:
                files.append(self._write(family, family_rows, len(files)))
                entries += len(family_rows)
        counts, skipped = self._counts, rows.counters.skipped
        made = ManifestPartition(
            partition=self.partition,
            start=self.start,
            end=end,
            converge_offset=end,
            files=tuple(files),
            observed_ms=rows.observed_ms,
            sequence=rows.sequence,
            records=counts.records,
            tombstones=dropped + sum(file.deletes for file in files),
            superseded=max(counts.records - entries - dropped - counts.expired - skipped, 0),
            expired=counts.expired,
            entries=entries,
            digest=None,  # later runs may replace its rows
            skipped=skipped,
        )
        rows.counters.skipped = 0
        self.start, self._rows, self._counts, self._used_bytes = end, {}, _Counts(), 0
        self._runs += 1
        return made

    def _write(self, family: str, rows: dict[bytes, bytes | None], number: int) -> ManifestFile:
        path = self.folder / f"{self.prefix}-{self._runs}-{number}.sst"
        file = write_sorted(path, rows)
        return ManifestFile(
            name=path.name,
            family=family,
            bytes=file.size_bytes,
            entries=file.entries,
            first_key=file.first_key.hex(),
            last_key=file.last_key.hex(),
            sha256=sha256_of(path),
            deletes=file.deletes,
        )

    def _forget_expired(self) -> None:
        for family in self._store.expired_families():
            self._counts.expired += len(self._rows.pop(family, ()))


def _size(rows: dict[bytes, bytes | None]) -> int:
    return len(rows) * ROW_OVERHEAD_BYTES + sum(map(len, rows)) + sum(map(len, filter(None, rows.values())))


def _no_clock() -> int:
    raise InternalError("a restore takes its times from records: no clock may be read")
