"""This instance's parts of a coordinated checkpoint: the order in force, the parts that are cut and stored, the report.

    tick of the placement      order from the topic ──> `order`              `report` ──> the instance's next report
    loop of the application    limits in force ──> `applied`    task stands still, committed ──> `stand`
                               task goes on again ──> `goes_on`, with its pause
    two threads                files linked ──> stopped ··· uploaded, part noted in the storage ──> stored

The loop cuts nothing itself: a task stands still until the leader's order frees it, and that comes after its part is
cut. The upload goes on while the task processes its next records.

Rules of this file: any failure fails the part, which ends the checkpoint and nothing else. An answer of the storage
that another attempt may mend is waited for until the leader's order ends.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, Protocol

from standfast.replication.offsets import TaskId
from standfast.replication.placement.checkpoint import Order, OrderState, PartReport
from standfast.restore.snapshot.checkpoint import NothingCommitted, cut_of
from standfast.restore.snapshot.manifest import SnapshotCut
from standfast.store import files
from standfast.store.errors import StandfastError, Unavailable
from standfast.store.log import as_event, logger
from standfast.store.process.interrupts import Flag
from standfast.store.process.threads import THREADS, Running, Threads
from standfast.stream.snapshot_counts import SnapshotCounts
from standfast.stream.snapshots.keeper import KeeperTask, SnapshotKeeper, on_disk

AGAIN_MS = 1_000
STOP_WAIT_S = 5.0
NO_POLICY = "its instance has no storage for snapshots: give every instance the same snapshots=SnapshotPolicy(...)"


class PartTask(KeeperTask, Protocol):
    """An active task that runs here, with the changelogs of its stores by name."""

    def changelog_topics(self) -> dict[str, str]: ...
    def cut_sources(self) -> dict[str, int]: ...


class _Made(NamedTuple):
    """A part that is cut; `directory` None: it has no files."""

    task: PartTask
    epoch: int
    directory: Path | None
    cut: SnapshotCut
    progress: dict[str, int]


class CheckpointParts:
    """The parts of one instance. `keeper` None: it has no storage, and fails every part."""

    def __init__(self, keeper: SnapshotKeeper | None, counts: SnapshotCounts) -> None:
        self.order: Order | None = None  # replaced as a whole by the tick, and read by the loop
        self._keeper = keeper
        self._counts = counts
        self._lock = threading.Lock()  # of the next two, which three threads change
        self._report = PartReport(0, 0)
        self._asked: set[TaskId] = set()  # stand still, so that their part is cut, or is about to be
        self._stop = Flag()
        threads = THREADS if keeper is None else keeper.threads
        self._cuts = _Work("standfast-parts", self._stop, threads)
        self._uploads = _Work("standfast-part-uploads", self._stop, threads)

    @property
    def under_way(self) -> bool:
        """Whether tasks are to stand still, so that the loop and the tick look often."""
        order = self.order
        return order is not None and order.state is OrderState.RUNNING and bool(order.stop)

    def follow(self, order: Order | None) -> None:
        """Take the newest order of the placement topic."""
        self.order = order

    def report(self) -> PartReport | None:
        """The parts of the last checkpoint that had any here."""
        report = self._report
        return report if report.number else None

    # --- for the loop ---

    def applied(self, task_id: TaskId, order: Order) -> None:
        """The limits of this order are in force for a task."""
        with self._lock:
            if self._begin(order):
                self._report = replace(self._report, applied=self._report.applied | {task_id})

    def stand(self, task_id: TaskId, task: PartTask, order: Order) -> None:
        """A task stands still, and everything of it is committed: its part can be cut."""
        with self._lock:
            self._begin(order)
            if order.number != self._report.number or task_id in self._asked:
                return  # opened again while its group stands still: it is where its part was cut
            self._asked.add(task_id)
        if self._keeper is None:
            self._note_failed(order.number, task_id, NO_POLICY)
            return
        self._cuts.put(lambda: self._cut(task_id, task, order.number))

    def goes_on(self, pause_ms: int) -> None:
        """A task goes on after so many milliseconds."""
        self._counts.paused(pause_ms)

    def step(self) -> None:
        """Cut one part and store one, of a session without threads."""
        self._cuts.step()
        self._uploads.step()

    def stop(self) -> None:
        """End the threads; an upload under way ends after its file."""
        self._stop.set()
        for one in (self._cuts, self._uploads):
            one.end()

    # --- threads ---

    def _cut(self, task_id: TaskId, task: PartTask, number: int) -> bool:
        assert self._keeper is not None
        if self._stop.is_set() or not self._wants(number):
            return True  # the task may process again by now
        try:
            epoch = task.epoch
            directory = self._keeper.cut(task_id, task) if on_disk(task) else None
            record = replace(task.stores.cut, sources=task.cut_sources())
            cut = cut_of(record, task.changelog_topics(), task_id.partition)
            # Before it counts as stopped: from then on the task may go on at any time.
            made = _Made(task, epoch, directory, cut, dict(task.stores.cut.progress))
        except Exception as error:  # noqa: BLE001 - the part fails, and the task goes on
            self._fail(task_id, number, error)
            return True
        self._note(number, lambda report: replace(report, stopped=report.stopped | {task_id}))
        self._uploads.put(lambda: self._upload(task_id, number, made))
        return True

    def _upload(self, task_id: TaskId, number: int, made: _Made) -> bool:
        try:
            if not self._stop.is_set() and self._wants(number):
                self._store(task_id, number, made)
                self._note(number, lambda report: replace(report, stored=report.stored | {task_id}))
        except Unavailable as error:
            logger.warning(
                "the part of task %s in checkpoint %d is tried again: %s",
                task_id,
                number,
                error,
                extra=as_event("checkpoint_part_retried", task=task_id, number=number),
            )
            return False
        except Exception as error:  # noqa: BLE001 - the part fails, and the task goes on
            self._fail(task_id, number, error)
        if made.directory is not None:
            files.clear(made.directory)
        return True

    def _store(self, task_id: TaskId, number: int, made: _Made) -> None:
        from standfast.restore.snapshot.checkpoints import CheckpointPart, put_part

        assert self._keeper is not None
        name, cut = "", made.cut
        if made.directory is not None:
            try:
                snapshot = self._keeper.store(task_id, made.task, made.epoch, made.directory)
                name, cut = str(snapshot.name), snapshot.cut
            except NothingCommitted:
                pass  # a task without a record has no files to restore: its part is the empty cut
        put_part(self._keeper.storage, CheckpointPart(number, str(task_id), made.epoch, name, cut, made.progress))

    # --- inside ---

    def _begin(self, order: Order) -> bool:
        """Forget the parts of an older checkpoint; whether no newer order is known here. The lock is held."""
        if order.number > self._report.number:
            self._report, self._asked = PartReport(order.number, 0), set()
        if order.number == self._report.number and order.step > self._report.step:
            self._report = replace(self._report, step=order.step, applied=frozenset())
        return (order.number, order.step) == (self._report.number, self._report.step)

    def _note(self, number: int, change: Callable[[PartReport], PartReport]) -> None:
        with self._lock:
            # Not into the report of a newer checkpoint, which may have begun meanwhile.
            if number == self._report.number:
                self._report = change(self._report)

    def _wants(self, number: int) -> bool:
        order = self.order
        return order is not None and order.number == number and order.state is OrderState.RUNNING

    def _fail(self, task_id: TaskId, number: int, error: Exception) -> None:
        logger.warning(
            "task %s has no part in checkpoint %d: %s",
            task_id,
            number,
            error,
            exc_info=None if isinstance(error, StandfastError) else error,
            extra=as_event("checkpoint_part_failed", task=task_id, number=number),
        )
        self._note_failed(number, task_id, str(error) or repr(error))

    def _note_failed(self, number: int, task_id: TaskId, why: str) -> None:
        self._note(number, lambda report: replace(report, failed={**report.failed, task_id: why}))


class _Work:
    """Work done one after the other, in a thread that starts with the first, or in steps of the caller.

    Each returns whether it has ended; else it is done again after a moment.
    """

    def __init__(self, name: str, stop: Flag, threads: Threads) -> None:
        self._name = name
        self._stop = stop
        self._threads = threads
        self._due: queue.SimpleQueue[Callable[[], bool] | None] = queue.SimpleQueue()
        self._running: Running | None = None
        self._again: tuple[Callable[[], bool], int] | None = None  # of `step`: a put that has not ended, and its time

    def put(self, one: Callable[[], bool]) -> None:
        self._due.put(one)
        if self._running is None and not self._threads.stepped:
            self._running = self._threads.start(self._name, self._run)

    def step(self) -> None:
        """Do the next one, where there are no threads."""
        now_ms = self._threads.clock.monotonic_ms()
        one, due_ms = self._again or (None if self._due.empty() else self._due.get(), 0)
        if one is not None and now_ms >= due_ms:
            self._again = None if one() else (one, now_ms + AGAIN_MS)

    def end(self) -> None:
        """After `stop`: wait for the thread. Puts that wait see that as well, and only tidy up."""
        self._due.put(None)
        if self._running is not None:
            self._running.join(STOP_WAIT_S)
            return
        if self._again is not None:
            self._again[0]()
        self._run()

    def _run(self) -> None:
        while (one := self._due.get()) is not None:
            while not one():
                self._threads.wait(self._stop, AGAIN_MS)
