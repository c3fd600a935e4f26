"""Makes snapshots of the tasks that run here, on a schedule or when asked.

    a task is due ──> checkpoint (links) ──> sha256 of new files ──> upload of files that are not there ──> prune
    every LIST_MS, and after each change ──> names in the storage, and new manifests ──> the listing for status and page

Rules of this file: a thread of its own, that nothing waits for: a storage that is away costs a warning, a count and a
later attempt, and processing goes on. The checkpoint alone touches a task, and any thread may make it. The cut comes
from the checkpoint's database, so rows and cut are of one moment whatever the application does meanwhile.
"""

from __future__ import annotations

import shutil
import threading
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from standfast.replication.offsets import TaskId
from standfast.restore.snapshot.catalogue import read_all
from standfast.restore.snapshot.checkpoint import Hashes, describe
from standfast.restore.snapshot.manifest import Snapshot, SnapshotFile
from standfast.restore.snapshot.names import TASKS, SnapshotName, name_of_key, position_of
from standfast.restore.snapshot.opening import open_storage
from standfast.restore.snapshot.planning import Kept, Retention
from standfast.restore.snapshot.policy import SnapshotPolicy
from standfast.store.arguments import INT64_MAX
from standfast.store.clock import Clock
from standfast.store.errors import Closed, Corruption, InvalidRequest, StandfastError, Unavailable
from standfast.store.log import as_event, logger
from standfast.store.rocks.engine import RocksEngine, RocksShared
from standfast.store.task.state_dir import StateDir
from standfast.store.task.task_stores import TaskStores
from standfast.stream.snapshots.counts import FAILED, LISTING, MADE, UNCHANGED, SnapshotCounts, StoredSnapshot

THREAD = "standfast-snapshots"
TICK_S = 1.0
AGAIN_MS = 60_000  # after a failure, unless the schedule comes first
PRUNE_MS = 600_000
LIST_MS = 300_000
STOP_WAIT_S = 5.0
START_PATIENCE_S = 5
ERROR_SHOWN_MAX = 400
SHARES = 1_000  # of an interval: a task's first snapshot comes after its share
MEMORY_BYTES = 4 << 20  # for reading the record of a checkpoint


class RunningTask(Protocol):
    """An active task that runs here."""

    @property
    def epoch(self) -> int: ...
    @property
    def stores(self) -> TaskStores: ...


@dataclass(slots=True)
class _Kept:
    """The schedule of one task's opening: when it is due, and the position from which records count."""

    task: RunningTask
    due_ms: int
    position: int
    again_ms: int = 0
    hashes: Hashes = field(default_factory=dict)


class SnapshotKeeper:
    """The snapshots of one session."""

    def __init__(
        self,
        app: str,
        policy: SnapshotPolicy,
        state: StateDir,
        tasks: Callable[[], Mapping[TaskId, RunningTask]],
        *,
        clock: Clock,
        counts: SnapshotCounts,
    ) -> None:
        """`tasks` gives the active tasks that run now.

        Raises BadConfig for a storage without put-if-absent; one that does not answer is asked again later."""
        self.app = app
        self.policy = policy
        self._state = state
        self._tasks = tasks
        self._clock = clock
        self._counts = counts
        self._shared = RocksShared(MEMORY_BYTES)
        self._kept: dict[TaskId, _Kept] = {}
        self._lock = threading.Lock()  # one snapshot at a time: a call may come beside the schedule
        self._pacing = threading.Lock()
        self._free_ms = 0.0  # when the sent bytes are within the limit again
        self._pruned_ms: int | None = None
        self._list_ms = 0  # when the storage is listed again
        self._listed: dict[SnapshotName, StoredSnapshot] = {}
        self._listed_tasks: frozenset[str] = frozenset()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.storage = open_storage(policy.to, app)
        counts.made.update(dict.fromkeys((MADE, UNCHANGED, FAILED), 0))  # series that exist from the start
        counts.storage = self.storage.where
        try:
            open_storage(policy.to, app, patience_s=START_PATIENCE_S).prove()
        except Unavailable as error:
            logger.warning("%s", error, extra=as_event("snapshots_unavailable", to=self.storage.where))

    def start(self) -> None:
        """Begin the schedule, if the policy has one, and the listing of the storage."""
        self._thread = threading.Thread(target=self._run, name=THREAD, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the schedule; an upload under way ends after its file, or is left alone: it disturbs no next owner."""
        self._stop.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(STOP_WAIT_S)

    def create(self, task_id: TaskId, task: RunningTask) -> str:
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

    def wall_ms(self) -> int:
        """The session's wall clock, in milliseconds."""
        return self._clock.wall_ms()

    def monotonic_ms(self) -> int:
        """The session's monotonic clock, in milliseconds."""
        return self._clock.monotonic_ms()

    def wait(self, wait_ms: int) -> None:
        """Wait for so many milliseconds, or until the session stops."""
        self._stop.wait(wait_ms / 1_000)

    def prune(self) -> None:
        """Remove snapshots and checkpoints that the policy keeps no more; an error of the storage is only logged."""
        self._prune(self._clock.monotonic_ms())

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
        if made and (self._pruned_ms is None or now_ms - self._pruned_ms >= self._prune_interval_ms()):
            self._prune(now_ms)
        here = frozenset(map(str, tasks))
        if made or now_ms >= self._list_ms or here != self._listed_tasks:
            self._list(now_ms, here)

    def _list(self, now_ms: int, tasks: frozenset[str]) -> None:
        """List the snapshots of the tasks that run here; a manifest never changes, so each is read once."""
        self._list_ms = now_ms + LIST_MS
        self._listed_tasks = tasks
        if not tasks:
            self._counts.stored = ()
            return
        try:
            found = {name: one for one in self.storage.list(TASKS) if (name := name_of_key(one.key)) is not None}
            # Of other tasks their own instances show the snapshots.
            wanted = {name: one for name, one in found.items() if name.task in tasks}
            new = read_all(self.storage, (one for name, one in wanted.items() if name not in self._listed))
        except StandfastError as error:
            if LISTING not in self._counts.errors:  # the page shows it from now on: one line is enough
                logger.warning("snapshots cannot be listed: %s", error, extra=as_event("snapshots_unlisted"))
            self._note_error(LISTING, error)
            return
        self._listed = {name: one for name, one in self._listed.items() if name in wanted}
        self._listed |= {name: _stored(one) for name, one in new.items() if isinstance(one, Kept)}
        self._counts.stored = tuple(one for _, one in sorted(self._listed.items(), reverse=True))
        self._counts.listed_ms = self._clock.wall_ms()
        # A manifest that cannot be read is tried again with the next listing.
        broken = [f"{name}: {fault}" for name, fault in sorted(new.items()) if isinstance(fault, str)]
        if broken:
            self._note_error(LISTING, Corruption("; ".join(broken[:3])))
        else:
            self._counts.errors.pop(LISTING, None)

    def _note_error(self, what: str, error: StandfastError) -> None:
        self._counts.errors[what] = (str(error)[:ERROR_SHOWN_MAX], self._clock.wall_ms())

    def _run(self) -> None:
        while not self._stop.wait(TICK_S):
            try:
                self.round()
            except Exception:  # noqa: BLE001 - the schedule must never end the session, whose data the log has
                self._counts.made[FAILED] += 1
                logger.exception("snapshots are tried again", extra=as_event("snapshot_failed", to=self.storage.where))

    def _kept_of(self, task_id: TaskId, task: RunningTask) -> _Kept:
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
            shutil.rmtree(directory, ignore_errors=True)
        kept.due_ms = self._clock.monotonic_ms() + (self.policy.every_ms or 0)
        return str(snapshot.name)

    def cut(self, task_id: TaskId, task: RunningTask) -> Path:
        """Copy the files of a running task by links; the caller stores them with `store`, and removes the folder."""
        directory = self._state.copying_path(str(task_id))
        try:
            task.stores.checkpoint(directory)
        except BaseException:
            shutil.rmtree(directory, ignore_errors=True)
            raise
        return directory

    def store(self, task_id: TaskId, task: RunningTask, epoch: int, directory: Path) -> Snapshot:
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
        self._stop.wait((begin_ms - now_ms) / 1_000)

    def _prune_interval_ms(self) -> int:
        return min(PRUNE_MS, self.policy.every_ms or PRUNE_MS)

    def _prune(self, now_ms: int) -> None:
        from standfast.restore.snapshot.prune import prune

        self._pruned_ms = now_ms
        retention = Retention(self.policy.keep, self.policy.keep_ms)
        try:
            prune(self.storage, retention, clock=self._clock, grace_ms=self.policy.grace_ms)
        except StandfastError as error:
            logger.warning("old snapshots stay for now: %s", error, extra=as_event("snapshots_unpruned"))


def _stored(kept: Kept) -> StoredSnapshot:
    one = kept.snapshot
    return StoredSnapshot(str(one.name), one.task, one.epoch, one.position, one.bytes, len(one.files), kept.modified_ms)


def on_disk(task: RunningTask) -> bool:
    """Whether a task has files: one whose stores are all in memory, or that has none, has no snapshot."""
    return isinstance(task.stores.engine, RocksEngine)


def _place(task: RunningTask) -> int:
    """The position in the name of a snapshot made now; memory stores have positions in the cut, too."""
    cut = task.stores.cut
    return position_of((at.offset for at in cut.positions.values()), cut.sources.values())
