"""The writer of a DataFrame as a store: sorted files with a manifest, ready for `standfast restore --from`.

    df.write.format("standfast").mode("append").option("app", "board").option("storeName", "totals")
      .option("storeKind", "keyvalue").option("keySerde", "string").option("valueSerde", "int64")
      .option("partitionCount", 4).save("/data/totals")

    task      rows ──> files of each partition, in a scratch folder; only whole ones are copied to the target
    driver    partitions that several tasks wrote are settled, then manifest.json, last of all

The table is the content of the store at a position of its changelog: with `log` the changelog's end at that moment,
without it the beginning, so that the whole changelog is applied on top.

Rules of this file: it removes only files of this write. A failed write leaves the target unchanged.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from standfast.replication import shapes
from standfast.replication.offsets import TopicPartition
from standfast.replication.tail.open_log import open_log
from standfast.restore.digest import Digest
from standfast.restore.files.manifest import FILE_NAME, Made, Manifest, ManifestPartition, dump_manifest
from standfast.restore.spark.folder import Folder, sync
from standfast.restore.spark.rebuild import check_target
from standfast.restore.spark.source import absolute
from standfast.restore.spark_table.encode import Encoder
from standfast.restore.spark_table.options import CheckedOptions, described_store, kept_definition
from standfast.restore.spark_table.runs import Builder, RunPart, builder_of, by_partition, disjoint, merged
from standfast.store.base.version import __version__
from standfast.store.clock import SystemClock
from standfast.store.errors import BadConfig, InvalidRequest, UnknownStore
from standfast.store.names import check_name
from standfast.store.rocks.sst import COMPRESSION
from standfast.store.rocks.sst_stream import rocksdict_version
from standfast.store.task.commit_record import StoreTimes

MEMORY_MB_DEFAULT = 256
EXAMPLE = '.option("app", "board").option("storeName", "totals").option("partitionCount", 4)'


@dataclass
class WrittenParts(WriterCommitMessage):
    """Parts that a task wrote."""

    parts: list[RunPart]


class StateWriter(DataSourceArrowWriter):
    """Writes one store to a new folder."""

    def __init__(self, given: CheckedOptions, schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise InvalidRequest('standfast overwrites no folder: use mode("append") and name a new one')
        self._given = given
        self._app = check_name("application", given.need("app", EXAMPLE))
        self._spec = described_store(given, given.need("storeName", EXAMPLE))
        self._definition = kept_definition(given, self._spec)
        self._partitions = given.number("partitionCount") or 0
        if self._partitions < 1:
            raise BadConfig([f"partitionCount is needed, of at least 1: that of the changelog, as in {EXAMPLE}"])
        if not self._definition.get("logging", True):
            raise BadConfig([f"store {self._spec.name!r} is not logged: no instance can import files of it"])
        self._schema = schema
        Encoder(schema, self._spec, self._partitions)  # refuses an unfit schema in the driver
        self._run = uuid.uuid4().hex[:12]
        self._target = Folder(given.place).address
        self._was_there = Folder(self._target).is_folder()  # an abort removes the folder only if this write made it
        self._log = None if given.text("log") is None else absolute(given.need("log", ""))
        # Both are refused before a task writes a file.
        check_target(Folder(self._target))
        self._positions()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenParts:
        """Files of one task's rows."""
        from pyspark import TaskContext

        context = TaskContext.get()
        attempt = context.taskAttemptId() if context is not None else 0
        encoder = Encoder(self._schema, self._spec, self._partitions)
        memory = (self._given.number("memoryMb") or MEMORY_MB_DEFAULT) << 20
        builders: dict[int, Builder] = {}
        scratch = Path(tempfile.mkdtemp(prefix="standfast-write-"))
        try:
            for batch in iterator:
                for number, rows in by_partition(encoder.rows(batch)).items():
                    if number not in builders:
                        # A task may have rows of every partition, so each gets a share.
                        builders[number] = builder_of(self._spec, scratch, number, memory // self._partitions)
                    builders[number].add(rows)
            parts = [builders[number].finish() for number in sorted(builders)]
            return WrittenParts([self._put(scratch, part, attempt) for part in parts])
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Settle partitions that several tasks wrote, then write the manifest."""
        by_number: dict[int, list[RunPart]] = {}
        for message in messages:
            assert isinstance(message, WrittenParts)
            for part in message.parts:
                by_number.setdefault(part.partition, []).append(part)
        parts = {number: self._whole(own) for number, own in by_number.items()}
        topic_id, ends = self._positions()
        folder = Folder(self._target)
        manifest = Manifest(
            app=self._app,
            store=self._spec.name,
            definition=self._definition,
            topic=self._spec.changelog_of(self._app),
            topic_id=topic_id,
            partition_count=self._partitions,
            partitions=tuple(_partition(number, ends[number], parts.get(number)) for number in range(self._partitions)),
            made=Made("table", SystemClock().wall_ms(), __version__, rocksdict_version(), COMPRESSION),
        )
        named = manifest.file_names()
        for one in [file.name for own in by_number.values() for part in own for file in part.files]:
            if one not in named:
                folder.remove(one)  # its segment had expired once all tasks' times were known
        folder.make()
        folder.write(FILE_NAME, dump_manifest(manifest).encode())

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Remove the files that this write put into the target."""
        folder = Folder(self._target)
        # By the names of this run: files of another write stay.
        own = re.compile(rf"[0-9]+-{self._run}-[0-9]+-[0-9]+\.sst")
        for one in list(folder.list()):
            if own.fullmatch(one.name):
                folder.remove(one.name)
        if folder.local is not None and not self._was_there:
            with contextlib.suppress(OSError):  # it was never made, or holds other files
                folder.local.rmdir()

    def _put(self, scratch: Path, part: RunPart, attempt: int) -> RunPart:
        """Copy a part's files to the target, under names that no other attempt has."""
        folder = Folder(self._target)
        folder.make()
        files = []
        for number, file in enumerate(part.files):
            name = f"{part.partition}-{self._run}-{attempt}-{number}.sst"
            folder.put(scratch / file.name, name)
            if folder.local is not None:
                sync(folder.local / name)
            files.append(shapes.replace(file, name=name))
        return replace(part, files=tuple(files))

    def _whole(self, parts: Sequence[RunPart]) -> RunPart:
        """One partition from the parts of all tasks."""
        if len(parts) == 1:
            return parts[0]
        files = tuple(file for part in parts for file in part.files)
        # Disjoint files hold no key twice, and rows of a plain store do not expire: nothing to read.
        if self._spec.traits.by_key and disjoint(files):
            digest = sum((part.digest for part in parts), Digest())
            return replace(parts[0], files=files, records=sum(part.records for part in parts), digest=digest)
        folder = Folder(self._target)
        if folder.local is not None:
            return merged(self._spec, folder.local, parts)
        scratch = Path(tempfile.mkdtemp(prefix="standfast-write-"))
        try:
            for file in files:
                folder.fetch(file.name, scratch / file.name)
            return merged(self._spec, scratch, parts)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def _positions(self) -> tuple[str, dict[int, int]]:
        """Id of the changelog and the offsets from which tailing goes on. Raises UnknownStore, InvalidRequest."""
        if self._log is None:
            return "", dict.fromkeys(range(self._partitions), 0)
        topic = self._spec.changelog_of(self._app)
        log = open_log(self._log)
        try:
            info = log.admin.describe_topic(topic)
            if info is None:
                raise UnknownStore(
                    f"the log {self._log} has no topic {topic}: check app and storeName, start the application once, "
                    "or leave log out"
                )
            if info.partitions != self._partitions:
                raise InvalidRequest(f"{topic} has {info.partitions} partitions, partitionCount is {self._partitions}")
            reader = log.reader()
            try:
                bounds = reader.bounds([TopicPartition(topic, number) for number in range(info.partitions)])
            finally:
                reader.close()
        finally:
            log.close()
        return info.topic_id, {at.partition: span.end for at, span in bounds.items()}


def _partition(number: int, end: int, part: RunPart | None) -> ManifestPartition:
    found = part or RunPart(number, (), StoreTimes(), 0)
    return ManifestPartition(
        partition=number,
        start=end,  # a table's rows are in no changelog
        end=end,
        converge_offset=end,
        files=found.files,
        observed_ms=found.times.observed_ms,
        sequence=found.times.sequence,
        records=found.records,
        tombstones=0,
        superseded=0,
        expired=found.expired,
        entries=sum(file.entries for file in found.files),
        digest=found.digest.hex(),
    )
