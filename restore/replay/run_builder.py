"""Builds the runs of one changelog: folds records and writes sorted files when memory is used up.

    records ── row_folds.py ──> rows by family, the last of each key ── budget reached, or the end ──> a run

Rules of this file: it knows no log and no thread; offsets come with the records. A fold's running sum of memory may
include replaced rows; when it reaches the budget, the held rows are counted, at most once for each quarter of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from standfast.replication.kafka.native_library import compiled
from standfast.replication.log import Record
from standfast.restore.files.manifest import ManifestFile, ManifestPartition
from standfast.restore.files.manifest_files import sha256_of
from standfast.restore.replay.row_folds import Family, RowFold, fold_for
from standfast.store.errors import InvalidRequest
from standfast.store.specs import StoreSpec

# A run is written when the held rows take this share of the budget; with 1.0, every further batch would need a count.
SPILL_SHARE = 0.75


def _nothing() -> None: ...


@dataclass(slots=True)
class RunBuilder:
    """Runs of the changelog from `start` on. File names in `folder` begin with `prefix`.

    `check` is called between batches of written rows, and may raise to end the run. `peak_bytes`: most memory of rows.
    `digest` takes the place of sha256 in the files' facts; `writers`: files of a family that are written at once.
    Raises InvalidRequest for a versioned store, whose records cannot be folded apart from those before them.
    """

    spec: StoreSpec
    folder: Path
    prefix: str
    partition: int
    start: int
    budget_bytes: int
    observed_ms: int = -1
    drop_deletes: bool = False
    check: Callable[[], None] = _nothing
    digest: Callable[[Path], str] = sha256_of
    writers: int = 1
    peak_bytes: int = field(init=False, default=0)
    _fold: RowFold | None = field(init=False, default=None)
    _runs: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        if self.spec.traits.versions:
            raise InvalidRequest(f"store {self.spec.name!r} is versioned: restore it by batches, in offset order")

    def add(self, records: Sequence[Record], payload_bytes: int) -> None:
        """Fold the next records in offset order. Raises Corruption for a key that no store can have written."""
        if not records:
            return
        if self._fold is None:
            self._fold = fold_for(self.spec, records, self.observed_ms)
        self._fold.add(records, payload_bytes)
        self.peak_bytes = max(self.peak_bytes, self._fold.used_bytes)

    @property
    def used_bytes(self) -> int:
        """Upper bound of the bytes that the next run takes."""
        return 0 if self._fold is None else self._fold.used_bytes

    @property
    def full(self) -> bool:
        """Whether the budget demands a run now."""
        if self._fold is None or self.used_bytes < self.budget_bytes:
            return False
        return self._fold.counted_bytes() >= self.budget_bytes * SPILL_SHARE

    def run(self, end: int) -> ManifestPartition:
        """Write the folded rows as files and begin the next run at `end`; a run without rows has no files."""
        fold = self._fold if self._fold is not None else fold_for(self.spec, (), self.observed_ms)
        # Only the very first run of an empty store has nothing below it that a delete must hide.
        drop = self.drop_deletes and not self._runs
        families = fold.families(drop_deletes=drop)
        dropped = sum(family.dropped for family in families)
        kept = [family for family in families if family.entries]
        files = [file for number, family in enumerate(kept) for file in self._write(fold, family, number)]
        entries = sum(file.entries for file in files)
        superseded = max(fold.records - entries - dropped - fold.expired - fold.skipped, 0)
        made = ManifestPartition(
            partition=self.partition,
            start=self.start,
            end=end,
            converge_offset=end,
            files=tuple(files),
            observed_ms=fold.observed_ms,
            sequence=fold.sequence,
            records=fold.records,
            tombstones=dropped + sum(file.deletes for file in files),
            superseded=superseded,
            expired=fold.expired,
            entries=entries,
            digest=None,  # later runs may replace its rows
            skipped=fold.skipped,
        )
        fold.clear()
        self.start = end
        self._runs += 1
        return made

    def _write(self, fold: RowFold, family: Family, number: int) -> list[ManifestFile]:
        names = [f"{self.prefix}-{self._runs}-{number * self.writers + at}.sst" for at in range(self.writers)]
        return [
            ManifestFile(
                name=file.path.name,
                family=family.name,
                bytes=file.size_bytes,
                entries=file.entries,
                first_key=file.first_key.hex(),
                last_key=file.last_key.hex(),
                sha256=self.digest(file.path),
                deletes=file.deletes,
            )
            for file in fold.write(family, [self.folder / name for name in names], self.check)
        ]


def quick_digest(path: Path) -> str:
    """A digest of a file that stays with this process, against accidents.

    Measured, a file of 120 MB that was just written: 31 ms of processor time, sha256 95; a restore takes it twice.
    """
    module = compiled().module
    return sha256_of(path) if module is None else f"{module.digest_of(str(path)):016x}"
