"""The port of tracing, as a running task uses it. One implementation: `standfast.stream.tracing.otel`.

    record ──> processing: span, parent from its headers ──> processors ──> sink ──> inject: the span into the headers
                                                                  └──> held result: the span is in its headers already

Rules of this file: the interface only, so that an application without tracing loads no library of it. Where tracing is
off there is no object, and no call: the calls are wired into a task as it is built.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from standfast.replication.listeners import Listener
from standfast.replication.log import Headers
from standfast.stream.record import Record

Process = Callable[[Record], None]
Inject = Callable[[Headers], Headers]


class TracedRecord(Protocol):
    """The record that a task processes, as far as spans name it."""

    offset: int


class Tracing(Protocol):
    """Spans of one application."""

    @property
    def listener(self) -> Listener:
        """A listener of the session, for spans of restores."""
        ...

    def processing(self, process: Process, task: str, topic: str, partition: int, hand: TracedRecord) -> Process:
        """`process` within a span of its record. The record that it gets carries the span in its headers."""
        ...

    def failed(self, task: str, topic: str, partition: int, offset: int, headers: Headers, error: Exception) -> None:
        """A span of a record that fails before it can be processed."""
        ...

    def inject(self, headers: Headers) -> Headers:
        """Headers with the current span in place of the one that they name; unchanged without a current span."""
        ...

    def commit(self, task: str, committed: Callable[[], int]) -> AbstractContextManager[None]:
        """A span of a commit, unless the number of commits stays as it was: it had nothing to commit."""
        ...

    def apart(self) -> AbstractContextManager[None]:
        """No current span: results that go on here keep the span in their headers, that of the record they are from."""
        ...
