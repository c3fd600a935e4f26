"""What an application writes: processors, and the context they run in.

Rules of this file: no threads, no log; a context speaks for one task and one processor of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from standfast.replication.log import Headers
from standfast.store.errors import InvalidRequest
from standfast.store.serde import Serde
from standfast.stream.task import Task


class SourceRecord(NamedTuple):
    """A record handed to a processor, key and value decoded; `timestamp` in milliseconds."""

    key: Any
    value: Any
    timestamp: int
    headers: Headers = ()


@dataclass(frozen=True, slots=True)
class Source:
    """An input topic of a processor. `timestamp` computes a record's time from the record; default: the log's."""

    topic: str
    key: Serde[Any]
    value: Serde[Any]
    timestamp: Callable[[SourceRecord], int] | None = None


class Context:
    """What a processor may ask for. `topic`, `partition`, `offset`, `headers` are those of the record in hand."""

    def __init__(self, task: Task, stores: frozenset[str]) -> None:
        self._task = task
        self._stores = stores
        self.topic: str | None = None
        self.partition = -1
        self.offset = -1
        self.headers: Headers = ()

    @property
    def task_id(self) -> str:
        """The task, as `0_3`."""
        return str(self._task.id)

    @property
    def timestamp(self) -> int:
        """Timestamp of the record in hand, in milliseconds."""
        return self._task.now_ms()

    def store(self, name: str) -> Any:
        """A declared store, for this task's partition."""
        if name not in self._stores:
            known = ", ".join(sorted(self._stores)) or "none"
            raise InvalidRequest(f"store {name!r} is not declared by the application (declared: {known})")
        return self._task.store(name)

    def send(
        self, topic: str, key: bytes | None, value: bytes | None, timestamp: int | None = None, *, partition: int
    ) -> None:
        """Write a record to a topic with the next commit, in the same transaction under exactly once."""
        self._task.send(topic, key, value, timestamp, partition=partition)

    def commit(self) -> None:
        """Ask for a commit after the current record."""
        self._task.commit_requested = True


class Processor:
    """Base of an application's processors; one instance per task."""

    def init(self, context: Context) -> None:
        """Called once before the first record, when every store is restored."""

    def process(self, record: SourceRecord) -> None:
        """Called for each record of the sources, in offset order per partition."""

    def close(self) -> None:
        """Called when the task leaves this instance."""
