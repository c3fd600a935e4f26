"""Makes snapshots of the tasks that run here, on a schedule or when asked.

    a task is due ──> checkpoint (links) ──> sha256 of new files ──> upload of files that are not there ──> care.py

Rules of this file: a thread of its own, that nothing waits for: a storage that is away costs a warning, a count and a
later attempt, and processing goes on. The checkpoint alone touches a task, and any thread may make it. The cut comes
from the checkpoint's database, so rows and cut are of one moment whatever the application does meanwhile.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from standfast.replication.offsets import TaskId
from standfast.restore.snapshot.checkpoint import Hashes, describe
from standfast.restore.snapshot.manifest import Snapshot, SnapshotFile
from standfast.restore.snapshot.names import position_of
from standfast.restore.snapshot.policy import SnapshotPolicy
from standfast.store import files
from standfast.store.arguments import INT64_MAX
from standfast.store.clock import Clock
from standfast.store.errors import Closed, InvalidRequest, StandfastError
from standfast.store.log import as_event, logger
from standfast.store.process.threads import THREADS, Threads
from standfast.store.rocks.opening import RocksShared
from standfast.store.task.state_dir import StateDir
from standfast.store.task.task_stores import TaskStores
from standfast.stream.snapshot_counts import FAILED, MADE, UNCHANGED, SnapshotCounts
from standfast.stream.snapshots.care import StorageCare

AGAIN_MS = 60_000  # after a failure, unless the schedule comes first
SHARES = 1_000  # of an interval: a task's first snapshot comes after its share
MEMORY_BYTES = 4 << 20  # for reading the record of a checkpoint


class KeeperTask(Protocol):
    """An active task that runs here."""

    @property
    def epoch(self) -> int: ...
    @property
    def stores(self) -> TaskStores: ...


@dataclass(slots=True)
class _Kept:
    """The schedule of one task's opening: when it is due, and the position from which records count."""

    task: KeeperTask
    due_ms: int
    position: int
    again_ms: int = 0
    hashes: Hashes = field(default_factory=dict)


class SnapshotKeeper(StorageCare):
    """The snapshots of one session."""

    def __init__(
        self,
        app: str,
        policy: SnapshotPolicy,
        state: StateDir,
        tasks: Callable[[], Mapping[TaskId, KeeperTask]],
        *,
        clock: Clock,
        counts: SnapshotCounts,
        cares: bool = True,
        threads: Threads = THREADS,
    ) -> None:
        """`tasks` gives the active tasks that run now; the rest is as in StorageCare."""
        super().__init__(app, policy, clock=clock, counts=counts, cares=cares, threads=threads)
        self._state = state
        self._tasks = tasks
        self._shared = RocksShared(MEMORY_BYTES)
        self._kept: dict[TaskId, _Kept] = {}
        self._lock = threading.Lock()  # one snapshot at a time: a call may come beside the schedule
        self._pacing = threading.Lock()
        self._free_ms = 0.0  # when the sent bytes are within the limit again

    def create(self, task_id: TaskId, task: KeeperTask) -> str:
        """Make a snapshot of a running active task now; returns its name.

        Raises InvalidRequest for one without rows on disk, Unavailable.
        """
        if not on_disk(task):
            raise InvalidRequest(f"task {task_id} has no rows on disk: its stores are in memory, and the log has them")
        with self._lock:
            try:
                name = self._create(task_id, self._kept_of(task_id, task))
            except StandfastError as error:
                self._note_error(str(task_id), error)
                raise
        self._list_ms = self._clock.monotonic_ms()  # the listing shows it with the next round
        return name

    def round(self) -> None:
        """Make the snapshots that are due, prune if the storage grew, then list it if that is due."""
        now_ms = self._clock.monotonic_ms()
        tasks = {task_id: task for task_id, task in self._tasks().items() if on_disk(task)}
        # A task that comes back has other files, and may have another epoch.
        with self._lock:
            for gone in self._kept.keys() - tasks.keys():
                del self._kept[gone]
                self._counts.errors.pop(str(gone), None)
        made = False
        for task_id, task in sorted(tasks.items()):
            kept = self._kept_of(task_id, task)
            if self._stop.is_set() or not self._is_due(kept, now_ms):
                continue
            try:
                with self._lock:
                    self._create(task_id, kept)
                made = True
            except StandfastError as error:
                if self._stop.is_set() or self._tasks().get(task_id) is not task:
                    continue  # it left meanwhile: its new owner makes snapshots
                self._fail(task_id, kept, error)
        self.care(now_ms, frozenset(map(str, tasks)), grew=made)

    def _kept_of(self, task_id: TaskId, task: KeeperTask) -> _Kept:
        kept = self._kept.get(task_id)
        if kept is None or kept.task is not task:
            # Spread over the interval, by time and by records: all tasks of an instance open at once, and after a
            # take-over each of their first snapshots is a full one.
            share = zlib.crc32(str(task_id).encode()) % SHARES
            due_ms = self._clock.monotonic_ms() + (self.policy.every_ms or 0) * share // SHARES
            ahead = (self.policy.every_records or 0) * share // SHARES
            kept = self._kept[task_id] = _Kept(task, due_ms, _place(task) - ahead)
        return kept

    def _is_due(self, kept: _Kept, now_ms: int) -> bool:
        every_ms, every_records = self.policy.every_ms, self.policy.every_records
        # A task without a commit has no cut that a snapshot could name.
        if now_ms < kept.again_ms or not _place(kept.task):
            return False
        if every_records is not None and _place(kept.task) - kept.position >= every_records:
            return True
        return every_ms is not None and now_ms >= kept.due_ms

    def _create(self, task_id: TaskId, kept: _Kept) -> str:
        task, epoch = kept.task, kept.task.epoch
        directory = self.cut(task_id, task)
        try:
            snapshot = self._store(task_id, kept, epoch, directory)
        finally:
            # Links cost no space until compaction replaces the files that they name.
            files.clear(directory)
        kept.due_ms = self._clock.monotonic_ms() + (self.policy.every_ms or 0)
        return str(snapshot.name)

    def cut(self, task_id: TaskId, task: KeeperTask) -> Path:
        """Copy the files of a running task by links; the caller stores them with `store`, and removes the folder."""
        directory = self._state.copying_path(str(task_id))
        try:
            task.stores.checkpoint(directory)
        except BaseException:
            files.clear(directory)
            raise
        return directory

    def store(self, task_id: TaskId, task: KeeperTask, epoch: int, directory: Path) -> Snapshot:
        """Store the copy of a task that `cut` made under this epoch; returns its snapshot, which may have been there.

        Raises NothingCommitted, Unavailable.
        """
        with self._lock:
            return self._store(task_id, self._kept_of(task_id, task), epoch, directory)

    def _store(self, task_id: TaskId, kept: _Kept, epoch: int, directory: Path) -> Snapshot:
        from standfast.restore.snapshot.upload import upload

        snapshot = describe(
            directory,
            app=self.app,
            task=str(task_id),
            epoch=epoch,
            instance=self._state.instance_id,
            at_ms=self._clock.wall_ms(),
            shared=self._shared,
            hashes=kept.hashes,
        )
        done = upload(
            self.storage,
            snapshot,
            directory,
            clock=self._clock,
            grace_ms=self.policy.grace_ms,
            step=self._step,
            pace=None if self.policy.bytes_per_s is None else self._pace,
        )
        kept.position = snapshot.position
        self._counts.made[MADE if done.new else UNCHANGED] += 1
        self._counts.uploaded_bytes += done.uploaded_bytes
        self._counts.at_ms[str(task_id)] = self._clock.wall_ms()
        self._counts.errors.pop(str(task_id), None)
        if done.new:
            logger.info(
                "snapshot %s in %s: %d of %d files uploaded, %d of %d bytes",
                snapshot.name,
                self.storage.where,
                done.uploaded_files,
                len(snapshot.files),
                done.uploaded_bytes,
                snapshot.bytes,
                extra=as_event("snapshot_made", snapshot=str(snapshot.name), bytes=done.uploaded_bytes),
            )
        return done.snapshot

    def _fail(self, task_id: TaskId, kept: _Kept, error: StandfastError) -> None:
        self._counts.made[FAILED] += 1
        self._note_error(str(task_id), error)
        wait_ms = min(AGAIN_MS, self.policy.every_ms or AGAIN_MS)
        kept.again_ms = self._clock.monotonic_ms() + wait_ms
        logger.warning(
            "no snapshot of task %s, tried again in %d s: %s",
            task_id,
            wait_ms // 1_000,
            error,
            extra=as_event("snapshot_failed", task=task_id),
        )

    def _step(self, file: SnapshotFile) -> None:
        if self._stop.is_set():
            raise Closed("the session closes: the snapshot is left, and its files stay for the next one")

    def _pace(self, sent: int) -> None:
        """Wait until the bytes of all tasks that were sent before are within the limit; a close ends the wait."""
        limit = self.policy.bytes_per_s or INT64_MAX
        with self._pacing:
            now_ms = self._clock.monotonic_ms()
            begin_ms = max(self._free_ms, now_ms)
            self._free_ms = begin_ms + sent * 1_000 / limit
        self.threads.wait(self._stop, begin_ms - now_ms)


def on_disk(task: KeeperTask) -> bool:
    """Whether a task has files: one whose stores are all in memory, or that has none, has no snapshot."""
    return task.stores.engine.durable


def _place(task: KeeperTask) -> int:
    """The position in the name of a snapshot made now; memory stores have positions in the cut, too."""
    cut = task.stores.cut
    return position_of((at.offset for at in cut.positions.values()), cut.sources.values())
