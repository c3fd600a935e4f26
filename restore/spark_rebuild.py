"""Rebuild of a store on Spark: a changelog folded over offsets, as SST files with a manifest.

    preflight ──> source (one task a partition) ──> sort within the task ──> fold ──> SST files ──┐
                                                                                                  ▼
    the driver: partitions of the manifest from the tasks' answers, converge offsets, manifest.json, last of all

Nothing is shuffled. A file's name holds partition, run and task attempt, so that what a failed, killed or speculative
attempt leaves behind is never named by a manifest: an orphan, which `orphans` lists.

Rules of this file: tasks write files, the driver writes the manifest; neither removes anything but its own scratch. It
decides nothing of rows (`spark_rows`) or offsets (`preflight`).
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from standfast._version import __version__
from standfast.replication.log import Log
from standfast.replication.offsets import TopicPartition
from standfast.restore.digest import Digest
from standfast.restore.manifest import FILE_NAME, Made, Manifest, ManifestFile, ManifestPartition, dump_manifest
from standfast.restore.manifest_files import sha256_of
from standfast.restore.preflight import Preflight
from standfast.restore.spark_batches import Facts, StoreShape
from standfast.restore.spark_folder import Folder, Stored, sync
from standfast.restore.spark_frames import Mapper, OnTasks, Reading, run_partitions
from standfast.restore.spark_rows import Counts, fold_rows, partitions_of
from standfast.restore.spark_source import SourceName
from standfast.store.errors import InternalError, InvalidRequest, StateLost
from standfast.store.rocks_sst import COMPRESSION
from standfast.store.rocks_sst_stream import SstWriter, rocksdict_version

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILE_BYTES = 64 << 20
ANSWER = pa.schema([("partition", pa.int32()), ("answer", pa.string())])
ANSWER_DDL = "partition int, answer string"
FILE = re.compile(r"[0-9]+-[0-9a-f]{12}-[0-9]+-[0-9]+\.sst")


@dataclass(frozen=True, slots=True)
class RebuildJob:
    """What tasks are told."""

    shape: StoreShape
    folder: str
    run: str
    file_bytes: int = FILE_BYTES


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """A rebuild that is done. `warnings` are for people."""

    manifest: Manifest
    folder: str
    elapsed_ms: int
    warnings: tuple[str, ...] = ()

    @property
    def records(self) -> int:
        """Records read."""
        return sum(one.records for one in self.manifest.partitions)

    @property
    def digest(self) -> Digest:
        """Of the rows of all partitions."""
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
    on_tasks: OnTasks | None = None,
) -> Rebuilt:
    """Write the store's rows at the ends of `what` to an empty folder.

    Raises InvalidRequest for a folder that holds something else, StateLost if the log changed meanwhile.
    """
    began_ms = now_ms()
    check_target(folder)
    folder.make()
    limits = {number: span.end for number, span in what.ranges.items()}
    shape = StoreShape(what.spec.name, what.spec.definition(), limits)
    job = RebuildJob(shape, folder.address, uuid.uuid4().hex[:12], file_bytes)
    reading = Reading(what, shape, source, connector_options or {})
    rows = run_partitions(spark, reading, _writing(job), ANSWER_DDL, on_tasks)
    answers = {row.partition: json.loads(row.answer) for row in rows}
    if answers.keys() != set(what.ranges):
        raise InternalError(f"rebuild: partitions {sorted(set(what.ranges) - answers.keys())} gave no answer")
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
    folder.write(FILE_NAME, dump_manifest(manifest).encode())
    return Rebuilt(manifest, str(folder), done_ms - began_ms, tuple(_warnings(what, done_ms - began_ms)))


def check_target(folder: Folder) -> None:
    """Refuse a folder that is not empty but for what a rebuild that was cut short left."""
    for one in folder.list():
        if one.name == FILE_NAME:
            raise InvalidRequest(f"{folder} holds a manifest already: name a new folder, or remove that one yourself")
        if not FILE.fullmatch(one.name):
            raise InvalidRequest(f"{folder} is not empty (it holds {one.name}): name a new folder")


def orphans(folder: Folder) -> list[Stored]:
    """Files of rebuilds that no manifest of the folder names: of attempts that failed or were killed."""
    from standfast.restore.manifest import parse_manifest

    raw = folder.read(FILE_NAME)
    named = parse_manifest(raw, f"{folder}/{FILE_NAME}").file_names() if raw is not None else frozenset()
    return [one for one in folder.list() if FILE.fullmatch(one.name) and one.name not in named]


def _writing(job: RebuildJob) -> Mapper:
    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        attempt = context.taskAttemptId() if context is not None else 0
        for facts, own in partitions_of(batches):
            yield _answer(facts.partition, write_partition(job, facts, own, attempt))

    return write


def _answer(partition: int, answer: dict[str, Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"partition": [partition], "answer": [json.dumps(answer)]}, schema=ANSWER)


def write_partition(
    job: RebuildJob, facts: Facts, batches: Iterable[pa.RecordBatch], attempt: int = 0
) -> dict[str, Any]:
    """Fold one sorted partition and write its files; what a manifest needs to know of it, as JSON values."""
    counts = Counts()
    fold = fold_rows(job.shape, facts, counts)
    with _Files(job, facts.partition, attempt) as files:
        for batch in batches:
            for part in fold.fold(batch):
                files.add(part.run, part.family, part.keys, part.rows)
        for part in fold.end():
            files.add(part.run, part.family, part.keys, part.rows)
        done = files.finish()
    return {
        "facts": asdict(facts),
        "superseded": counts.superseded,
        "tombstones": counts.tombstones,
        "expired": counts.expired,
        "digest": counts.digest.hex(),
        "files": [asdict(one) for one in done],
    }


class _Files:
    """Files of one partition: one open for each run of ascending keys, completed at its size."""

    def __init__(self, job: RebuildJob, partition: int, attempt: int) -> None:
        self._folder = Folder(job.folder)
        self._job = job
        self._prefix = f"{partition}-{job.run}-{attempt}"
        self._open: dict[str, tuple[str, SstWriter]] = {}
        self._done: list[ManifestFile] = []
        self._count = 0
        self._scratch: Path | None = None

    def __enter__(self) -> _Files:
        if self._folder.local is None:
            self._scratch = Path(tempfile.mkdtemp(prefix="standfast-rebuild-"))
        return self

    def __exit__(self, *_: object) -> None:
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)

    def add(self, run: str, family: str, keys: list[bytes], rows: list[bytes]) -> None:
        """Rows of one run, after those that came before."""
        if not keys:
            return
        if run not in self._open:
            where = self._scratch or self._folder.local
            assert where is not None
            self._open[run] = (family, SstWriter(where / f"{self._prefix}-{self._count}.sst"))
            self._count += 1
        writer = self._open[run][1]
        writer.add(keys, rows)
        if writer.size_bytes >= self._job.file_bytes:
            self._complete(run)

    def finish(self) -> list[ManifestFile]:
        """Complete all that are open."""
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
        )
        if self._scratch is None:
            sync(path)
        else:
            self._folder.put(path, path.name)
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
        self._done.append(found)


def _partition(answer: Mapping[str, Any], start: int, end: int, converge: int) -> ManifestPartition:
    facts = answer["facts"]
    files = tuple(ManifestFile(**one) for one in answer["files"])
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
        entries=sum(one.entries for one in files),
        digest=answer["digest"],
    )


def _converge(log: Log, what: Preflight) -> dict[int, int]:
    """Ends of the log after the job. Raises StateLost if the topic was made anew or cut off meanwhile."""
    info = log.admin.describe_topic(what.topic)
    if info is None or info.topic_id != what.info.topic_id:
        raise StateLost(f"{what.topic} was made anew while it was read: rebuild again", reason="topic-recreated")
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
    if "compact" in what.info.policy.cleanup and 0 <= kept_ms < 2 * elapsed_ms:
        yield (
            f"the job took {elapsed_ms} ms and {what.topic} keeps tombstones for {kept_ms} ms (delete.retention.ms): a "
            "delete may have been missed; raise it above twice the time of a rebuild"
        )
    if what.truncated:
        yield f"records at the head of {what.topic} were gone: rows that were last written there are missing"
