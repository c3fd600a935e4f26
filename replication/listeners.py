"""Listeners: callbacks that report an application's state to it.

Rules of this file: interfaces only. The thread that did the work calls the listeners, so they must be quick; an
exception of a listener fails the task that the call is about and is never swallowed. Names follow Kafka Streams'
StateRestoreListener and StandbyUpdateListener.
"""

from __future__ import annotations

from collections.abc import Mapping

from standfast.replication.offsets import TaskId, TopicPartition


class Listener:
    """Base class: override the methods that you need. `changelog` is a topic-partition, offsets are next to read."""

    def on_restore_start(
        self, task: TaskId, store: str, changelog: TopicPartition, start: int, end: int, reason: str
    ) -> None:
        """A store begins to restore from `start` to `end`; `reason` is the plan's."""

    def on_batch_restored(
        self, task: TaskId, store: str, changelog: TopicPartition, position: int, records: int
    ) -> None:
        """A batch was applied and is durable up to `position`."""

    def on_restore_end(self, task: TaskId, store: str, changelog: TopicPartition, records: int) -> None:
        """The store reached the end with `records` applied in all."""

    def on_restore_suspended(self, task: TaskId, reason: str) -> None:
        """A restore stopped before its end (revoked, failed)."""

    def on_standby_start(self, task: TaskId, store: str, changelog: TopicPartition, start: int) -> None:
        """A standby begins to tail from `start`."""

    def on_standby_batch(
        self, task: TaskId, store: str, changelog: TopicPartition, position: int, records: int, end: int
    ) -> None:
        """A standby applied a batch; the log ends at `end`."""

    def on_standby_suspended(self, task: TaskId, reason: str) -> None:
        """A standby stopped: `promoted`, `migrated` or `failed`."""

    def on_commit(self, task: TaskId, sources: Mapping[TopicPartition, int]) -> None:
        """A commit is durable in the log and locally."""

    def on_state_changed(self, task: TaskId, role: str, state: str) -> None:
        """A task entered a state."""

    def on_state_lost(self, task: TaskId, reason: str) -> None:
        """Local state was set aside, and a restore from the log begins."""


class Listeners(Listener):
    """Calls each registered listener in turn."""

    def __init__(self) -> None:
        self._listeners: list[Listener] = []

    def add(self, listener: Listener) -> None:
        """Register a listener for events from now on."""
        self._listeners.append(listener)

    def on_restore_start(
        self, task: TaskId, store: str, changelog: TopicPartition, start: int, end: int, reason: str
    ) -> None:
        for listener in self._listeners:
            listener.on_restore_start(task, store, changelog, start, end, reason)

    def on_batch_restored(
        self, task: TaskId, store: str, changelog: TopicPartition, position: int, records: int
    ) -> None:
        for listener in self._listeners:
            listener.on_batch_restored(task, store, changelog, position, records)

    def on_restore_end(self, task: TaskId, store: str, changelog: TopicPartition, records: int) -> None:
        for listener in self._listeners:
            listener.on_restore_end(task, store, changelog, records)

    def on_restore_suspended(self, task: TaskId, reason: str) -> None:
        for listener in self._listeners:
            listener.on_restore_suspended(task, reason)

    def on_standby_start(self, task: TaskId, store: str, changelog: TopicPartition, start: int) -> None:
        for listener in self._listeners:
            listener.on_standby_start(task, store, changelog, start)

    def on_standby_batch(
        self, task: TaskId, store: str, changelog: TopicPartition, position: int, records: int, end: int
    ) -> None:
        for listener in self._listeners:
            listener.on_standby_batch(task, store, changelog, position, records, end)

    def on_standby_suspended(self, task: TaskId, reason: str) -> None:
        for listener in self._listeners:
            listener.on_standby_suspended(task, reason)

    def on_commit(self, task: TaskId, sources: Mapping[TopicPartition, int]) -> None:
        for listener in self._listeners:
            listener.on_commit(task, sources)

    def on_state_changed(self, task: TaskId, role: str, state: str) -> None:
        for listener in self._listeners:
            listener.on_state_changed(task, role, state)

    def on_state_lost(self, task: TaskId, reason: str) -> None:
        for listener in self._listeners:
            listener.on_state_lost(task, reason)
