"""Builds the runs of one changelog: folds records and writes sorted files when memory is used up.

    records ── row_folds.py ──> rows by family, the last of each key ── the end, or budget reached ──> a run
                                                                        └── budget reached ──> spill, up to `spills_max`

Rows that are spilled lie on the disk until the next run, which is merged of them and of the rows in memory: one run
then has so many budgets' rows, none of them twice, and RocksDB has nothing to compact.

Rules of this file: it knows no log and no thread; offsets come with the records. A fold's running sum of memory may
include replaced rows; when it reaches the budget, the held rows are counted, at most once for each quarter of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from standfast.replication.log import Record
from standfast.restore.files.manifest import ManifestFile, ManifestPartition
from standfast.restore.files.manifest_files import sha256_of
from standfast.restore.replay.row_folds import Family, RowFold, fold_for
from standfast.store.errors import InvalidRequest
from standfast.store.native_module import compiled
from standfast.store.specs import StoreSpec

# A run is written when the held rows take this share of the budget; with 1.0, every further batch would need a count.
SPILL_SHARE = 0.75
DIGESTS_MAX = 4  # files that are digested at once


def _nothing() -> None: ...


@dataclass(slots=True)
class RunBuilder:
    """Runs of the changelog from `start` on. File names in `folder` begin with `prefix`.

    `check` is called between batches of written rows, and may raise to end the run. `peak_bytes`: most memory of rows.
    `spills_max`: how often rows may be spilled before they become a run. `rocks_writer`: see `fold_for`.
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
    spills_max: int = 0
    rocks_writer: bool = False
    peak_bytes: int = field(init=False, default=0)
    _fold: RowFold | None = field(init=False, default=None)
    _written: bool = field(init=False, default=False)  # the fold's rows are those of the last run
    _runs: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        if self.spec.traits.versions:
            raise InvalidRequest(f"store {self.spec.name!r} is versioned: restore it by batches, in offset order")

    def add(self, records: Sequence[Record], payload_bytes: int) -> None:
        """Fold the next records in offset order. Raises Corruption for a key that no store can have written."""
        if not records:
            return
        self.forget()
        if self._fold is None:
            self._fold = fold_for(self.spec, records, self.observed_ms, rocks_writer=self.rocks_writer)
        self._fold.add(records, payload_bytes)
        self.peak_bytes = max(self.peak_bytes, self._fold.used_bytes)

    @property
    def used_bytes(self) -> int:
        """Upper bound of the bytes that the next run takes."""
        if self._fold is None or self._written:
            return 0
        return self._fold.used_bytes + self._fold.spilled_bytes

    @property
    def full(self) -> bool:
        """Whether the budget demands that the rows leave memory now, by a spill or as a run."""
        if self._fold is None or self._written or self._fold.used_bytes < self.budget_bytes:
            return False
        return self._fold.counted_bytes() >= self.budget_bytes * SPILL_SHARE

    def spill(self) -> bool:
        """Move the rows to the disk, where they wait for the next run; False if they must become a run now."""
        fold = self._fold
        if fold is None or fold.spills >= self.spills_max:
            return False
        return fold.spill(self.folder / f"{self.prefix}-{self._runs}-{fold.spills}.spill", self.check)

    def close(self) -> None:
        """Free the disk that spilled rows take, also if an error that is kept holds this object."""
        if self._fold is not None:
            self._fold.close()

    def run(self, end: int) -> ManifestPartition:
        """Write the folded rows as files and begin the next run at `end`; a run without rows has no files.

        The rows stay in memory until `forget`, or until the next call that needs room.
        """
        self.forget()
        fold = self._fold if self._fold is not None else fold_for(self.spec, (), self.observed_ms)
        # Only the very first run of an empty store has nothing below it that a delete must hide.
        drop = self.drop_deletes and not self._runs
        families = fold.families(drop_deletes=drop)
        files: list[ManifestFile] = []
        for family in families:
            if family.entries:
                self.check()  # there may be thousands of them, each too small for a look of its own
                files += self._write(fold, family, f"{self.prefix}-{self._runs}-{len(files)}")
        dropped = fold.dropped
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
        self._written = True
        self.start = end
        self._runs += 1
        return made

    @property
    def live_keys(self) -> Mapping[str, bytes | None]:
        """Of the last run's files that are not by RocksDB's own writer: see RowFold."""
        return {} if self._fold is None else dict(self._fold.live_keys)

    def forget(self) -> None:
        """Free the rows of the last run; its caller may use the files before that takes its time."""
        if self._written and self._fold is not None:
            self._fold.clear()
        self._written = False

    def _write(self, fold: RowFold, family: Family, prefix: str) -> list[ManifestFile]:
        paths = [self.folder / f"{prefix}-{at}.sst" for at in range(fold.files(family, self.writers))]
        written = fold.write(family, paths, self.check, self.writers)
        digest = each_digest(self.digest, [file.path for file in written])
        return [
            ManifestFile(
                name=file.path.name,
                family=family.name,
                bytes=file.size_bytes,
                entries=file.entries,
                first_key=file.first_key.hex(),
                last_key=file.last_key.hex(),
                sha256=digest(file.path),
                deletes=file.deletes,
            )
            for file in written
        ]


def each_digest(digest: Callable[[Path], str], paths: Sequence[Path]) -> Callable[[Path], str]:
    """`digest` for these files, which are digested together, in threads: a digest releases the interpreter lock.

    It raises what `digest` raises.
    """
    found: dict[Path, Future[str]] = {}
    with ThreadPoolExecutor(DIGESTS_MAX, "standfast-digest") as pool, suppress(RuntimeError):
        # RuntimeError: the machine allows no more threads. The caller's thread digests the files that are left.
        for path in paths if len(paths) > 1 else ():
            found[path] = pool.submit(digest, path)
    return lambda path: found[path].result() if path in found else digest(path)


def quick_digest(path: Path) -> str:
    """A digest of a file that stays with this process, against accidents.

    Measured, a file of 120 MB that was just written: 31 ms of processor time, sha256 95; a restore takes it twice.
    """
    module = compiled().module
    return sha256_of(path) if module is None else f"{module.digest_of(str(path)):016x}"
