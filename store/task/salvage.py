"""Salvage: copies the readable rows of a damaged database, row by row.

    open_remains   copy by links ──> mend CURRENT, cut a damaged log off, put files together ──> open carefully
    copy_rows      every family of a store: forwards up to the damage, then backwards down to it ──> another database

Every copied row was read whole: a block with a wrong checksum gives no row, and neither do the blocks between two such
blocks of a family. Each part that is unreadable, or may be missing, becomes a line for people.

Rules of this file: it changes nothing in the directory that it reads. It does not decide whether a loss is acceptable.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

from standfast.store import files, window_key
from standfast.store.engine import DEFAULT_FAMILY, Engine, Row
from standfast.store.errors import Corruption
from standfast.store.rocks.files import copy_closed
from standfast.store.rocks.open_engine import open_engine
from standfast.store.rocks.opening import RocksShared, repair
from standfast.store.rocks.seal import manifest_fault
from standfast.store.rocks.wal import cut_off, wal_damage, wal_files
from standfast.store.specs import StoreSpec
from standfast.store.task.commit_record import CUT_KEY, STORES_KEY, CommitRecord, StoreTimes, Unwritten, decode_record
from standfast.store.task.task_stores import TaskStores
from standfast.store.types.segments import store_of_family
from standfast.store.types.versioned import versions_in

BATCH_ROWS = 5_000


@dataclass(slots=True)
class Remains:
    """A damaged database, open as far as it can be; `gaps` name parts that are or may be missing. Close it."""

    engine: Engine
    gaps: list[str] = field(default_factory=list)

    def has_rows(self, name: str) -> bool:
        """Whether a store had rows; damage counts as rows."""
        for family in _families(self.engine, name):
            try:
                with self.engine.scan(family) as scan:
                    if next(iter(scan), None) is not None:
                        return True
            except Corruption:
                return True
        return bool(self.gaps)

    def undeclared(self, names: Collection[str], where: str) -> list[str]:
        """Stores with rows that have no changelog, or may have none, and are not in `names`."""
        stores = {store_of_family(one) for one in self.engine.families() if one != DEFAULT_FAMILY} - set(names)
        try:
            raw = self.engine.get(DEFAULT_FAMILY, STORES_KEY)
            kept = {} if raw is None else decode_record(raw, where)
        except Corruption:
            kept = {}  # without definitions every store counts as one whose rows no log has
        logged = {name for name, definition in kept.items() if definition.get("logging", True)}
        return sorted(name for name in stores - logged if self.has_rows(name))

    def cut(self, where: str) -> CommitRecord | None:
        """The task's record; None if it is unreadable."""
        try:
            raw = self.engine.get(DEFAULT_FAMILY, CUT_KEY)
            return None if raw is None else CommitRecord.decode(raw, where)
        except Corruption:
            return None

    def close(self) -> None:
        """Close the database."""
        self.engine.close()


def open_remains(directory: Path, scratch: Path, shared: RocksShared, task: str) -> Remains | None:
    """Open the rest of a task's database, in a copy at `scratch`; None if no part of it opens. Raises Unavailable."""
    remains = _open_copy(directory, scratch, shared)
    if remains is None or _is_of(remains, task):
        return remains
    remains.close()
    # The log alone may be that of another task; without it the table files may be the task's own.
    remains = _open_copy(directory, scratch, shared, log=False)
    if remains is None or _is_of(remains, task):
        return remains
    remains.close()
    return None


def _is_of(remains: Remains, task: str) -> bool:
    cut = remains.cut(task)
    return cut is None or cut.task in ("", task)


def _open_copy(directory: Path, scratch: Path, shared: RocksShared, *, log: bool = True) -> Remains | None:
    files.clear(scratch)
    # A copy, because RocksDB removes files that its MANIFEST does not know, which may be all that is left.
    copy_closed(directory, scratch)
    if not log:
        for path in wal_files(scratch):
            files.remove(path)
    gaps = _log_gaps(scratch) if log else ["its write-ahead log is that of another task: rows written last are missing"]
    manifests = sorted(scratch.glob("MANIFEST-*"))
    if manifests:
        # CURRENT is one line that names the newest MANIFEST, so it can be written again after any damage.
        files.write(scratch / "CURRENT", f"{manifests[-1].name}\n".encode("ascii"))
    try:
        if not manifests or manifest_fault(scratch) is not None:
            raise Corruption(f"{directory} has no MANIFEST that can be used")
        return Remains(open_engine(scratch, shared=shared, careful=True), gaps)
    except Corruption:
        return _put_together(directory, scratch, shared, gaps)


def copy_rows(source: Engine, target: Engine, spec: StoreSpec) -> tuple[list[str], StoreTimes]:
    """Copy every readable row of a store; returns the unreadable parts, and the store's times as the rows show them."""
    gaps: list[str] = []
    sequence, observed_ms = 0, -1
    for family in _families(source, spec.name):
        target.create_family(family)
        batch: dict[bytes, bytes | None] = {}
        for key, row in _readable(source, family, gaps):
            batch[key] = row
            observed_ms = max(observed_ms, _time_of(spec, key, row))
            if spec.numbered:
                sequence = max(sequence, window_key.sequence_of(key))
            if len(batch) >= BATCH_ROWS:
                target.write({family: batch})
                batch = {}
        target.write({family: batch})
    return gaps, StoreTimes(observed_ms, sequence)


def _time_of(spec: StoreSpec, key: bytes, row: bytes) -> int:
    """The row's part in the largest time of its store (-1: none)."""
    if spec.traits.times is not None:
        return spec.traits.times.time_of(key)
    if spec.traits.versions:
        return max((valid_from for _, valid_from, _ in versions_in(key, row, -1)), default=-1)
    return -1


def copy_stores(remains: Remains, target: TaskStores, names: Collection[str]) -> list[str]:
    """Copy the readable rows of these stores, and their part of the task's record; returns the missing parts."""
    gaps = list(remains.gaps)
    cut = remains.cut(str(target.directory))
    times: dict[str, StoreTimes] = {}
    for name in sorted(names):
        lost, told = copy_rows(remains.engine, target.engine, target.specs[name])
        gaps += lost
        known = StoreTimes() if cut is None else cut.stores.get(name, StoreTimes())
        # Without the record a store would take its rows past retention for present ones, and show them again.
        times[name] = StoreTimes(max(known.observed_ms, told.observed_ms), max(known.sequence, told.sequence))
    target.carry(Unwritten({}, times))
    if cut is not None:
        # Positions belong to rows that the copy does not have: stores with a log are restored from it.
        target.apply({}, replace(cut, positions={}, stores={}, task=""))
    return gaps


def _log_gaps(scratch: Path) -> list[str]:
    """Cut a damaged write-ahead log off before its first damaged record, so that the rows are of one moment."""
    found = wal_damage(scratch, every_byte=True)
    if found is None:
        return [] if wal_files(scratch) else ["its write-ahead log is gone, with the rows that were written last"]
    path, at = found
    cut_off(scratch, path, at)
    return [f"its write-ahead log {path.name} is damaged at byte {at}: rows that were written later are missing"]


def _put_together(directory: Path, scratch: Path, shared: RocksShared, gaps: list[str]) -> Remains | None:
    """Open a copy without a usable MANIFEST, rebuilt from its table files and its log."""
    unfinished = any(path.stat().st_size for path in wal_files(scratch))
    found = [*gaps, *(["rows of its write-ahead log may be missing"] if unfinished else [])]
    try:
        repair(scratch, shared)
        found += [f"{path.name} cannot be read" for path in sorted((scratch / "lost").glob("*.sst"))]
        return Remains(open_engine(scratch, shared=shared, careful=True), found)
    except Corruption:
        return None


def _families(engine: Engine, name: str) -> list[str]:
    return sorted(one for one in engine.families() if one != DEFAULT_FAMILY and store_of_family(one) == name)


def _readable(engine: Engine, family: str, gaps: list[str]) -> Iterator[Row]:
    last: bytes | None = None
    try:
        with closing(engine.scan(family)) as scan:
            for key, row in scan:
                last = key
                yield key, row
        return
    except Corruption as damage:
        what = str(damage)
    first: bytes | None = None
    try:
        # Backwards as well, since a scan ends at the first damaged block and rows lie on both sides of it.
        with closing(engine.scan(family, reverse=True)) as scan:
            for key, row in scan:
                if last is not None and key <= last:
                    break
                first = key
                yield key, row
    except Corruption:
        pass
    between = f"between {'the first row' if last is None else last!r} and {'the last' if first is None else first!r}"
    gaps.append(f"rows of family {family!r} {between} cannot be read ({what})")
