"""Makes snapshots of the tasks that run here, on a schedule or when asked.

    a task is due ──> checkpoint (links) ──> sha256 of new files ──> upload of files that are not there ──> prune

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
from typing import Protocol

from standfast.replication.offsets import TaskId
from standfast.restore.snapshot.checkpoint import Hashes, describe
from standfast.restore.snapshot.manifest import SnapshotFile
from standfast.restore.snapshot.names import position_of
from standfast.restore.snapshot.opening import open_storage
from standfast.restore.snapshot.planning import Retention
from standfast.restore.snapshot.policy import SnapshotPolicy
from standfast.store.arguments import INT64_MAX
from standfast.store.clock import Clock
from standfast.store.errors import Closed, InvalidRequest, StandfastError, Unavailable
from standfast.store.log import as_event, logger
from standfast.store.rocks.engine import RocksEngine, RocksShared
from standfast.store.task.state_dir import StateDir
from standfast.store.task.task_stores import TaskStores
from standfast.stream.snapshots.counts import FAILED, MADE, UNCHANGED, SnapshotCounts

THREAD = "standfast-snapshots"
TICK_S = 1.0
AGAIN_MS = 60_000  # after a failure, unless the schedule comes first
PRUNE_MS = 600_000
STOP_WAIT_S = 5.0
START_PATIENCE_S = 5
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
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.storage = open_storage(policy.to, app)
        counts.made.update(dict.fromkeys((MADE, UNCHANGED, FAILED), 0))  # series that exist from the start
        try:
            open_storage(policy.to, app, patience_s=START_PATIENCE_S).prove()
        except Unavailable as error:
            logger.warning("%s", error, extra=as_event("snapshots_unavailable", to=self.storage.where))

    def start(self) -> None:
        """Begin the schedule, if the policy has one."""
        if self.policy.every_ms is None and self.policy.every_records is None:
            return
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
        if not _on_disk(task):
            raise InvalidRequest(f"task {task_id} has no rows on disk: its stores are in memory, and the log has them")
        with self._lock:
            return self._create(task_id, self._kept_of(task_id, task))

    def round(self) -> None:
        """Make the snapshots that are due, then prune if the storage grew."""
        now_ms = self._clock.monotonic_ms()
        tasks = {task_id: task for task_id, task in self._tasks().items() if _on_disk(task)}
        # A task that comes back has other files, and may have another epoch.
        for gone in self._kept.keys() - tasks.keys():
            del self._kept[gone]
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
        from standfast.restore.snapshot.upload import upload

        task, epoch = kept.task, kept.task.epoch
        directory = self._state.copying_path(str(task_id))
        try:
            task.stores.checkpoint(directory)
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
        finally:
            # Links cost no space until compaction replaces the files that they name.
            shutil.rmtree(directory, ignore_errors=True)
        kept.position = snapshot.position
        kept.due_ms = self._clock.monotonic_ms() + (self.policy.every_ms or 0)
        self._counts.made[MADE if done.new else UNCHANGED] += 1
        self._counts.uploaded_bytes += done.uploaded_bytes
        self._counts.at_ms[str(task_id)] = self._clock.wall_ms()
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
        return str(snapshot.name)

    def _fail(self, task_id: TaskId, kept: _Kept, error: StandfastError) -> None:
        self._counts.made[FAILED] += 1
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


def _on_disk(task: RunningTask) -> bool:
    return isinstance(task.stores.engine, RocksEngine)


def _place(task: RunningTask) -> int:
    """The position in the name of a snapshot made now; memory stores have positions in the cut, too."""
    cut = task.stores.cut
    return position_of((at.offset for at in cut.positions.values()), cut.sources.values())
