"""Listeners: callbacks that report an application's state to it.

    call of a listener ──> an exception ──> ListenerFailed: the task of the call fails, and the other tasks go on
                                        └─> logged, where the task ends in any case: a suspension, a failure, a close
                       ──> CancelledError, KeyboardInterrupt, SystemExit: they pass unchanged

Rules of this file: the one place that calls listeners. The thread that did the work calls them, so they must be quick.
Names follow Kafka Streams' StateRestoreListener and StandbyUpdateListener.
"""

from __future__ import annotations

from collections.abc import Mapping

from standfast.replication.offsets import TaskId, TopicPartition
from standfast.store.errors import ListenerFailed
from standfast.store.log import as_event, logger

PROMOTED = "promoted"  # why a standby stopped that goes on as the active task
ENDS = ("failed", "closed")  # states of a task that takes no more records


class Listener:
    """Base class: override the methods that you need. `changelog` is a topic-partition, offsets are next to read.

    An exception of a method fails the task of the call with ListenerFailed, whose cause it is; other tasks go on. Of a
    task that ends in any case (a suspension, the states `failed` and `closed`) it is logged.
    """

    def on_restore_start(
        self, task: TaskId, store: str, changelog: TopicPartition, start: int, end: int, reason: str
    ) -> None:
        """A store begins to restore from `start` to `end`; `reason` is the plan's."""

    def on_batch_restored(
        self, task: TaskId, store: str, changelog: TopicPartition, position: int, records: int
    ) -> None:
        """A batch was applied and is durable up to `position`; `records` are without skipped ones."""

    def on_restore_end(self, task: TaskId, store: str, changelog: TopicPartition, records: int) -> None:
        """The store reached the end with `records` applied in all; skipped ones are not among them."""

    def on_restore_suspended(self, task: TaskId, reason: str) -> None:
        """A restore stopped before its end (revoked, failed)."""

    def on_standby_start(self, task: TaskId, store: str, changelog: TopicPartition, start: int) -> None:
        """A standby begins to tail from `start`, once every active task of the instance is restored."""

    def on_standby_batch(
        self, task: TaskId, store: str, changelog: TopicPartition, position: int, records: int, end: int
    ) -> None:
        """A standby applied a batch; the log ends at `end`, and `records` are without skipped ones."""

    def on_standby_suspended(self, task: TaskId, reason: str) -> None:
        """A standby stopped: `promoted`, `migrated` or `failed`."""

    def on_commit(self, task: TaskId, sources: Mapping[TopicPartition, int]) -> None:
        """A commit is durable in the log and locally: an exception fails the task, and the commit counts."""

    def on_state_changed(self, task: TaskId, role: str, state: str) -> None:
        """A task entered a state."""

    def on_state_lost(self, task: TaskId, reason: str) -> None:
        """Local state was set aside, and a restore from the log begins."""


class Listeners(Listener):
    """Calls every registered listener, also after one has raised an exception. Raises ListenerFailed."""

    def __init__(self) -> None:
        self._listeners: list[Listener] = []

    def add(self, listener: Listener) -> None:
        """Register a listener for events from now on."""
        self._listeners.append(listener)

    def on_restore_start(
        self, task: TaskId, store: str, changelog: TopicPartition, start: int, end: int, reason: str
    ) -> None:
        self._call("on_restore_start", task, store, changelog, start, end, reason)

    def on_batch_restored(
        self, task: TaskId, store: str, changelog: TopicPartition, position: int, records: int
    ) -> None:
        self._call("on_batch_restored", task, store, changelog, position, records)

    def on_restore_end(self, task: TaskId, store: str, changelog: TopicPartition, records: int) -> None:
        self._call("on_restore_end", task, store, changelog, records)

    def on_restore_suspended(self, task: TaskId, reason: str) -> None:
        self._call("on_restore_suspended", task, reason, ends=True)

    def on_standby_start(self, task: TaskId, store: str, changelog: TopicPartition, start: int) -> None:
        self._call("on_standby_start", task, store, changelog, start)

    def on_standby_batch(
        self, task: TaskId, store: str, changelog: TopicPartition, position: int, records: int, end: int
    ) -> None:
        self._call("on_standby_batch", task, store, changelog, position, records, end)

    def on_standby_suspended(self, task: TaskId, reason: str) -> None:
        self._call("on_standby_suspended", task, reason, ends=reason != PROMOTED)

    def on_commit(self, task: TaskId, sources: Mapping[TopicPartition, int]) -> None:
        self._call("on_commit", task, sources)

    def on_state_changed(self, task: TaskId, role: str, state: str) -> None:
        self._call("on_state_changed", task, role, state, ends=state in ENDS)

    def on_state_lost(self, task: TaskId, reason: str) -> None:
        self._call("on_state_lost", task, reason)

    def _call(self, call: str, task: TaskId, *given: object, ends: bool = False) -> None:
        """Call each listener. The first error is raised, unless the task ends (`ends`); further ones are logged."""
        failed: ListenerFailed | None = None
        for listener in self._listeners:
            try:
                getattr(listener, call)(task, *given)
            except Exception as error:  # noqa: BLE001 - whatever the program's code raises, also an error of ours
                told = ListenerFailed(
                    f"task {task}: {type(listener).__name__}.{call} raised {type(error).__name__}: {error}: correct "
                    "that listener, then open the task again"
                )
                told.__cause__ = error
                if failed is None and not ends:
                    failed = told
                    continue
                logger.error("%s", told, exc_info=error, extra=as_event("listener_failed", task=task, call=call))
        if failed is not None:
            raise failed
