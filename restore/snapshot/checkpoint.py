"""A checkpoint of a task as a snapshot: its files with their sha256, and the cut that its database holds.

    describe   checkpoint directory ──> Snapshot
    read_cut   database ──> its record, as the database itself holds it: rows and cut are of one moment whatever runs
               beside the checkpoint

Rules of this file: reads only, and follows no link out of the directory.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from standfast.restore.files.manifest_files import sha256_of
from standfast.restore.snapshot.manifest import CutPosition, Snapshot, SnapshotCut, SnapshotFile, SnapshotMade
from standfast.store.base.version import __version__
from standfast.store.engine import DEFAULT_FAMILY
from standfast.store.errors import Corruption, InvalidRequest
from standfast.store.file_errors import told
from standfast.store.names import changelog_topic
from standfast.store.outside import new_id
from standfast.store.rocks.open_engine import open_engine
from standfast.store.rocks.opening import RocksShared
from standfast.store.task.commit_record import CUT_KEY, INGESTING_KEY, STORES_KEY, CommitRecord, decode_record

LEFT_OUT = frozenset({"STANDFAST", "SEAL", "LOCK", "LOG"})  # markers, which a restore writes itself, and locks
Hashes = dict[tuple[int, int, int], str]  # sha256 by inode, size and time of change: a table file never changes


class NothingCommitted(InvalidRequest):
    """The task has no commit yet, and so nothing that a snapshot could hold."""


class DatabaseCut:
    """The record of a database: its cut, and the definitions of its stores."""

    def __init__(self, record: CommitRecord, stores: Mapping[str, Mapping[str, Any]]) -> None:
        self.record = record
        self.stores = stores


def read_cut(directory: Path, shared: RocksShared) -> DatabaseCut:
    """The record of a closed database or checkpoint.

    Raises NothingCommitted for one without a record, Corruption for one with an unfinished import.
    """
    with closing(open_engine(directory, shared=shared, read_only=True)) as engine:
        raw, stores = engine.get(DEFAULT_FAMILY, CUT_KEY), engine.get(DEFAULT_FAMILY, STORES_KEY)
        if engine.get(DEFAULT_FAMILY, INGESTING_KEY) is not None:
            raise Corruption(f"{directory} holds an unfinished import of files: open the task, so that it is restored")
    where = str(directory)
    record = CommitRecord() if raw is None else CommitRecord.decode(raw, where)
    if not record.positions and not record.sources:  # an opened task has a record before its first commit
        raise NothingCommitted(f"{directory} holds no position of a task: nothing was committed in it yet")
    return DatabaseCut(record, {} if stores is None else decode_record(stores, where))


def cut_of(record: CommitRecord, topics: Mapping[str, str], partition: int) -> SnapshotCut:
    """The cut of a record for a manifest; `topics` are changelogs by store."""
    return SnapshotCut(
        positions={
            name: CutPosition(
                topic=topics.get(name, ""),
                partition=partition,
                topic_id=at.topic_id,
                offset=at.offset,
                leader_epoch=at.leader_epoch,
                tag=at.tag,
                at_ms=at.at_ms,
                marker=at.marker,
            )
            for name, at in sorted(record.positions.items())
        },
        sources=dict(record.sources),
        source_tags=dict(record.source_tags),
        stream_times=dict(record.stream_times),
        observed={name: times.observed_ms for name, times in sorted(record.stores.items())},
        epoch=record.epoch,
    )


def describe(
    directory: Path,
    *,
    app: str,
    task: str,
    epoch: int | None,
    instance: str,
    at_ms: int,
    shared: RocksShared,
    hashes: Hashes,
) -> Snapshot:
    """The manifest of a checkpoint.

    `epoch` is that of the task's writer, None: that of the last commit. `hashes` remembers table files.
    """
    from importlib.metadata import version  # forty modules, which a program without snapshots need not load

    found = read_cut(directory, shared)
    topics = {name: kept.get("source_topic") or changelog_topic(app, name) for name, kept in found.stores.items()}
    cut = cut_of(found.record, topics, int(task.rpartition("_")[2]))
    return Snapshot(
        id=new_id("snapshot", 32),
        app=app,
        task=task,
        epoch=found.record.epoch if epoch is None else epoch,
        position=cut.place,
        cut=cut,
        stores={name: dict(definition) for name, definition in sorted(found.stores.items())},
        memory_stores=tuple(sorted(name for name, kept in found.stores.items() if kept.get("engine") == "memory")),
        files=_files(directory, hashes),
        made=SnapshotMade(at_ms, instance, __version__, version("rocksdict")),
    )


def _files(directory: Path, hashes: Hashes) -> tuple[SnapshotFile, ...]:
    found, seen = [], {}
    with told("reading a checkpoint", directory):
        for path in sorted(directory.iterdir()):
            if path.name in LEFT_OUT or path.name.startswith("LOG.old"):
                continue
            if path.is_symlink() or not path.is_file():
                raise InvalidRequest(
                    f"{path} is no plain file: a snapshot follows no link, so put the file itself there"
                )
            status = path.stat()
            known = (status.st_ino, status.st_size, status.st_mtime_ns)
            sha = hashes.get(known) if path.suffix == ".sst" else None
            if sha is None:
                sha = sha256_of(path)
            if path.suffix == ".sst":
                seen[known] = sha
            found.append(SnapshotFile(path.name, status.st_size, sha))
    hashes.clear()  # files that are gone would be remembered for ever, and their inodes are used again
    hashes.update(seen)
    return tuple(found)
