"""OpenTelemetry spans of an application: one for each record processed, each commit, and each restore of a store.

    process <topic>   consumer   child of the span that the record's headers name (traceparent, tracestate)
    commit            client     a commit of a task that had something to commit
    restore <store>   internal   from the start of a restore to its end

Attributes are those of the semantic conventions for messaging, and `standfast.task`, `standfast.store`. No key and no
value is an attribute; an error is recorded with its message and traceback, which are the program's.

Rules of this file: the API of OpenTelemetry only. Provider, exporter, sampler and propagators are the program's, as it
has set them up with the SDK; without any, the API's own spans do nothing. Needs the extra `otel`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from opentelemetry import context, propagate, trace
from opentelemetry.context import Context
from opentelemetry.propagators.textmap import Getter
from opentelemetry.trace import Span, SpanKind, StatusCode

from standfast.replication.listeners import Listener
from standfast.replication.log import Headers
from standfast.replication.offsets import TaskId, TopicPartition
from standfast.store.base.version import __version__
from standfast.stream.record import Record
from standfast.stream.trace import Process, TracedRecord

KAFKA = "kafka"
EMBEDDED = "standfast"  # the conventions have no name for the embedded log
TRACEPARENT, TRACESTATE = "traceparent", "tracestate"

Attributes = Mapping[str, str | int]


class HeaderGetter(Getter[Headers]):
    """Reads the headers of a record. Of several with one name the last counts, as for clients of Kafka."""

    def get(self, carrier: Headers, key: str) -> list[str] | None:
        """The value as text; None for a header that is absent, has no value, or is no text."""
        for name, value in reversed(carrier):
            if name == key and value is not None:
                try:
                    return [value.decode("ascii")]
                except UnicodeDecodeError:
                    return None
        return None

    def keys(self, carrier: Headers) -> list[str]:
        """The names of the headers."""
        return [name for name, _ in carrier]


GETTER = HeaderGetter()


class OpenTelemetry:
    """The spans of one application. `system`: the log's name in the conventions."""

    def __init__(self, app: str, system: str) -> None:
        self._tracer = trace.get_tracer("standfast", __version__)
        self._common: Attributes = {"messaging.system": system, "messaging.consumer.group.name": app}
        self.listener: Listener = RestoreSpans(self._tracer, {"standfast.app": app})

    def processing(self, process: Process, task: str, topic: str, partition: int, hand: TracedRecord) -> Process:
        """`process` within a span of its record. The record that it gets carries the span in its headers."""
        name, attributes = f"process {topic}", self._of_source(task, topic, partition)
        tracer, kind = self._tracer, SpanKind.CONSUMER

        def traced(record: Record) -> None:
            # From an empty context: a span around app.run() is no parent of its records.
            parent = propagate.extract(record.headers, Context(), GETTER)
            given = {**attributes, "messaging.kafka.offset": hand.offset}
            span = tracer.start_span(name, parent, kind, given)
            here = trace.set_span_in_context(span, parent)
            token = context.attach(here)
            try:
                # Into the record, too: a result that a cache or a window holds back has these headers as it goes on.
                headers = injected(record.headers, here)
                process(Record(record.key, record.value, record.timestamp, headers, record.old_value))
            except BaseException as error:
                record_error(span, error)
                raise
            finally:
                context.detach(token)
                span.end()

        return traced

    def failed(self, task: str, topic: str, partition: int, offset: int, headers: Headers, error: Exception) -> None:
        """A span of a record that fails before it can be processed."""
        attributes = {**self._of_source(task, topic, partition), "messaging.kafka.offset": offset}
        parent = propagate.extract(headers, Context(), GETTER)
        span = self._tracer.start_span(f"process {topic}", parent, SpanKind.CONSUMER, attributes)
        record_error(span, error)
        span.end()

    def inject(self, headers: Headers) -> Headers:
        """Headers with the current span in place of the one that they name; unchanged without a current span."""
        return injected(headers, None)

    @contextmanager
    def commit(self, task: str, committed: Callable[[], int]) -> Iterator[None]:
        """A span of a commit, unless the number of commits stays as it was: it had nothing to commit."""
        attributes = {
            **self._common,
            "messaging.operation.name": "commit",
            "messaging.operation.type": "settle",
            "standfast.task": task,
        }
        before = committed()
        # Not the current span: held results that go on within belong to the traces of their records.
        span = self._tracer.start_span("commit", Context(), SpanKind.CLIENT, attributes)
        try:
            yield
        except BaseException as error:
            record_error(span, error)
            span.end()
            raise
        if committed() > before:  # a span that does not end is never exported
            span.end()

    @contextmanager
    def apart(self) -> Iterator[None]:
        """No current span: results that go on here keep the span in their headers, that of the record they are from."""
        token = context.attach(Context())
        try:
            yield
        finally:
            context.detach(token)

    def _of_source(self, task: str, topic: str, partition: int) -> dict[str, str | int]:
        return {
            **self._common,
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.destination.name": topic,
            "messaging.destination.partition.id": str(partition),
            "standfast.task": task,
        }


class RestoreSpans(Listener):
    """A span for each restore of a store, from its start to its end. Any thread may call it."""

    def __init__(self, tracer: trace.Tracer, common: Attributes) -> None:
        self._tracer = tracer
        self._common = common
        self._spans: dict[tuple[TaskId, str], Span] = {}
        self._mutex = threading.Lock()

    def on_restore_start(
        self, task: TaskId, store: str, changelog: TopicPartition, start: int, end: int, reason: str
    ) -> None:
        span = self._tracer.start_span(
            f"restore {store}",
            Context(),
            attributes={
                **self._common,
                "standfast.task": str(task),
                "standfast.store": store,
                "messaging.destination.name": changelog.topic,
                "messaging.destination.partition.id": str(changelog.partition),
                "standfast.restore.start": start,
                "standfast.restore.end": end,
                "standfast.restore.reason": reason,
            },
        )
        with self._mutex:
            before = self._spans.pop((task, store), None)
            self._spans[task, store] = span
        if before is not None:  # it begins again: the plan was another one meanwhile
            before.end()

    def on_restore_end(self, task: TaskId, store: str, changelog: TopicPartition, records: int) -> None:
        with self._mutex:
            span = self._spans.pop((task, store), None)
        if span is not None:
            span.set_attribute("standfast.restore.records", records)
            span.end()

    def on_restore_suspended(self, task: TaskId, reason: str) -> None:
        with self._mutex:
            ended = [self._spans.pop(one) for one in [*self._spans] if one[0] == task]
        for span in ended:
            span.set_attribute("standfast.restore.suspended", reason)
            span.end()


def injected(headers: Headers, here: Context | None) -> Headers:
    """Headers with the span of a context, None: the current one, in place of the one that they name."""
    carrier: dict[str, Any] = {}
    propagate.inject(carrier, here)
    if not carrier or not isinstance(headers, tuple | list):  # anything else is refused where it is sent
        return headers
    # Only the names that are written here, so that a header of the program that happens to be called `baggage` stays.
    gone = {*carrier, TRACESTATE} if TRACEPARENT in carrier else {*carrier}
    kept = [one for one in headers if not (isinstance(one, tuple | list) and one and one[0] in gone)]
    return (*kept, *((name, str(value).encode()) for name, value in carrier.items()))


def record_error(span: Span, error: BaseException) -> None:
    """Record an error on a span; its status says the class only."""
    kind = type(error)
    span.set_attribute("error.type", f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins."))
    span.record_exception(error)
    span.set_status(StatusCode.ERROR, kind.__name__)
