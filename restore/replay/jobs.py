"""Jobs of a bulk restore, and the reports of the thread that does one.

    owner  ── Job ──> worker           in a queue: worker_pool.py
    owner  <── Progress* Run+ Done, or Failed ──

Rules of this file: values only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from standfast.replication.offsets import TopicPartition
from standfast.restore.files.manifest import ManifestPartition
from standfast.store.errors import StandfastError
from standfast.store.specs import StoreSpec


@dataclass(frozen=True, slots=True)
class Job:
    """Fold offsets start <= o < end of one changelog into runs; the last one ends at `end`, also without rows.

    topic_id        the topic as the owner knows it: offsets of a recreated one stand for other records
    drop_deletes    deletes of the first run may go, because the store has no rows below it
    budget_bytes    bytes of rows that the worker may hold; checked after every `fetch_records`
    spills_max      how often the rows may go to the disk before they become a run
    disk_floor_bytes    a run waits until it leaves so much disk free
    rocks_writer    all files are written by RocksDB's own writer
    """

    number: int
    spec: StoreSpec
    changelog: TopicPartition
    topic_id: str
    start: int
    end: int
    folder: Path
    budget_bytes: int
    fetch_records: int
    drop_deletes: bool = False
    disk_floor_bytes: int = 0
    spills_max: int = 0
    rocks_writer: bool = False

    @property
    def prefix(self) -> str:
        """Beginning of the names of this job's files."""
        return str(self.number)


@dataclass(frozen=True, slots=True)
class JobProgress:
    """The worker's position, with the records and bytes of keys and values read since the last report."""

    number: int
    position: int
    records: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Run:
    """A run whose files are complete; `live_keys` of those that are not by RocksDB's own writer: see RowFold."""

    number: int
    partition: ManifestPartition
    live_keys: Mapping[str, bytes | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Done:
    """The job is done. `peak_bytes`: the most memory that its rows took; `phases_ns`: time by phase."""

    number: int
    peak_bytes: int
    phases_ns: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Failed:
    """The job ended with this error."""

    number: int
    error: StandfastError


Event: TypeAlias = JobProgress | Run | Done | Failed
