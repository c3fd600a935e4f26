"""Restore and gate bookkeeping: how tasks become ready, and how standbys stay near the end.

    restore ──> restorer reads to the end ──> whole ──> committed offsets ──> RUNNING ──> gate: open when none lacks
    stand_by ──> tailer follows the end, while no active task restores ──> its set-aside copy is dropped

In Kafka Streams the `Restorer` is the ChangelogReader, and a task's `ChangelogApplier` its state updater.

Rules of this file: driven by the instance under the session's lock. It reports failed tasks and never reopens one;
it has the open tasks of the process, which the task manager adds and removes.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial

from standfast.replication.log import Committed, Group, OffsetsOpen
from standfast.replication.metadata_parts import with_pieces
from standfast.replication.offsets import TaskId, TopicPartition
from standfast.replication.progress import WORK, LeaseProgress
from standfast.replication.tail.tailer import Tailer, TailResult
from standfast.restore.gate import Gate
from standfast.restore.replay.restorer import Restorer, RestoreRound
from standfast.store.clock import Clock
from standfast.store.disk import DiskGuard, Room
from standfast.store.errors import Corruption, ListenerFailed, StandfastError, StateLost, Unavailable
from standfast.store.file_errors import NoRoom
from standfast.store.task.state_dir import StateDir
from standfast.stream.task.closing import Closings
from standfast.stream.task.opener import Ranges
from standfast.stream.task.start import Restore
from standfast.stream.task.states import TaskState
from standfast.stream.task.statistics import SessionCounters
from standfast.stream.task.task import Task
from standfast.stream.tasks.attempts import Attempts, Wait
from standfast.stream.tasks.life import Again, Lives

STANDBY_TICK_MS = 500
DISK_TICK_MS = 500
DISK_WRITING_TICK_MS = 50
PROMOTE = "promote"  # why a standby is restored to its end


class Readiness:
    """Brings the tasks of one instance to the end of their changelogs."""

    def __init__(
        self,
        restorer: Restorer,
        tailer: Tailer,
        gate: Gate,
        group: Group,
        state_dir: StateDir,
        disk: DiskGuard,
        *,
        clock: Clock,
        counters: SessionCounters,
        progress: LeaseProgress,
        closings: Closings,
        lives: Lives,
    ) -> None:
        self.restorer = restorer
        self.tailer = tailer
        self.gate = gate
        counters.restored_records = restorer.restored_records
        counters.restored_bytes = restorer.restored_bytes
        counters.restore_phases_ns = restorer.phases_ns
        counters.standby_records = tailer.applied_records
        self._group = group
        self._state_dir = state_dir
        self._disk = disk
        self._clock = clock
        self._counters = counters
        self.progress = progress
        self.lives = lives
        self.attempts = Attempts(lives, clock)
        self.closings = closings
        self.gives_away = False  # whether tasks that leave a full disk go to other instances, which wait for that
        self.tasks: dict[TaskId, Task] = {}  # the open tasks of the process
        self._gate_shut_ms = -1
        self._may_write = True  # in this round
        self._standbys_wait = False  # for active tasks of the instance in other processes
        self._next_standby_ms = 0
        self._next_disk_ms = 0

    @property
    def room(self) -> Room:
        """Whether the state directory's file system takes writes."""
        return self._disk.room

    def close_task(self, task: Task) -> None:
        """Close a task that has left; on a full disk its files a moment later, in a thread."""
        if self.gives_away and self.room.text:
            task.close(partial(self.closings.add, task.id))
        else:
            task.close()

    def close(self) -> None:
        """Release the readers, and wait for the tasks that are being closed."""
        with ExitStack() as last:  # in reverse, each step whatever the others raise
            for close in (self.closings.join, self.tailer.close, self.restorer.close):
                last.callback(close)

    def put_off(self, task: Task, why: Wait, again: Again) -> None:
        """Note a failed task for a later attempt."""
        if isinstance(why, NoRoom):
            self.room.refused(why)  # also of a thread that builds files
            self.remove(task.id, "no-room")  # its stores take no rows any more
        self.attempts.later(task.id, why, active=task.role == "active", again=again)

    def restore(self, task: Task, ranges: Ranges, *, local_counts: bool, started_ms: int, why: str) -> None:
        """Replay a task's missing records, behind the gate. Raises Unavailable, ListenerFailed, Corruption of a log."""
        self.progress.step(WORK)
        task.move(TaskState.RESTORING)
        if self._gate_shut_ms < 0:
            self._gate_shut_ms = started_ms
        self.gate.assigned([task.id])
        self.restorer.add(task.applier, ranges, self._clock.monotonic_ms())
        # Last: a task whose restore a signal handler prevented must not count as whole.
        task.restore = Restore(local_counts, started_ms, why)

    def stand_by(self, task: Task) -> None:
        """Follow the changelogs of a task, once every active one is restored. Raises Unavailable, ListenerFailed."""
        task.has_copy = bool(self._state_dir.aside(str(task.id)))
        task.move(TaskState.STANDBY)
        task.stores.restoring(False)  # a standby has no end of its restore
        self._allow_standbys()
        self.tailer.add(task.applier, task.applier.limited)

    def remove(self, task_id: TaskId, reason: str) -> None:
        """Stop reading for a task; its gate stays as it is."""
        self.restorer.remove(task_id, reason)
        self.tailer.remove(task_id, reason)

    def forget(self, task_id: TaskId) -> None:
        """Drop an active task that left or is opened again: the gate does not wait for it."""
        if task_id in self.gate:
            self.gate.revoked([task_id])
        self.lives.drop(task_id)
        self._note_gate()

    def keep_shut(self, task_id: TaskId, why: object) -> None:
        """Make the gate wait for a task that cannot be opened, and report why."""
        if task_id not in self.gate or task_id in self.gate.failures():
            self.gate.assigned([task_id])
        self.gate.failed(task_id, str(why))

    def join_gate(self, *, is_open: bool, standbys: bool) -> None:
        """Follow the gate of the instance, of which this process has some tasks, and whether its standbys may begin.

        Without the session's lock: the openings of many standbys must not delay it.
        """
        if is_open:
            self.gate.release()
        else:
            self.gate.hold()
        self._standbys_wait = not standbys

    def restore_round(self, now_ms: int) -> RestoreRound:
        """Replay some missing records. Below the disk's floor nothing is written this round; later rounds continue."""
        # A round writes 16 MiB at most, and so do the two or three rounds within DISK_WRITING_TICK_MS.
        if now_ms >= self._next_disk_ms:
            writes = bool(self.restorer.tasks or self.tailer.changelogs)
            self._next_disk_ms = now_ms + (DISK_WRITING_TICK_MS if writes else DISK_TICK_MS)
            self._disk.look()
            self._disk.judge(now_ms)
        self._may_write = not self._disk.full
        if not self._may_write:
            return RestoreRound()
        return self.restorer.poll_once(now_ms)

    def run_whole(self) -> tuple[int, dict[TaskId, StandfastError]]:
        """Run the restored tasks; also those for which the log did not answer last time.

        Returns the number of tasks that run now, and those whose listener or disk failed. A task whose source offsets
        another client committed, or whose directory lost commits, fails; its next opening decides.
        """
        whole = [
            task
            for task in self.tasks.values()
            if task.state is TaskState.RESTORING
            and task.restore is not None
            and task.id not in self.restorer.tasks
            and not self.attempts.holds_back(task.id)
        ]
        failed: dict[TaskId, StandfastError] = {}
        if not whole:
            return 0, failed
        try:
            committed = self._committed(whole)
        except OffsetsOpen as error:
            held = [task for task in whole if any(map(task.is_source, error.partitions))]
            for task in held:
                self.attempts.later(task.id, error)
            whole = [task for task in whole if task not in held]
            if not held:
                raise
            committed = self._committed(whole) if whole else {}
        count = 0
        for task in whole:
            self.progress.step(WORK)
            assert task.restore is not None
            try:
                task.resume_from_log(committed, local_counts=task.restore.local_counts)
                self._activate(task, task.restore)
                count += 1
            except StateLost as refused:
                task.fail(refused)
            except (ListenerFailed, Unavailable, Corruption) as error:
                failed[task.id] = error
        return count, failed

    def _committed(self, whole: Sequence[Task]) -> dict[TopicPartition, Committed]:
        """The committed offsets of restored tasks. Raises Unavailable."""
        self.progress.step(WORK)  # the answer may wait for a transaction
        # One request for all: each took 4 ms on Kafka. Of their own sources alone: other tasks commit meanwhile.
        sources = [task.sources for task in whole]
        wanted = None if None in sources else [at for some in sources for at in some or ()]
        heads = self._group.committed(wanted, only=lambda at: any(task.is_source(at) for task in whole))
        return with_pieces(heads, self._group.committed)

    def standby_round(self) -> TailResult:
        """Apply some records to standbys; they get none while an active task of this instance restores."""
        self._note_gate()  # it may have opened for the whole instance
        self._allow_standbys()
        return self.tailer.poll_once(self._clock.wall_ms()) if self._may_write else TailResult()

    def standby_tick(self, now_ms: int) -> dict[TaskId, StandfastError]:
        """At its interval, note the positions of standbys, and drop copies that a caught-up standby does not need.

        Returns the standbys that failed.
        """
        failed: dict[TaskId, StandfastError] = {}
        if now_ms < self._next_standby_ms:
            return failed
        self._next_standby_ms = now_ms + STANDBY_TICK_MS
        if self._may_write:
            failed = self.tailer.commit_tick(self._clock.wall_ms())
        failed |= self.tailer.refresh_ends(self._clock.wall_ms())
        for task_id, task in self.tasks.items():
            # An active task drops its copy itself.
            if task.has_copy and task.state is TaskState.STANDBY and self.tailer.is_whole(task_id):
                task.has_copy = False
                self._state_dir.drop_aside(str(task_id))
        return failed

    def _allow_standbys(self) -> None:
        self.tailer.allow(not (self.restorer.tasks or self._standbys_wait))

    def _activate(self, task: Task, restore: Restore) -> None:
        task_id = task.id
        task.move(TaskState.RUNNING)
        task.runs_since_ms = self._clock.monotonic_ms()
        task.restore = None
        self.lives.drop(task_id)
        # Only now: until a task is whole its old directory may be the last copy of its rows.
        self._state_dir.drop_aside(str(task_id))
        counters, took_ms = self._counters, self._clock.monotonic_ms() - restore.started_ms
        counters.restore_seconds.observe(took_ms / 1_000)
        for name in task.stores.specs:
            counters.store_restore_seconds[name, restore.why].observe(took_ms / 1_000)
        if restore.why == PROMOTE:
            counters.promotions["completed"] += 1
            counters.promotion_seconds.observe(took_ms / 1_000)
            counters.promotion_last_ms = took_ms
        self.gate.restored(task_id)
        self._note_gate()

    def _note_gate(self) -> None:
        if self._gate_shut_ms >= 0 and not (self.gate.missing() or self.gate.is_held):
            waited_ms = self._clock.monotonic_ms() - self._gate_shut_ms
            self._counters.gate_wait_seconds.observe(waited_ms / 1_000)
            self._counters.gate_last_wait_ms = waited_ms
            self._gate_shut_ms = -1
