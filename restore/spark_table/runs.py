"""Sorted files of one task of a write, by partition, and their counts and digest once all files are complete.

    encoded rows ── by partition ──> RunBuilder, or versions replayed ──> SST files ── settle ──> counts and digest

Files of one family may overlap, but each key is in one of them only: `settle` ensures it.

Rules of this file: local files only; it knows no Spark. Two rows of a key are an error that names the key, never a
choice between them. Rows past retention are skipped with their segments, as in a restore.
"""

from __future__ import annotations

import heapq
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from operator import itemgetter
from pathlib import Path

from standfast.replication import shapes
from standfast.replication.columns import RecordColumns
from standfast.restore.digest import Digest, digest_rows
from standfast.restore.files.manifest import ManifestFile
from standfast.restore.files.manifest_files import sha256_of
from standfast.restore.replay.row_folds import ROW_OVERHEAD_BYTES
from standfast.restore.replay.run_builder import RunBuilder
from standfast.restore.spark_table.columns import shown
from standfast.restore.spark_table.encode import Encoded
from standfast.restore.verify.at_rest import MEMORY_BYTES, view
from standfast.restore.verify.import_tasks import link_files
from standfast.store.errors import InvalidRequest
from standfast.store.rocks.engine import RocksEngine
from standfast.store.rocks.lookups import check_found
from standfast.store.rocks.opening import RocksShared
from standfast.store.rocks.sst import write_sorted
from standfast.store.specs import StoreSpec
from standfast.store.task.commit_record import StoreTimes
from standfast.store.types.versioned import replay_key

BUDGET_BYTES_MIN = 1 << 20
# The share of the budget for a run's builder; the rest is for the set of its keys.
BUILDER_SHARE = 0.6


@dataclass(frozen=True, slots=True)
class RunPart:
    """Rows of one partition as files. `records` counts all rows, `expired` those past retention."""

    partition: int
    files: tuple[ManifestFile, ...]
    times: StoreTimes
    records: int
    expired: int = 0
    digest: Digest = field(default_factory=Digest)


class PartBuilder:
    """Files of one partition in one task."""

    def __init__(self, spec: StoreSpec, folder: Path, partition: int, budget_bytes: int) -> None:
        self._spec = spec
        self._folder = folder
        self._partition = partition
        self._budget_bytes = max(budget_bytes, BUDGET_BYTES_MIN)
        self._seen: set[bytes] = set()
        self._files: list[ManifestFile] = []
        self._records = 0
        self._times = StoreTimes()
        self._builder = RunBuilder(spec, folder, str(partition), partition, 0, int(self._budget_bytes * BUILDER_SHARE))

    def add(self, rows: Sequence[Encoded]) -> None:
        """Add rows in any order. Raises InvalidRequest for a second row of a key."""
        keys = [row.row_key for row in rows]
        fresh = set(keys)
        if len(fresh) < len(keys):
            raise _two_rows(self._spec, next(one for one, other in pairwise(sorted(keys)) if one == other))
        if not self._seen.isdisjoint(fresh):
            raise _two_rows(self._spec, min(self._seen & fresh))
        self._seen |= fresh
        self._records += len(rows)
        # As records of the bulk restore, whose builder makes the very bytes of a store.
        records = RecordColumns(range(len(rows)), [row.timestamp for row in rows], keys, [row.value for row in rows])
        self._builder.add(records, records.payload_bytes)
        if self._builder.full:
            self._run()

    def finish(self) -> RunPart:
        """All files, settled."""
        self._run()
        return settle(
            self._spec, self._folder, RunPart(self._partition, tuple(self._files), self._times, self._records)
        )

    def _run(self) -> None:
        made = self._builder.run(0)  # rows of a table have no offsets
        self._builder.forget()
        self._files += made.files
        self._times = StoreTimes(made.observed_ms, made.sequence)
        self._seen = set()  # a key of an earlier run is found by `settle`, from the files


class VersionsBuilder:
    """Files of one partition of a versioned store in one task, from memory: versions of a key belong together."""

    def __init__(self, spec: StoreSpec, folder: Path, partition: int, budget_bytes: int) -> None:
        self._spec = spec
        self._folder = folder
        self._partition = partition
        self._budget_bytes = max(budget_bytes, BUDGET_BYTES_MIN)
        self._rows: list[Encoded] = []
        self._used_bytes = 0

    def add(self, rows: Sequence[Encoded]) -> None:
        """Add versions in any order. Raises InvalidRequest if they exceed the memory's bound."""
        self._rows += rows
        self._used_bytes += sum(len(row.row_key) + len(row.value) + ROW_OVERHEAD_BYTES for row in rows)
        if self._used_bytes > self._budget_bytes:
            raise InvalidRequest(
                f"store {self._spec.name!r}: versions of one task take more than memoryMb: raise it, or spread the "
                'rows over more tasks with df.repartition(n, "key")'
            )

    def finish(self) -> RunPart:
        """All files, settled."""
        self._rows.sort(key=itemgetter(1, 2))
        # The end of a version may be a delete, which moves the stream time as well.
        observed = max((max(row.timestamp, row.ends or 0) for row in self._rows), default=-1)
        rows: dict[bytes, bytes | None] = {}
        for key, own in groupby(self._rows, itemgetter(1)):
            puts = [(at, value, at) for at, value in _puts(self._spec, key, list(own))]
            rows |= replay_key(self._spec.kept_ms, key, puts, observed)
        files = []
        if rows:
            written = write_sorted(self._folder / f"{self._partition}-0-0.sst", rows)
            files.append(
                ManifestFile(
                    written.path.name,
                    self._spec.name,
                    written.size_bytes,
                    written.entries,
                    written.first_key.hex(),
                    written.last_key.hex(),
                    sha256_of(written.path),
                    0,
                )
            )
        part = RunPart(self._partition, tuple(files), StoreTimes(observed, 0), len(self._rows))
        return settle(self._spec, self._folder, part)


def _puts(spec: StoreSpec, key: bytes, versions: Sequence[Encoded]) -> Iterator[tuple[int, bytes | None]]:
    """Puts, oldest first, that make these versions, with a delete in each gap between two of them."""
    for version, following in zip(versions, [*versions[1:], None], strict=True):
        ends, begins = version.ends, None if following is None else following.timestamp
        if begins == version.timestamp:
            raise _two_rows(spec, key, f"valid from {begins}")
        if ends is not None and (ends <= version.timestamp or (begins is not None and ends > begins)):
            raise InvalidRequest(
                f"store {spec.name!r}: a version of key {shown(key)} is valid from {version.timestamp} to {ends}, "
                f"which {'is no time' if ends <= version.timestamp else f'overlaps the next ({begins})'}: correct it"
            )
        yield version.timestamp, version.value
        if ends is not None and ends != begins:
            yield ends, None


def settle(spec: StoreSpec, folder: Path, part: RunPart) -> RunPart:
    """The part without files of expired segments, with the digest of its visible rows.

    Raises InvalidRequest if two files hold the same key, Corruption if RocksDB does not take the files.
    """
    if not part.files:
        return part
    with _taken(folder, part.files) as engine:
        store = view(engine, spec, part.times)
        check_found(engine, (file.family for file in part.files), f"store {spec.name!r}, partition {part.partition}")
        _refuse_twice(spec, folder, part.files, engine)
        kept = tuple(file for file in part.files if store.takes_family(file.family))
        expired = 0 if spec.traits.versions else part.records - sum(file.entries for file in kept)
        digest = digest_rows(store.logical_rows()) if kept else Digest()
        return RunPart(part.partition, kept, part.times, part.records, expired, digest)


def merged(spec: StoreSpec, folder: Path, parts: Sequence[RunPart]) -> RunPart:
    """One partition from the parts of several tasks."""
    # All tasks' times decide: a segment that is live in one task's rows may be expired in the whole.
    times = StoreTimes(max(one.times.observed_ms for one in parts), max(one.times.sequence for one in parts))
    files = tuple(file for one in parts for file in one.files)
    whole = RunPart(parts[0].partition, files, times, sum(one.records for one in parts))
    return settle(spec, folder, whole)


def disjoint(files: Iterable[ManifestFile]) -> bool:
    """Whether no two files of a family can hold the same key."""
    spans = sorted((file.family, file.first_key, file.last_key) for file in files)
    return all(one[0] != other[0] or one[2] < other[1] for one, other in pairwise(spans))


@contextmanager
def _taken(folder: Path, files: Sequence[ManifestFile]) -> Iterator[RocksEngine]:
    scratch = Path(tempfile.mkdtemp(prefix="standfast-settle-"))
    try:
        engine = RocksEngine(scratch / "rows", shared=RocksShared(MEMORY_BYTES))
        try:
            by_family: dict[str, list[Path]] = {}
            for family, path in link_files(folder, files, scratch / "linked"):
                by_family.setdefault(family, []).append(path)
            for family, paths in by_family.items():
                engine.create_family(family)
                engine.ingest(family, paths)
            yield engine
        finally:
            engine.close()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _refuse_twice(spec: StoreSpec, folder: Path, files: Sequence[ManifestFile], engine: RocksEngine) -> None:
    """Refuse a key in two files: an ingest of them gives fewer rows than entries."""
    by_family: dict[str, list[ManifestFile]] = {}
    for file in files:
        by_family.setdefault(file.family, []).append(file)
    for family, own in by_family.items():
        if disjoint(own):  # no key can be twice, so no scan is needed
            continue
        with engine.scan(family) as scan:
            rows = sum(1 for _ in scan)
        if rows != sum(file.entries for file in own):
            raise _two_rows(spec, _first_twice(folder, own))


def _first_twice(folder: Path, files: Sequence[ManifestFile]) -> bytes:
    """The first key that two files hold."""
    # A family for each file: in one family the later file's row would hide the other's.
    apart = [shapes.replace(one, family=f"file{number}", deletes=0) for number, one in enumerate(files)]
    with _taken(folder, apart) as engine:
        scans = [engine.scan(one.family) for one in apart]
        last = b""
        for number, (key, _) in enumerate(heapq.merge(*scans, key=itemgetter(0))):
            if number and key == last:
                return key
            last = key
    return last


def _two_rows(spec: StoreSpec, row_key: bytes, when: str = "") -> InvalidRequest:
    key = row_key
    times = spec.traits.times
    if times is not None:
        key, start, second = times.unpack(row_key)
        when = f"{times.unit} {start} to {second}" if times.second == "end" else f"{times.unit} start {start}"
    elif spec.traits.versions and not when:
        key = row_key[8:]
        return InvalidRequest(
            f"store {spec.name!r}: versions of key {shown(key)} are in several tasks: bring them together with "
            'df.repartition(n, "key")'
        )
    return InvalidRequest(
        f"store {spec.name!r}: two rows have the key {shown(key)}{', ' if when else ''}{when}, and a store holds one: "
        "aggregate them, or drop duplicates, first"
    )


Builder = PartBuilder | VersionsBuilder


def builder_of(spec: StoreSpec, folder: Path, partition: int, budget_bytes: int) -> Builder:
    """The builder of the files of one partition."""
    return (VersionsBuilder if spec.traits.versions else PartBuilder)(spec, folder, partition, budget_bytes)


def by_partition(rows: Sequence[Encoded]) -> Mapping[int, list[Encoded]]:
    """Rows by their partition."""
    found: dict[int, list[Encoded]] = {}
    for row in rows:
        found.setdefault(row.partition, []).append(row)
    return found
