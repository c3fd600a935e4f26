"""Begins a task without local state with its newest usable snapshot, before its stores are opened.

    directory without a database ──> snapshots, the newest first: fits the log? ──> files ──> opened as local state
                                                      none, or no answer ──> the changelogs, from their beginnings

Rules of this file: it never fails an opening. The restore plan judges the snapshot's positions before the download, and
the opened stores again, as any local state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from standfast.replication.lease.progress import WORK, LeaseProgress
from standfast.replication.log import LogReader
from standfast.replication.offsets import TaskId, TopicPartition
from standfast.restore.plan import LogState
from standfast.restore.snapshot.manifest import Snapshot
from standfast.restore.snapshot.opening import open_storage
from standfast.restore.snapshot.planning import Judged, judge
from standfast.restore.snapshot.policy import SnapshotPolicy
from standfast.store.clock import Clock
from standfast.store.errors import StandfastError
from standfast.store.log import as_event, logger
from standfast.store.rocks.engine import RocksShared
from standfast.store.specs import StoreSpec
from standfast.store.task.state_dir import StateDir
from standfast.stream.snapshots.counts import NONE, RESTORED, UNANSWERED, SnapshotCounts

if TYPE_CHECKING:
    from standfast.restore.snapshot.fetch import Restored

STEP_S = 0.25
PATIENCE_S = 20  # the changelogs have the same rows, so a storage that is away must not delay a task for long


class FromSnapshot:
    """The snapshots of an application, for the openings of one session."""

    def __init__(
        self,
        app: str,
        policy: SnapshotPolicy,
        state_dir: StateDir,
        shared: RocksShared,
        reader: LogReader,
        *,
        clock: Clock,
        counts: SnapshotCounts,
        progress: LeaseProgress,
    ) -> None:
        self.app = app
        self._state_dir = state_dir
        self._shared = shared
        self._reader = reader
        self._clock = clock
        self._counts = counts
        self._progress = progress
        self._storage = open_storage(policy.to, app, patience_s=PATIENCE_S)
        counts.restores.update(dict.fromkeys((RESTORED, NONE, UNANSWERED), 0))

    def begin(
        self, task: TaskId, specs: Sequence[StoreSpec], logs: Callable[[], Mapping[str, LogState]]
    ) -> Snapshot | None:
        """Put a snapshot in the place of a missing directory; `logs` reads the state of the task's changelogs by store.

        Returns it, or None.
        """
        from standfast.restore.snapshot.fetch import holds_database, restore_task

        target = self._state_dir.task_path(str(task))
        if holds_database(target) or all(spec.engine == "memory" for spec in specs):
            return None
        # Read before the storage: of an empty log no snapshot can be judged, and none is needed.
        states = logs()
        whole = sum(state.stop - state.begin for state in states.values())
        if not whole:
            return None  # nothing was ever logged, or nothing is left that a snapshot could be checked against
        definitions = {spec.name: spec.placed_definition() for spec in specs}
        try:
            done = self._waited(
                partial(
                    restore_task,
                    self._storage,
                    str(task),
                    target,
                    self._state_dir.copying_path(str(task)),
                    self._shared,
                    judge=lambda snapshot: self._judge(snapshot, task, definitions, states),
                )
            )
        except StandfastError as error:
            self._counts.restores[UNANSWERED] += 1
            logger.warning(
                "task %s is restored from its changelogs alone, its snapshots could not be read: %s",
                task,
                error,
                extra=as_event("snapshots_unread", task=task),
            )
            return None
        self._counts.restores[NONE if done.snapshot is None else RESTORED] += 1
        if done.snapshot is not None:
            logger.info(
                "task %s begins with snapshot %s: %d bytes, at most %d of %d records left to read",
                task,
                done.snapshot.name,
                done.snapshot.bytes,
                done.tail,
                whole,
                extra=as_event("snapshot_restored", task=task, snapshot=str(done.snapshot.name), tail=done.tail),
            )
        return done.snapshot

    def _waited(self, call: Callable[[], Restored]) -> Restored:
        """Call in another thread; meanwhile the opening counts as progress for the lease.

        A download may last longer than `max_stall_ms`, and each of its requests has a time-out of its own.
        """
        with ThreadPoolExecutor(1, "standfast-snapshot") as pool:
            running = pool.submit(call)
            while True:
                done, _ = wait([running], STEP_S)
                self._progress.step(WORK)
                if done:
                    return running.result()

    def _judge(
        self,
        snapshot: Snapshot,
        task: TaskId,
        definitions: Mapping[str, Mapping[str, object]],
        states: Mapping[str, LogState],
    ) -> Judged:
        # Records of a leader epoch that ended below the position were lost by the log: the rows do not fit it.
        tags = {TopicPartition(at.topic, at.partition): at.tag for at in snapshot.cut.positions.values() if at.tag}
        known = {state.topic_partition for state in states.values()}
        ends = self._reader.epoch_ends({at: tag for at, tag in tags.items() if at in known})
        judged = {
            name: state
            if state.topic_partition not in ends
            else replace(state, diverged_at=ends[state.topic_partition])
            for name, state in states.items()
        }
        return judge(
            snapshot,
            app=self.app,
            task=str(task),
            definitions=definitions,
            logs=judged,
            now_ms=self._clock.wall_ms(),
        )
