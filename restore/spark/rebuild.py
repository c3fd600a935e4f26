"""Rebuild of a store on Spark: a changelog folded over offsets, as SST files with a manifest.

    preflight ──> source (one task a partition) ──> sort within the task ──> fold ──> SST files ──┐
                                                                                                  ▼
    the driver: partitions of the manifest from the tasks' answers, converge offsets, manifest.json, last of all

Only partitions that are split are shuffled: each of their tasks has a range of keys, and its files follow those of the
range before. A file's name holds partition, run and task attempt, so that no manifest names the file of a failed,
killed or speculative attempt: it is an orphan, which `orphans` lists.

Rules of this file: tasks write files, the driver writes the manifest; both remove only their own scratch. Rows are
decided in `rows.py`, offsets in `preflight`.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from standfast.replication.log import Log
from standfast.replication.offsets import TopicPartition
from standfast.replication.shapes import fit, plain
from standfast.replication.topics.settings import time_text
from standfast.restore.digest import Digest, digest_rows
from standfast.restore.files.manifest import FILE_NAME, Made, Manifest, ManifestFile, ManifestPartition, dump_manifest
from standfast.restore.files.manifest_files import sha256_of
from standfast.restore.spark.batches import PartitionFacts, StoreShape, lengths, numbers
from standfast.restore.spark.folder import Folder, StoredFile, sync
from standfast.restore.spark.frames import Mapper, OnTasks, Reading, attempt_of, run_partitions
from standfast.restore.spark.rows import Counts, fold_rows, partitions_of
from standfast.restore.spark.session import parallelism
from standfast.restore.spark.source import SourceName
from standfast.restore.spark.split_survey import plan_splits
from standfast.restore.verify.at_rest import MEMORY_BYTES, view
from standfast.restore.verify.import_tasks import link_files
from standfast.restore.verify.preflight import Preflight
from standfast.restore.verify.store_rows import rows_in_order
from standfast.store.base.version import __version__
from standfast.store.errors import InternalError, InvalidRequest, StateLost
from standfast.store.failpoint import reach
from standfast.store.rocks.engine import RocksEngine
from standfast.store.rocks.opening import RocksShared
from standfast.store.rocks.sst import COMPRESSION
from standfast.store.rocks.sst_stream import SstWriter, rocksdict_version
from standfast.store.task.commit_record import StoreTimes
from standfast.store.task.state_dir import written_name
from standfast.store.timestamps import duration_text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILE_BYTES = 64 << 20
ANSWER = pa.schema([("partition", pa.int32()), ("answer", pa.string())])
ANSWER_DDL = "partition int, answer string"
FILE = re.compile(r"[0-9]+-[0-9a-f]{12}-[0-9]+-[0-9]+\.sst")


@dataclass(frozen=True, slots=True)
class RebuildJob:
    """Parameters of the tasks. `read_back`: tasks also report a digest of the rows read from the finished files."""

    shape: StoreShape
    folder: str
    run: str
    file_bytes: int = FILE_BYTES
    read_back: bool = False


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """A finished rebuild. `warnings` are for people; `answers` are the tasks' reports, by partition."""

    manifest: Manifest
    folder: str
    elapsed_ms: int
    warnings: tuple[str, ...] = ()
    answers: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def records(self) -> int:
        """Records read."""
        return sum(one.records for one in self.manifest.partitions)

    @property
    def skipped(self) -> int:
        """Skipped records: without a key, or of a source topic and unfit for the store."""
        return sum(one.skipped for one in self.manifest.partitions)

    @property
    def digest(self) -> Digest:
        """Digest of the rows of all partitions."""
        return sum((Digest.from_hex(one.digest) for one in self.manifest.partitions if one.digest), Digest())


def rebuild(
    spark: SparkSession,
    log: Log,
    what: Preflight,
    folder: Folder,
    *,
    now_ms: Callable[[], int],
    source: SourceName = "native",
    connector_options: Mapping[str, str] | None = None,
    file_bytes: int = FILE_BYTES,
    split_bytes: int | None = None,
    read_back: bool = False,
    on_tasks: OnTasks | None = None,
) -> Rebuilt:
    """Write the store's rows at the ends of `what` to an empty folder.

    Partitions larger than `split_bytes` (None: see `split_plan`) are folded by several tasks. Raises InvalidRequest for
    a folder that holds other files, StateLost if the log changed meanwhile.
    """
    began_ms = now_ms()
    limits = {number: span.end for number, span in what.ranges.items()}
    splits = plan_splits(log, what, parallelism(spark), split_bytes)
    shape = StoreShape(what.spec.name, what.spec.definition(), limits, splits)
    job = begin(shape, folder, file_bytes, read_back=read_back)
    reading = Reading(what, shape, source, connector_options or {})
    rows = run_partitions(spark, reading, _writing(job), ANSWER_DDL, on_tasks)
    return complete(log, what, folder, rows, began_ms, now_ms)


def begin(shape: StoreShape, folder: Folder, file_bytes: int, *, read_back: bool = False) -> RebuildJob:
    """Check and create the folder; returns the job. Raises InvalidRequest for a folder with other files."""
    check_target(folder)
    folder.make()
    # The folder may hold leftovers of an earlier run, whose names must not be written again.
    return RebuildJob(shape, folder.address, uuid.uuid4().hex[:12], file_bytes, read_back)


def complete(
    log: Log, what: Preflight, folder: Folder, rows: Iterable[Any], began_ms: int, now_ms: Callable[[], int]
) -> Rebuilt:
    """Write the manifest from the tasks' answers. Raises StateLost if the log changed meanwhile."""
    answers = _answers(rows, what)
    # Before the manifest: a log that was recreated or truncated meanwhile must leave none.
    converge = _converge(log, what)
    done_ms = now_ms()
    manifest = Manifest(
        app=what.app,
        store=what.spec.name,
        definition=what.spec.definition(),
        topic=what.topic,
        topic_id=what.info.topic_id,
        partition_count=what.info.partitions,
        partitions=tuple(
            _partition(answers[number], what.ranges[number].begin, what.ranges[number].end, converge[number])
            for number in sorted(what.ranges)
        ),
        made=Made("rebuild", done_ms, __version__, rocksdict_version(), COMPRESSION),
    )
    reach("rebuild.written")
    # Last, since a manifest says that its folder is whole.
    folder.write(FILE_NAME, dump_manifest(manifest).encode())
    took_ms = done_ms - began_ms
    return Rebuilt(manifest, str(folder), took_ms, tuple(_warnings(what, took_ms)), answers)


def _answers(rows: Iterable[Any], what: Preflight) -> dict[int, dict[str, Any]]:
    """Answers by partition, with buckets added up. Raises InternalError for a missing answer."""
    parts: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        if row.answer is not None:  # rows of a verify in the same pass have none
            parts.setdefault(row.partition, []).append(json.loads(row.answer))
    # A partition without an answer would be an empty one in the manifest.
    if parts.keys() != set(what.ranges):
        raise InternalError(f"rebuild: partitions {sorted(set(what.ranges) - parts.keys())} gave no answer")
    found = {}
    for number, own in parts.items():
        own.sort(key=lambda one: one["facts"]["bucket"])  # buckets ascend by key, and so do their files
        buckets = [one["facts"]["bucket"] for one in own]
        if buckets != list(range(len(own))):
            raise InternalError(f"rebuild: partition {number} is not whole: {buckets}")
        found[number] = own[0] if len(own) == 1 else buckets_added_up(own)
    return found


def buckets_added_up(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """A partition's answer from its buckets, in key order: their files are disjoint and ascend, as if of one task."""
    digests = {
        name: None if parts[0][name] is None else sum((Digest.from_hex(one[name]) for one in parts), Digest()).hex()
        for name in ("digest", "read_back")
    }
    counted = {name: sum(one[name] for one in parts) for name in ("superseded", "tombstones", "expired")}
    files = [file for one in parts for file in one["files"]]
    seen = [RecordCounts(**one["seen"]) for one in parts]
    return {"facts": parts[0]["facts"], **counted, **digests, "files": files, "seen": asdict(sum(seen, RecordCounts()))}


def check_target(folder: Folder) -> None:
    """Refuse a folder that holds other files than those left by an interrupted rebuild."""
    for one in folder.list():
        if one.name == FILE_NAME:
            raise InvalidRequest(f"{folder} holds a manifest already: name a new folder, or remove that one yourself")
        if not is_leftover(one.name):
            raise InvalidRequest(f"{folder} is not empty (it holds {one.name}): name a new folder")


def is_leftover(name: str) -> bool:
    """Whether an interrupted rebuild may have left this file: rows, or a manifest under its temporary name."""
    return FILE.fullmatch(name) is not None or (name != FILE_NAME and written_name(name) == FILE_NAME)


def orphans(folder: Folder) -> list[StoredFile]:
    """Files that the folder's manifest does not name: those of attempts that failed or were killed."""
    from standfast.restore.files.manifest import parse_manifest

    raw = folder.read(FILE_NAME)
    named = parse_manifest(raw, f"{folder}/{FILE_NAME}").file_names() if raw is not None else frozenset()
    return [one for one in folder.list() if is_leftover(one.name) and one.name not in named]


def _writing(job: RebuildJob) -> Mapper:
    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        attempt = attempt_of()
        for facts, own in partitions_of(batches, job.shape):
            yield _answer(facts.partition, write_partition(job, facts, own, attempt))

    return write


def _answer(partition: int, answer: dict[str, Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"partition": [partition], "answer": [json.dumps(answer)]}, schema=ANSWER)


def write_partition(
    job: RebuildJob, facts: PartitionFacts, batches: Iterable[pa.RecordBatch], attempt: int = 0
) -> dict[str, Any]:
    """Fold one sorted partition, or bucket, and write its files; returns its answer for the manifest as JSON values."""
    with PartitionWriter(job, facts, attempt) as writer:
        for _ in writer.tapped(batches):
            pass
        return writer.finish()


class PartitionWriter:
    """Writes the files of a partition or bucket from its passing batches, so that a merge can read these as well."""

    def __init__(self, job: RebuildJob, facts: PartitionFacts, attempt: int = 0) -> None:
        self._job = job
        self._facts = facts
        self._counts = Counts()
        self._seen = RecordCounts()
        # Facts of all records: the rebuild goes to the log's end, also where a compared store's position lies below.
        self._fold = fold_rows(job.shape, facts.at_end, self._counts)
        self._files = _Files(job, facts.partition, attempt)
        spec = job.shape.spec
        # Batches also hold refused records above the compared store's position, as signs of a later record of a key:
        # they are no rows of the rebuild.
        self._retention_ms = spec.kept_ms if spec.traits.versions and facts.whole is not None else None

    def __enter__(self) -> PartitionWriter:
        self._files.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._files.__exit__(*error)

    def tapped(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The same batches; each is written when the caller takes it."""
        for batch in batches:
            self._write(batch)
            yield batch

    def _write(self, batch: pa.RecordBatch) -> None:
        if self._retention_ms is not None:
            kept = numbers(batch, "timestamp") >= numbers(batch, "observed") - self._retention_ms
            if not kept.all():
                self._counts.expired += len(kept) - int(kept.sum())
                batch = batch.filter(pa.array(kept))
        if batch.num_rows:
            self._seen += RecordCounts.of(batch)
            for part in self._fold.fold(batch):
                self._files.add(part.run, part.family, part.keys, part.rows)

    def finish(self) -> dict[str, Any]:
        """Complete the files, after the last batch; returns the answer."""
        for part in self._fold.end():
            self._files.add(part.run, part.family, part.keys, part.rows)
        counts, done = self._counts, self._files.finish()
        return {
            "facts": asdict(replace(self._facts.at_end, bucket=self._facts.bucket)),
            "superseded": counts.superseded,
            "tombstones": counts.tombstones,
            "expired": counts.expired + self._facts.refused,
            "digest": counts.digest.hex(),
            "read_back": self._files.digest(self._facts.at_end).hex() if self._job.read_back else None,
            "seen": asdict(replace(self._seen, keys=counts.keys)),
            "files": plain(done),
        }


@dataclass(frozen=True, slots=True)
class RecordCounts:
    """Counts of the records that a store took, for the inspection. Times in ms, -1: none."""

    records: int = 0
    tombstones: int = 0
    keys: int = 0
    bytes: int = 0
    value_max_bytes: int = 0
    first_ms: int = -1
    last_ms: int = -1

    @classmethod
    def of(cls, batch: pa.RecordBatch) -> RecordCounts:
        """Counts of one batch that is not empty; the fold counts keys."""
        stamps, value_bytes = numbers(batch, "timestamp"), lengths(batch.column("value"))
        size = int(value_bytes.sum()) + int(lengths(batch.column("key")).sum())
        times = int(stamps.min()), int(stamps.max())
        return cls(batch.num_rows, batch.column("value").null_count, 0, size, int(value_bytes.max()), *times)

    def __add__(self, other: RecordCounts) -> RecordCounts:
        return RecordCounts(
            self.records + other.records,
            self.tombstones + other.tombstones,
            self.keys + other.keys,
            self.bytes + other.bytes,
            max(self.value_max_bytes, other.value_max_bytes),
            min((one.first_ms for one in (self, other) if one.records), default=-1),
            max(self.last_ms, other.last_ms),
        )


class _Files:
    """Files of one partition: one open file for each run of ascending keys, completed at its size."""

    def __init__(self, job: RebuildJob, partition: int, attempt: int) -> None:
        self._folder = Folder(job.folder)
        self._job = job
        self._prefix = f"{partition}-{job.run}-{attempt}"
        self._open: dict[str, tuple[str, SstWriter]] = {}
        self._done: list[ManifestFile] = []
        self._count = 0
        self._scratch: Path | None = None

    def __enter__(self) -> _Files:
        if self._folder.local is None:  # RocksDB writes real files only
            self._scratch = Path(tempfile.mkdtemp(prefix="standfast-rebuild-"))
        return self

    def __exit__(self, *_: object) -> None:
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)

    def add(self, run: str, family: str, keys: list[bytes], rows: list[bytes]) -> None:
        """Append rows of one run; their keys follow those of the calls before."""
        if not keys:
            return
        if run not in self._open:
            where = self._scratch or self._folder.local
            assert where is not None
            # Opened with the first row: an SST file without rows is an error.
            self._open[run] = (family, SstWriter(where / f"{self._prefix}-{self._count}.sst"))
            self._count += 1
        writer = self._open[run][1]
        writer.add(keys, rows)
        if writer.size_bytes >= self._job.file_bytes:
            self._complete(run)

    def finish(self) -> list[ManifestFile]:
        """Complete all open files."""
        for run in sorted(self._open):
            self._complete(run)
        return self._done

    def _complete(self, run: str) -> None:
        family, writer = self._open.pop(run)
        writer.finish()
        path = writer.path
        found = ManifestFile(
            name=path.name,
            family=family,
            bytes=path.stat().st_size,
            entries=writer.entries,
            first_key=writer.first_key.hex(),
            last_key=writer.last_key.hex(),
            sha256=sha256_of(path),
            deletes=0,  # a rebuilt store starts empty, so that tombstones are dropped
        )
        if self._scratch is None:
            sync(path)  # before the manifest names it
        else:
            self._folder.put(path, path.name)
            if not self._job.read_back:  # scratch space of one file at a time is enough
                with contextlib.suppress(FileNotFoundError):
                    path.unlink()
        self._done.append(found)

    def digest(self, facts: PartitionFacts) -> Digest:
        """Digest of the rows that a store reads from the completed files."""
        where = self._scratch or self._folder.local
        assert where is not None
        scratch = Path(tempfile.mkdtemp(prefix="standfast-rebuild-"))
        try:
            # An ingest and the store's own reads, as in the instance that will take the files.
            engine = RocksEngine(scratch / "rows", shared=RocksShared(MEMORY_BYTES))
            try:
                ingest_files(engine, link_files(where, self._done, scratch / "linked"))
                store = view(engine, self._job.shape.spec, StoreTimes(facts.observed_ms, facts.sequence))
                return digest_rows(rows_in_order(store))
            finally:
                engine.close()
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def ingest_files(engine: RocksEngine, files: Iterable[tuple[str, Path]]) -> None:
    """Ingest (family, file) pairs into an empty engine."""
    by_family: dict[str, list[Path]] = {}
    for family, path in files:
        by_family.setdefault(family, []).append(path)
    for family, paths in by_family.items():
        engine.create_family(family)
        engine.ingest(family, paths)


def _partition(answer: Mapping[str, Any], start: int, end: int, converge: int) -> ManifestPartition:
    facts = answer["facts"]
    files = fit(answer["files"], tuple[ManifestFile, ...])
    return ManifestPartition(
        partition=facts["partition"],
        start=start,
        end=end,
        converge_offset=max(end, converge),
        files=files,
        observed_ms=facts["observed_ms"],
        sequence=facts["sequence"],
        records=facts["records"],
        tombstones=answer["tombstones"],
        superseded=answer["superseded"],
        expired=answer["expired"],
        skipped=facts["skipped"],
        entries=sum(one.entries for one in files),
        digest=answer["digest"],
    )


def _converge(log: Log, what: Preflight) -> dict[int, int]:
    """Ends of the log after the job. Raises StateLost if the topic was recreated or truncated meanwhile."""
    # Compaction during the job may remove a record because of a newer one beyond the range: the rows equal the log only
    # from these ends on.
    info = log.admin.describe_topic(what.topic)
    if info is None or info.topic_id != what.info.topic_id:
        raise StateLost(f"{what.topic} was recreated while it was read: rebuild again", reason="topic-recreated")
    reader = log.reader()
    try:
        bounds = reader.bounds([TopicPartition(what.topic, number) for number in what.ranges])
    finally:
        reader.close()
    for source, span in bounds.items():
        if span.end < what.ranges[source.partition].end:
            raise StateLost(f"{source} lost records while it was read: rebuild again", reason="position-ahead")
    return {source.partition: span.end for source, span in bounds.items()}


def _warnings(what: Preflight, elapsed_ms: int) -> Iterator[str]:
    kept_ms = what.info.policy.delete_retention_ms
    # A delete may expire while its value is still to be read: the key would come back.
    if "compact" in what.info.policy.cleanup and 0 <= kept_ms < 2 * elapsed_ms:
        yield (
            f"the job took {duration_text(elapsed_ms)} and {what.topic} keeps tombstones for {time_text(kept_ms)} "
            "(delete.retention.ms): a delete may have been missed; raise it above twice the time of a rebuild"
        )
    if what.truncated:
        yield f"records at the head of {what.topic} were gone: rows that were last written there are missing"
